use super::*;
use crate::task::oracle::{Event, transition};

#[test]
fn labels_are_those_of_the_sql_enum_in_its_order() {
    let schema = include_str!("../../../../migrations/0001_create_tasks.sql");
    let list = schema.split("duetime.task_state AS ENUM (").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
    let labels: Vec<&str> = list.split(',').map(|label| label.trim().trim_matches('\'')).collect();
    assert_eq!(labels, TaskState::ALL.map(TaskState::text));
    assert!(TaskState::ALL.is_sorted());
}

/// `task_finish.sql` looks for a state's name in a list of names with `strpos`.
#[test]
fn no_name_of_a_state_is_part_of_the_name_of_another_one_or_has_a_comma() {
    for state in TaskState::ALL {
        assert!(!state.text().is_empty() && !state.text().contains(','), "{state}");
        for other in TaskState::ALL.into_iter().filter(|other| *other != state) {
            assert!(!other.text().contains(state.text()), "{state} and {other}");
        }
    }
}

#[test]
fn a_state_has_one_spelling() {
    for state in TaskState::ALL {
        assert_eq!(serde_json::to_string(&state).unwrap(), format!("\"{state}\""));
    }
}

#[test]
fn every_state_is_exactly_one_of_changeable_in_flight_and_final() {
    for state in TaskState::ALL {
        let kinds = [state.may_be_changed(), state.is_in_flight(), state.is_final()];
        assert_eq!(kinds.into_iter().filter(|kind| *kind).count(), 1, "{state}");
        assert_eq!(state.may_be_cancelled(), transition(state, Event::Cancel).is_ok(), "{state}");
        assert_eq!(state.may_be_changed(), transition(state, Event::Move).is_ok(), "{state}");
    }
}

#[test]
fn only_a_task_never_claimed_is_promised_to_stay_undelivered() {
    for state in TaskState::ALL {
        for attempt in 0..3 {
            let outcome = cancel_outcome(state, Attempt::new(attempt));
            let cancellable = state.may_be_cancelled() || state == TaskState::Cancelled;
            let expected = match (cancellable, attempt) {
                (false, _) => Err(InFlight { state }),
                (true, 0) => Ok(CancelOutcome::Cancelled),
                (true, _) => Ok(CancelOutcome::NoFurtherAttempts),
            };
            assert_eq!(outcome, expected, "{state}, attempt {attempt}");
        }
    }
}
