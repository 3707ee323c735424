//! Reports that go back to the broker: those on one task in their order.

use std::collections::HashSet;

use super::*;
use crate::{
    loops::outcome::reporter::{
        incoming::ReadReport,
        line::{self, FailedAlone, HELD_MOST, KEPT_LONGEST},
    },
    working_set::retry::DOUBTS_ALONE,
};

const NEW: Duration = Duration::ZERO;

/// Reports that came so long ago.
async fn reports(bench: &mut bench::Bench, of: &[(TaskId, &str, Duration)]) -> Vec<ReadReport> {
    let (hand, mut reports) = (bench.hand().await, Vec::new());
    for (id, body, age) in of {
        hand.publish(RESULTS, body.as_bytes(), about(*id)).await;
        let mut message = bench.next().await;
        message.arrived_at = message.arrived_at.checked_sub(*age).expect("a moment");
        let event = AttemptEvent::Deadline;
        reports.push(ReadReport { id: *id, event, message, is_kept: false, left_out: None });
    }
    reports
}

/// A line that has these reports. No others come.
fn line_of(reports: Vec<ReadReport>) -> mpsc::Receiver<ReadReport> {
    let (line, end) = mpsc::channel(reports.len());
    for report in reports {
        line.try_send(report).expect("the line has room");
    }
    end
}

fn bodies<'a>(messages: impl IntoIterator<Item = &'a Incoming>) -> Vec<String> {
    messages.into_iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect()
}

