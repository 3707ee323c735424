use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::{
    ids::Attempt,
    task::state::{CancelOutcome, cancel_outcome},
};

/// Every state by every event; `-` is refused.
const TABLE: &str = "
|             | unblock   | hold  | move      | claim       | rescue      | deliver   | start   | succeed   | retry     | bury | cancel    | stop      | supersede  | expire  | revive    |
| waiting     | scheduled | -     | waiting   | -           | -           | -         | -       | -         | -         | -    | cancelled | -         | superseded | expired | -         |
| scheduled   | -         | ready | scheduled | dispatching | -           | -         | -       | succeeded | -         | -    | cancelled | -         | superseded | expired | -         |
| ready       | -         | -     | scheduled | dispatching | -           | -         | -       | succeeded | -         | -    | cancelled | -         | superseded | expired | -         |
| dispatching | -         | -     | -         | -           | dispatching | delivered | running | succeeded | scheduled | dead | -         | cancelled | -          | -       | -         |
| delivered   | -         | -     | -         | -           | -           | -         | running | succeeded | scheduled | dead | -         | cancelled | -          | -       | -         |
| running     | -         | -     | -         | -           | -           | -         | running | succeeded | scheduled | dead | -         | cancelled | -          | -       | -         |
| succeeded   | -         | -     | -         | -           | -           | -         | -       | -         | -         | -    | -         | -         | -          | -       | -         |
| dead        | -         | -     | -         | -           | -           | -         | -       | -         | -         | -    | -         | -         | -          | -       | scheduled |
| cancelled   | -         | -     | -         | -           | -           | -         | -       | -         | -         | -    | -         | -         | -          | -       | -         |
| superseded  | -         | -     | -         | -           | -           | -         | -       | -         | -         | -    | -         | -         | -          | -       | -         |
| expired     | -         | -     | -         | -           | -           | -         | -       | -         | -         | -    | -         | -         | -          | -       | -         |
";

fn answer(state: TaskState, event: Event) -> &'static str {
    transition(state, event).map_or("-", TaskState::text)
}

fn table() -> String {
    let width = |event: Event| {
        let answers = TaskState::ALL.into_iter().map(|state| answer(state, event).len());
        answers.max().unwrap_or(0).max(event.text().len())
    };
    let mut table = format!("\n| {:11} |", "");
    for event in Event::ALL {
        write!(table, " {:w$} |", event.text(), w = width(event)).unwrap();
    }
    for state in TaskState::ALL {
        write!(table, "\n| {:11} |", state.text()).unwrap();
        for event in Event::ALL {
            write!(table, " {:w$} |", answer(state, event), w = width(event)).unwrap();
        }
    }
    table + "\n"
}

#[test]
fn every_event_in_every_state_leads_where_the_table_says() {
    let table = table();
    assert_eq!(table, TABLE, "the table is now:{table}");
}

#[test]
fn a_refusal_says_what_cannot_be_done_to_what() {
    let refused = transition(TaskState::Delivered, Event::Cancel).unwrap_err();
    assert_eq!(refused.to_string(), "a delivered task does not allow `cancel`");
}

/// Applies an event to a stored task: its state and its count of claims.
fn apply(state: TaskState, attempt: i32, event: Event) -> (TaskState, i32) {
    match transition(state, event) {
        Ok(next) => (next, attempt + i32::from(event == Event::Claim)),
        Err(_) => (state, attempt),
    }
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(prop::sample::select(Event::ALL.to_vec()), 0..60)
}

fn beginnings() -> impl Strategy<Value = TaskState> {
    prop::sample::select(vec![TaskState::Waiting, TaskState::Scheduled])
}

proptest! {
    #[test]
    fn a_final_state_is_left_only_by_reviving_a_dead_task(mut state in beginnings(), events in events()) {
        for event in events {
            let (next, _) = apply(state, 0, event);
            if state.is_final() && next != state {
                prop_assert_eq!((state, event, next), (TaskState::Dead, Event::Revive, TaskState::Scheduled));
            }
            state = next;
        }
    }

    #[test]
    fn a_task_that_was_ever_dispatching_is_never_promised_undelivered(mut state in beginnings(), events in events()) {
        let mut attempt = 0;
        let mut was_dispatching = false;
        for event in events {
            (state, attempt) = apply(state, attempt, event);
            was_dispatching |= state == TaskState::Dispatching;
            let promised = cancel_outcome(state, Attempt::new(attempt)) == Ok(CancelOutcome::Cancelled);
            prop_assert!(!(was_dispatching && promised), "{} after {} attempts", state, attempt);
        }
    }

    #[test]
    fn nothing_reaches_the_broker_but_through_a_claim(mut state in beginnings(), events in events()) {
        let mut attempt = 0;
        for event in events {
            (state, attempt) = apply(state, attempt, event);
            prop_assert!(!state.is_in_flight() || attempt > 0);
        }
    }
}
