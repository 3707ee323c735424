use std::collections::BTreeMap;

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn id(number: u8) -> TaskId {
    TaskId::from_uuid(Uuid::from_u128(u128::from(number)))
}

proptest! {
    /// Slot and id have the same number here, which makes the look-up of an id trivial.
    #[test]
    fn the_index_finds_what_a_map_finds(steps in prop::collection::vec((any::<u8>(), any::<bool>()), 0..600)) {
        let id_of = |slot| id(u8::try_from(slot).unwrap());
        let mut index = SlotIndex::default();
        let mut model = BTreeMap::new();
        for (number, add) in steps {
            let slot = u32::from(number);
            if add && model.insert(number, slot).is_none() {
                index.insert(slot, id_of);
            } else if !add {
                prop_assert_eq!(index.remove(id(number), id_of), model.remove(&number));
            }
            for number in 0..=u8::MAX {
                prop_assert_eq!(index.find(id(number), id_of), model.get(&number).copied());
            }
        }
    }
}