fn bodies_of(reports: &[ReadReport]) -> Vec<String> {
    bodies(reports.iter().map(|report| &report.message))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_that_is_held_for_ten_minutes_goes_back_to_the_broker() {
    let (mut bench, id) = (bench::Bench::new().await, fixture::fresh_id());
    let mut held = reports(&mut bench, &[(id, "it", NEW)]).await;
    line::return_surplus(&mut held).await;
    assert_eq!(held.len(), 1, "it has just come");
    let arrived_at = &mut held[0].message.arrived_at;
    *arrived_at = arrived_at.checked_sub(HELD_LONGEST).expect("a moment");
    line::return_surplus(&mut held).await;
    assert!(held.is_empty());
    assert_eq!(bench.next().await.correlation_id, Some(id.to_string()), "it comes again");
}

/// The later report would come first otherwise, and the earlier one be stale.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_reports_on_the_task_of_one_that_goes_back_go_back_behind_it() {
    let (mut bench, [id, other]) = (bench::Bench::new().await, [fixture::fresh_id(), fixture::fresh_id()]);
    let all = [(id, "first", HELD_LONGEST), (other, "other", NEW), (id, "last", NEW)];
    let mut held = reports(&mut bench, &all).await;
    line::return_surplus(&mut held).await;
    assert_eq!(bodies_of(&held), ["other"]);
    assert_eq!(bodies(&next_of(&mut bench, 2).await), ["first", "last"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_of_too_many_held_reports_go_back_in_their_order() {
    let (mut bench, [first, last]) = (bench::Bench::new().await, [fixture::fresh_id(), fixture::fresh_id()]);
    let names: Vec<String> = (0..HELD_MOST).map(|place| place.to_string()).collect();
    let mut all = vec![(first, "old", HELD_LONGEST)];
    all.extend(names.iter().map(|name| (fixture::fresh_id(), name.as_str(), NEW)));
    all.extend([(last, "surplus 1", NEW), (first, "behind the old", NEW), (last, "surplus 2", NEW)]);
    let mut held = reports(&mut bench, &all).await;
    line::return_surplus(&mut held).await;
    assert_eq!(bodies_of(&held), names);
    assert_eq!(bodies(&next_of(&mut bench, 4).await), ["old", "surplus 1", "behind the old", "surplus 2"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_that_wait_behind_others_for_a_database_that_is_away_go_back_after_a_minute_and_later_ones_wait_on() {
    let (mut bench, [old, other]) = (bench::Bench::new().await, [fixture::fresh_id(), fixture::fresh_id()]);
    // The second report on a task stays behind the first.
    let all = [(old, "first", KEPT_LONGEST), (other, "other", NEW), (old, "last", NEW)];
    let mut end = line_of(reports(&mut bench, &all).await);
    let mut batch = Vec::new();
    line::return_old(&mut end, &mut batch, HashSet::new()).await;
    assert_eq!(bodies_of(&batch), ["other"]);
    assert_eq!(bodies(&next_of(&mut bench, 2).await), ["first", "last"]);
}

/// A success would be written before the failure that came first, and the task never be tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_behind_the_batch_that_goes_back_in_an_outage_goes_back_with_an_earlier_one_on_its_task() {
    let loops = Loops::new().await;
    let (ids, mut bench) = (loops.claimed().await, bench::Bench::new().await);
    loops.test.fill_disk("UPDATE", "task").await;
    let line = start_line(&loops, &mut bench, &[(ids[0], ReportStatus::Failed)]).await;
    until(|| async { line.capacity() == line.max_capacity() }).await;
    let body = Box::new(ResultBody::new(ReportStatus::Succeeded));
    let event = AttemptEvent::Reported { attempt: Attempt::new(1), body, from: None };
    let later = reports(&mut bench, &[(ids[0], "later", NEW)]).await.remove(0);
    line.try_send(ReadReport { event, ..later }).expect("the line has room");

    assert_eq!(bodies([&bench.next().await]), [""], "the outage has lasted");
    sqlx::raw_sql("DROP FUNCTION public.fill_disk() CASCADE").execute(&loops.test.pool).await.unwrap();
    assert_eq!(bodies([&bench.next().await]), ["later"]);
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("dispatching"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_whose_connection_is_gone_take_no_places_in_the_line() {
    let (mut bench, id) = (bench::Bench::new().await, fixture::fresh_id());
    let gone = reports(&mut bench, &[(id, "it", NEW)]).await;
    bench.drop_connections().await;
    assert_eq!(bench.next().await.correlation_id, Some(id.to_string()), "it comes again");
    let mut end = line_of(gone);
    let mut batch = Vec::new();
    line::return_old(&mut end, &mut batch, HashSet::new()).await;
    assert!(batch.is_empty() && end.is_empty());
}

/// A pass that writes nothing tries few reports alone. Those of them that go back to the broker come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_on_tasks_that_failed_alone_are_tried_last_also_when_they_come_again() {
    let [first, last, other] = [fixture::fresh_id(), fixture::fresh_id(), fixture::fresh_id()];
    let mut failed_alone = FailedAlone::default();
    for id in [first, last] {
        failed_alone.note(HashSet::from([id]));
    }
    let all = [(last, "last", NEW), (first, "first", NEW), (other, "other", NEW), (first, "behind the first", NEW)];
    let mut bench = bench::Bench::new().await;
    let mut again = reports(&mut bench, &all).await;
    failed_alone.put_last(&mut again);
    assert_eq!(bodies_of(&again), ["other", "first", "behind the first", "last"]);
}

/// The first pass leaves it with those that it does not try alone, and later ones begin with others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_behind_many_without_a_partition_is_applied() {
    let (loops, mut bench) = (Loops::new().await, bench::Bench::new().await);
    loops.keep_longer();
    let (mut lacking, mut last) = (Vec::new(), None);
    while lacking.len() < 2 * DOUBTS_ALONE {
        let [free, kept_longer, _] = loops.claimed().await;
        lacking.push(kept_longer);
        last = Some(free);
    }
    let last = last.expect("a task");
    let all: Vec<_> = lacking.iter().chain([&last]).map(|id| (*id, ReportStatus::Succeeded)).collect();
    let _line = start_line(&loops, &mut bench, &all).await;
    until(|| async { loops.test.state_of(last).await.as_deref() == Some("succeeded") }).await;
}
