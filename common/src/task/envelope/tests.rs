use proptest::prelude::*;

use super::*;

fn text() -> impl Strategy<Value = Text> {
    prop_oneof![".{0,8}".prop_map(|text| Text(text.into_bytes())), any::<Vec<u8>>().prop_map(Text)]
}

pub(crate) fn field() -> impl Strategy<Value = Field> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Field::Bool),
        any::<i8>().prop_map(Field::I8),
        any::<u8>().prop_map(Field::U8),
        any::<i16>().prop_map(Field::I16),
        any::<u16>().prop_map(Field::U16),
        any::<i32>().prop_map(Field::I32),
        any::<u32>().prop_map(Field::U32),
        any::<i64>().prop_map(Field::I64),
        any::<u32>().prop_map(Field::F32),
        any::<u64>().prop_map(Field::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| Field::Decimal { scale, value }),
        text().prop_map(Field::Text),
        text().prop_map(Field::Bytes),
        any::<u64>().prop_map(Field::Time),
        Just(Field::Void),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Field::Array),
            proptest::collection::vec((text(), inner), 0..4).prop_map(Field::Table),
        ]
    })
}

proptest! {
    #[test]
    fn whatever_a_header_holds_reads_back_bit_for_bit(name in text(), field in field()) {
        let properties = Properties { headers: Some(vec![(name, field)]), ..Properties::default() };
        let envelope = Envelope { properties, ..Envelope::default() };
        let json = serde_json::to_string(&envelope).unwrap();
        prop_assert!(!json.contains("\\u0000"), "PostgreSQL refuses a NUL: {json}");
        prop_assert_eq!(serde_json::from_str::<Envelope>(&json).unwrap(), envelope);
    }
}

#[test]
fn the_deepest_header_that_is_taken_reads_back() {
    let deep = (0..MAX_DEPTH).fold(Field::Void, |inner, _| Field::Table(vec![("a".into(), inner)]));
    assert_eq!(deep.depth(), MAX_DEPTH);
    let json =
        serde_json::to_string(&Properties { headers: Some(vec![("h".into(), deep)]), ..Default::default() }).unwrap();
    assert!(serde_json::from_str::<Properties>(&json).is_ok());
}

#[test]
fn an_envelope_without_a_mark_is_written_and_read_as_in_former_versions() {
    let json = r#"{"exchange":"orders","routing_key":"a","properties":{}}"#;
    let envelope: Envelope = serde_json::from_str(json).unwrap();
    assert!(!envelope.redelivered);
    assert_eq!(serde_json::to_string(&envelope).unwrap(), json);
}
