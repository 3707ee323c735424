use super::{Checked, check_starts, read, read::Start};

/// A task of shard 7.
const TASK: &str = "018f0000-0000-7000-8000-000000000007";
const END: &str = "2026-01-01T00:00:59.000000Z";

/// The history of a node, from lines such as `claimed attempt=1 epoch=3`; a moment passes with each line.
fn start(name: &str, is_running: bool, steps: &[&str]) -> Start {
    let line = |(second, step): (usize, &&str)| {
        let mut words = step.split(' ');
        let word = words.next().unwrap();
        let mut line = serde_json::json!({ "at": format!("2026-01-01T00:00:{second:02}.000000Z"), "step": word });
        if !word.starts_with("shard_") {
            line["task"] = TASK.into();
        }
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            line[key] = value.parse::<i64>().map_or_else(|_| value.into(), Into::into);
        }
        line.to_string()
    };
    let text: Vec<String> = steps.iter().enumerate().map(line).collect();
    read::start(name, &text.join("\n"), is_running, END).unwrap()
}

fn accepted(starts: &[Start]) {
    let checked = check_starts(starts).unwrap();
    assert_eq!((checked.tasks, checked.undecided), (1, 0));
}

fn refused(starts: &[Start], with: &str) {
    let error = check_starts(starts).unwrap_err().to_string();
    assert!(error.contains(with), "{error}");
}

const OWNED: &str = "shard_acquired shard=7 epoch=3";
const NEXT: &str = "shard_acquired shard=7 epoch=4";
const CLAIMED: &str = "claimed attempt=1 epoch=3";
const PUBLISHED: &str = "published attempt=1";
const CONFIRMED: &str = "confirmed attempt=1";
const SUCCEEDED: &str = "finished attempt=1 outcome=succeeded";

#[test]
fn the_life_of_a_task_is_a_path() {
    accepted(&[start("a", true, &[OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED, SUCCEEDED])]);
}

#[test]
fn a_report_at_another_node_and_before_the_confirm_is_a_path() {
    let owner = start("a", true, &[OWNED, CLAIMED, PUBLISHED, CONFIRMED]);
    accepted(&[owner, start("b", true, &["submitted", SUCCEEDED])]);
}

#[test]
fn a_retry_a_death_and_a_revival_are_a_path() {
    let first = [OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED, "failed attempt=1"];
    let second = ["claimed attempt=2 epoch=3", "published attempt=2", "returned attempt=2"];
    let end = ["finished attempt=2 outcome=dead", "revived", "claimed attempt=3 epoch=3", "published attempt=3"];
    accepted(&[start("a", true, &[&first[..], &second, &end].concat())]);
}

#[test]
fn a_takeover_after_a_kill_is_a_path_and_its_unknown_steps_are_found() {
    // The first owner dies before it can tell its claim and its publish.
    let killed = start("a", false, &[OWNED, "submitted"]);
    let next = start("b", true, &[NEXT, "rescued attempt=1 epoch=4", PUBLISHED, CONFIRMED, SUCCEEDED]);
    accepted(&[killed, next]);
}

#[test]
fn a_rescue_without_a_claim_is_refused_where_no_node_was_killed() {
    let first = start("a", true, &[OWNED, "submitted"]);
    let next = start("b", true, &[NEXT, "rescued attempt=1 epoch=4", PUBLISHED, CONFIRMED, SUCCEEDED]);
    refused(&[first, next], "Rescued { attempt: 1");
}

#[test]
fn a_publish_without_a_claim_is_refused() {
    refused(&[start("a", true, &[OWNED, "submitted", PUBLISHED])], "next: Published(1)");
}

#[test]
fn a_publish_without_a_claim_is_refused_also_where_the_node_was_killed_after_it() {
    refused(&[start("a", false, &[OWNED, "submitted", PUBLISHED])], "next: Published(1)");
}

#[test]
fn a_second_claim_of_an_attempt_is_refused() {
    refused(&[start("a", true, &[OWNED, "submitted", CLAIMED, CLAIMED])], "next: Claimed");
}

