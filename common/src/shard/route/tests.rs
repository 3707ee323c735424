use std::collections::BTreeSet;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn far<'a>(queue: &'a QueueName) -> Routing<'a> {
    let now = UnixMicros::new(1_000_000_000);
    Routing {
        queue,
        placement: Placement::Spread,
        partition_key: None,
        key: None,
        due_at: now.plus(HOUR),
        now,
        horizon: Duration::from_secs(10),
        owned: &[],
        shard_count: 128,
        dice: 0,
    }
}

fn shards(numbers: &[u16]) -> Vec<ShardId> {
    numbers.iter().copied().map(ShardId::new).collect()
}

/// These numbers locate stored tasks: a change here loses them.
#[test]
fn hashes_never_change() {
    let orders = QueueName::new("orders");
    let mail = QueueName::new("mail");
    let single = |queue| route(&Routing { placement: Placement::Single, ..far(queue) }).number();
    let partition = |key| route(&Routing { partition_key: Some(key), ..far(&orders) }).number();
    let key = |queue, key| route(&Routing { key: Some(key), ..far(queue) }).number();
    // The published value for the empty input.
    assert_eq!(hash(&[]), 0xE3B0_C442_98FC_1C14);
    assert_eq!([single(&orders), single(&mail)], [100, 115]);
    assert_eq!([partition("customer-17"), partition("customer-18"), partition("")], [3, 59, 20]);
    assert_eq!([key(&orders, "o-1"), key(&orders, "o-2"), key(&mail, "o-1")], [98, 94, 81]);
}

#[test]
fn the_rules_apply_in_their_order() {
    let queue = QueueName::new("orders");
    let owned = shards(&[77]);
    let all = Routing {
        placement: Placement::Single,
        partition_key: Some("customer-17"),
        key: Some("o-1"),
        owned: &owned,
        dice: 5,
        ..far(&queue)
    };
    let all = Routing { due_at: all.now, ..all };
    let by_queue = route(&Routing { placement: Placement::Single, ..far(&queue) });
    assert_eq!(route(&all), by_queue);
    let spread = Routing { placement: Placement::Spread, ..all };
    assert_eq!(route(&spread), route(&Routing { partition_key: Some("customer-17"), ..far(&queue) }));
    let keyed = Routing { partition_key: None, ..spread };
    assert_eq!(route(&keyed), route(&Routing { key: Some("o-1"), ..far(&queue) }));
    let plain = Routing { key: None, ..keyed };
    assert_eq!(route(&plain), ShardId::new(77));
    assert_eq!(route(&Routing { owned: &[], ..plain }), ShardId::new(5));
    assert_eq!(route(&Routing { due_at: plain.now.plus(HOUR), ..plain }), ShardId::new(5));
}

#[test]
fn tasks_of_two_queues_with_one_partition_key_meet() {
    let (orders, mail) = (QueueName::new("orders"), QueueName::new("mail"));
    for key in ["a", "b", "customer-17"] {
        let of = |queue| route(&Routing { partition_key: Some(key), ..far(queue) });
        assert_eq!(of(&orders), of(&mail));
    }
}

#[test]
fn the_horizon_itself_is_near() {
    let queue = QueueName::new("orders");
    let owned = shards(&[77]);
    let base = Routing { owned: &owned, ..far(&queue) };
    let at_horizon = Routing { due_at: base.now.plus(base.horizon), ..base };
    let past_it = Routing { due_at: base.now.plus(base.horizon + Duration::from_micros(1)), ..base };
    assert_eq!((route(&at_horizon), route(&past_it)), (ShardId::new(77), ShardId::new(0)));
}

#[test]
fn the_die_reaches_every_shard_there_is() {
    let queue = QueueName::new("orders");
    let owned = shards(&[3, 9, 27]);
    let reached = |owned: &[ShardId], due_at| -> BTreeSet<ShardId> {
        (0..1_000).map(|dice| route(&Routing { owned, due_at, dice, ..far(&queue) })).collect()
    };
    let far = far(&queue);
    assert_eq!(reached(&owned, far.now), owned.iter().copied().collect());
    assert_eq!(reached(&owned, far.due_at).len(), 128);
}

#[test]
fn keys_spread_evenly() {
    let queue = QueueName::new("orders");
    let mut counts = [0_u32; 128];
    for number in 0..128_000 {
        let key = format!("customer-{number}");
        counts[usize::from(route(&Routing { partition_key: Some(&key), ..far(&queue) }).number())] += 1;
    }
    assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
}

#[test]
fn a_queue_and_a_key_are_not_mistaken_for_another_pair() {
    let (ab, a) = (QueueName::new("ab"), QueueName::new("a"));
    let of = |queue, key| bound_to(queue, Placement::Spread, None, Some(key), 65_536);
    assert_ne!(of(&ab, "c"), of(&a, "bc"));
}

#[test]
fn there_may_be_as_many_shards_as_a_number_of_16_bits_can_tell_apart() {
    let queue = QueueName::new("orders");
    let last = Routing { shard_count: 65_536, dice: 65_535, ..far(&queue) };
    assert_eq!(route(&last), ShardId::new(65_535));
    assert_eq!(route(&Routing { shard_count: 1, ..last }), ShardId::new(0));
}
