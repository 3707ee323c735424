use super::*;
use crate::ids::{DatabaseName, TaskId};
use crate::wire::cursor::NotACursor;

const NOW: UnixMicros = UnixMicros::new(1_700_000_000_000_000);

fn valid(raw: &str) -> Result<ValidBulk, Problem> {
    BulkRequest::parse(raw)?.validate(NOW)
}

fn cursor(action: Action) -> BulkCursor {
    let edge = Edge { due_at: NOW, id: TaskId::from_uuid(uuid::Uuid::from_u128(7)) };
    let place = Some(Place { queue: QueueName::new("mail"), after: Some(edge) });
    let [name, walked] = ["east", "main"].map(DatabaseName::new);
    let began_at = NOW.shifted(-5_000);
    BulkCursor(Position { action, began_at, database: 1, name, walked: vec![walked], map: 7, place })
}

#[test]
fn a_request_says_what_which_and_where_to() {
    let read = valid(r#"{"action":"cancel","filter":{"queue":"mail","due_before":1700000000000,"error":"no route"}}"#);
    let read = read.unwrap();
    assert_eq!((read.act, read.dry_run, read.limit), (BulkAction::Cancel, false, 10_000));
    assert_eq!((read.filter.due_before, read.filter.error.as_deref()), (Some(NOW), Some("no route")));
    let to = |raw: &str| valid(raw).unwrap().act;
    let later = BulkAction::Move(Target::At(NOW.shifted(1_000)));
    assert_eq!(to(r#"{"action":"move","all":true,"delay_ms":1000}"#), later);
    assert_eq!(to(r#"{"action":"move","all":true,"due_at":"2023-11-14T22:13:21Z"}"#), later);
    assert_eq!(to(r#"{"action":"move","all":true,"shift_ms":-7}"#), BulkAction::Move(Target::By { shift_ms: -7 }));
    assert_eq!(to(r#"{"action":"retry","filter":{"state":"dead"}}"#), BulkAction::Retry);
}

#[test]
fn a_delay_counts_from_the_first_request_of_the_series() {
    let raw = format!(r#"{{"action":"move","all":true,"delay_ms":1000,"cursor":"{}"}}"#, cursor(Action::Move));
    assert_eq!(valid(&raw).unwrap().act, BulkAction::Move(Target::At(NOW.shifted(-4_000))));
}

#[test]
fn what_cannot_be_done_is_refused_by_name() {
    for (raw, field) in [
        (r#"{"filter":{"queue":"a"}}"#, "action"),
        (r#"{"action":"forget","all":true}"#, "action"),
        (r#"{"action":"cancel"}"#, "filter"),
        (r#"{"action":"cancel","filter":{}}"#, "filter"),
        (r#"{"action":"cancel","filter":{"queue":null}}"#, "filter"),
        (r#"{"action":"cancel","filter":{"colour":"red"}}"#, "filter.colour"),
        (r#"{"action":"cancel","filter":{"queue":"a b"}}"#, "filter.queue"),
        (r#"{"action":"cancel","filter":{"error":""}}"#, "filter.error"),
        (r#"{"action":"cancel","filter":{"due_after":"soon"}}"#, "filter"),
        (r#"{"action":"cancel","filter":{"state":"dead"}}"#, "filter.state"),
        (r#"{"action":"retry","filter":{"state":"scheduled"}}"#, "filter.state"),
        (r#"{"action":"cancel","all":true,"delay_ms":1}"#, "delay_ms"),
        (r#"{"action":"run","all":true,"shift_ms":1}"#, "shift_ms"),
        (r#"{"action":"move","all":true}"#, "due_at"),
        (r#"{"action":"move","all":true,"shift_ms":0}"#, "shift_ms"),
        (r#"{"action":"move","all":true,"shift_ms":9000000000000000000}"#, "shift_ms"),
        (r#"{"action":"move","all":true,"shift_ms":1,"delay_ms":1}"#, "shift_ms"),
        (r#"{"action":"move","all":true,"due_at":1,"delay_ms":1}"#, "delay_ms"),
        (r#"{"action":"move","all":true,"delay_ms":9000000000000000000}"#, "delay_ms"),
        (r#"{"action":"cancel","all":true,"limit":0}"#, "limit"),
        (r#"{"action":"cancel","all":true,"limit":100001}"#, "limit"),
        (r#"{"action":"cancel","all":true,"cursor":"x"}"#, "cursor"),
        (r#"{"action":"cancel","all":"yes"}"#, "all"),
    ] {
        let problem = valid(raw).unwrap_err();
        assert_eq!((problem.status, problem.field.as_deref()), (422, Some(field)), "{raw}: {problem:?}");
    }
    let of_another = format!(r#"{{"action":"cancel","all":true,"cursor":"{}"}}"#, cursor(Action::Run));
    assert_eq!(valid(&of_another).unwrap_err().field.as_deref(), Some("cursor"));
}

#[test]
fn a_cursor_goes_on_in_the_queue_of_the_filter_only() {
    let with = |filter: &str| {
        valid(&format!(r#"{{"action":"cancel",{filter},"cursor":"{}"}}"#, cursor(Action::Cancel)))
            .map(|bulk| bulk.cursor)
    };
    let refused = with(r#""filter":{"queue":"drafts"}"#).unwrap_err();
    assert_eq!((refused.status, refused.field.as_deref()), (422, Some("cursor")), "{refused:?}");
    for filter in [r#""filter":{"queue":"mail"}"#, r#""all":true"#] {
        assert_eq!(with(filter), Ok(Some(cursor(Action::Cancel))), "{filter}");
    }
}

#[test]
fn a_cursor_reads_back_and_nothing_else_does() {
    let cursor = cursor(Action::Cancel);
    assert_eq!(cursor.to_string().parse(), Ok(cursor.clone()));
    let place = Some(Place { queue: QueueName::new("q\0"), after: None });
    let impossible = BulkCursor(Position { place, ..cursor.0 });
    assert_eq!(impossible.to_string().parse::<BulkCursor>(), Err(NotACursor));
    let unnamed = "eyJhY3Rpb24iOiJjYW5jZWwiLCJiZWdhbl9hdCI6MSwiZGF0YWJhc2UiOjAsIm1hcCI6N30";
    let unmapped = "eyJhY3Rpb24iOiJjYW5jZWwiLCJiZWdhbl9hdCI6MSwiZGF0YWJhc2UiOjAsIm5hbWUiOiJhIn0";
    for text in ["", "e30", "AAAA", "not base64!", unnamed, unmapped] {
        assert_eq!(text.parse::<BulkCursor>(), Err(NotACursor), "{text}");
    }
}

#[test]
fn an_answer_counts_what_was_left_by_its_reason() {
    let answer = BulkAnswer {
        action: Action::Cancel,
        dry_run: true,
        matched: 5,
        done: 2,
        no_further_attempts: 0,
        refused: BTreeMap::from([(SkipReason::InFlight, 3)]),
        next_cursor: None,
        interrupted: None,
    };
    let json = serde_json::to_string(&answer).unwrap();
    let expected =
        r#"{"action":"cancel","dry_run":true,"matched":5,"done":2,"refused":{"in_flight":3},"next_cursor":null}"#;
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_str::<BulkAnswer>(&json).unwrap().refused, answer.refused);
}

#[test]
fn reasons_of_a_newer_version_are_counted_together() {
    let json = r#"{"action":"move","dry_run":false,"matched":7,"done":1,
        "refused":{"held":1,"of_a_later_version":2,"of_another_one":3},"next_cursor":null}"#;
    let answer: BulkAnswer = serde_json::from_str(json).unwrap();
    assert_eq!(answer.refused, BTreeMap::from([(SkipReason::Held, 1), (SkipReason::Other, 5)]));
}