#[test]
fn a_claim_of_the_next_attempt_without_a_failure_is_refused() {
    let steps = [OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED, "claimed attempt=2 epoch=3"];
    refused(&[start("a", true, &steps)], "next: Claimed { attempt: 2");
}

#[test]
fn an_attempt_that_is_counted_twice_is_refused() {
    refused(&[start("a", true, &[OWNED, "submitted", "claimed attempt=2 epoch=3"])], "next: Claimed { attempt: 2");
}

#[test]
fn a_settle_without_a_publish_is_refused() {
    refused(&[start("a", true, &[OWNED, "submitted", CLAIMED, SUCCEEDED])], "next: Succeeded(1)");
}

#[test]
fn a_claim_of_an_ended_task_is_refused() {
    let steps = [OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED, SUCCEEDED, "claimed attempt=2 epoch=3"];
    refused(&[start("a", true, &steps)], "next: Claimed");
}

#[test]
fn a_second_end_is_refused() {
    let steps = [OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED, SUCCEEDED, SUCCEEDED];
    refused(&[start("a", true, &steps)], "next: Succeeded(1)");
}

#[test]
fn a_cancel_of_a_claimed_task_is_refused() {
    refused(&[start("a", true, &[OWNED, "submitted", CLAIMED, "cancelled attempt=1"])], "next: Cancelled(1)");
}

#[test]
fn a_claim_after_a_cancel_at_another_node_is_refused() {
    let owner = start("a", true, &[OWNED, "submitted", CLAIMED, PUBLISHED]);
    refused(&[owner, start("b", true, &["cancelled attempt=0"])], "next: ");
}

#[test]
fn an_expiry_of_a_claimed_task_is_refused() {
    refused(&[start("a", true, &[OWNED, "submitted", CLAIMED, "expired"])], "next: Claimed");
}

#[test]
fn a_revival_of_a_task_that_is_not_dead_is_refused() {
    refused(&[start("a", true, &[OWNED, "submitted", "revived"])], "next: Revived");
}

#[test]
fn a_release_of_a_task_that_was_claimed_is_refused() {
    let steps = [OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED, "failed attempt=1", "released"];
    refused(&[start("a", true, &steps)], "next: Released");
}

#[test]
fn a_claim_whose_answer_comes_before_the_one_of_what_allowed_it_is_a_path() {
    let first = [OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED];
    let second = ["claimed attempt=2 epoch=3", "published attempt=2"];
    let revived =
        [&["finished attempt=1 outcome=dead", "revived"][..], &["revived", "finished attempt=1 outcome=dead"]];
    for reason in [&["failed attempt=1"][..], revived[0], revived[1]] {
        accepted(&[start("a", true, &[&first[..], &second, reason, &["confirmed attempt=2"]].concat())]);
    }
}

#[test]
fn two_requests_of_clients_whose_answers_come_in_the_other_order_are_a_path() {
    let dead = [OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED, "finished attempt=1 outcome=dead"];
    for requests in [["revived", "cancelled attempt=1"], ["cancelled attempt=1", "revived"]] {
        accepted(&[start("a", true, &[&dead[..], &requests].concat())]);
    }
}

#[test]
fn a_claim_under_an_old_epoch_is_refused() {
    // The task fails under the second owner before the first one claims it anew.
    let first = start("a", true, &[OWNED, "submitted", CLAIMED, PUBLISHED, CONFIRMED, "claimed attempt=3 epoch=3"]);
    let steps = [NEXT, "failed attempt=1", "claimed attempt=2 epoch=4", "published attempt=2", "failed attempt=2"];
    refused(&[first, start("b", true, &steps)], "Claimed { attempt: 3");
}

#[test]
fn a_claim_under_an_epoch_that_the_node_does_not_hold_is_refused() {
    refused(&[start("a", true, &["submitted", CLAIMED])], "not its own");
}

#[test]
fn two_owners_of_one_epoch_are_refused() {
    let other = start("b", true, &[OWNED]);
    refused(&[start("a", true, &[OWNED, "submitted"]), other], "both acquire epoch 3");
}

#[test]
fn an_epoch_that_falls_is_refused() {
    refused(&[start("a", true, &[NEXT, OWNED, "submitted"])], "after a later one");
}

#[test]
fn a_claim_under_an_old_epoch_is_refused_by_the_clock_of_the_database() {
    let first = start("a", true, &[OWNED, "submitted", "claimed attempt=1 epoch=3 now=2026-01-01T00:00:09.000000Z"]);
    let next = start("b", true, &[NEXT, "rescued attempt=1 epoch=4 now=2026-01-01T00:00:08.000000Z"]);
    refused(&[first, next], "after one under epoch 4");
}

#[test]
fn a_gap_leaves_steps_unknown_and_an_undamaged_file_does_not() {
    let whole = start("a", true, &[OWNED, CLAIMED, "confirmed attempt=1"]);
    refused(&[whole], "next: Confirmed(1)");
    accepted(&[start("a", true, &[OWNED, CLAIMED, "gap lost=1", "confirmed attempt=1"])]);
}

#[test]
fn a_run_with_too_many_undecided_tasks_is_refused_and_one_in_doubt_may_have_more() {
    for (tasks, undecided, in_doubt, holds) in [
        (1_000, 10, false, true),
        (1_000, 11, false, false),
        (1_000, 250, true, true),
        (1_000, 251, true, false),
        // Too few to be a share.
        (10, 5, false, true),
        (10, 6, true, false),
    ] {
        let checked = Checked { tasks, undecided, in_doubt, ..Checked::default() };
        assert_eq!(checked.decided().is_ok(), holds, "{undecided} of {tasks}, in doubt: {in_doubt}");
    }
}

#[test]
fn a_run_is_in_doubt_after_a_kill_or_a_gap_and_no_other() {
    for (is_running, last, in_doubt) in
        [(true, "submitted", false), (false, "submitted", true), (true, "gap lost=1", true)]
    {
        let checked = check_starts(&[start("a", is_running, &[OWNED, "submitted", last])]).unwrap();
        assert_eq!(checked.in_doubt, in_doubt, "{last}, running: {is_running}");
    }
}

/// A history of these lines.
fn history(is_running: bool, lines: &[&str]) -> anyhow::Result<Start> {
    read::start("a", &lines.join("\n"), is_running, END)
}

#[test]
fn a_line_that_cannot_be_read_is_refused_except_where_a_kill_or_a_full_disk_tore_it() {
    let (started, torn) = (
        r#"{"at":"2026-01-01T00:00:00.000000Z","step":"started","node":"a","incarnation":"b","version":"0.3.0"}"#,
        r#"{"at":"2026-01-01T"#,
    );
    let gap = r#"{"at":"2026-01-01T00:00:01.000000Z","step":"gap","lost":2}"#;
    let stopped = r#"{"at":"2026-01-01T00:00:02.000000Z","step":"stopped"}"#;
    for (is_running, lines) in [(false, vec![started, torn, stopped]), (true, vec![started, torn])] {
        let error = history(is_running, &lines).unwrap_err().to_string();
        assert!(error.contains(torn), "{error}");
    }
    let killed = history(false, &[started, torn]).unwrap();
    assert_eq!((killed.is_whole, killed.lines.len()), (false, 2));
    let full = history(false, &[started, torn, torn, gap, stopped]).unwrap();
    assert_eq!((full.is_whole, full.lines.len()), (true, 3));
    assert!([&killed.lines[1], &full.lines[1]].iter().all(|line| line.step.leaves_doubt()));
    // A step that no version writes is not torn.
    let unknown = r#"{"at":"2026-01-01T00:00:00.000000Z","step":"vanished","task":"t"}"#;
    history(false, &[unknown, stopped]).unwrap_err();
}
