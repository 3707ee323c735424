//! Which loops count as stalled, and from when on.

use super::*;
use crate::supervise::{Crew, spawn_child};

fn pulse() -> Pulse {
    Pulse::with_bound(|_| Duration::from_secs(10))
}

fn after(begin: Instant, seconds: u64) -> Instant {
    begin + Duration::from_secs(seconds)
}

#[test]
fn an_idle_loop_is_never_stalled() {
    let (pulse, begin) = (pulse(), Instant::now());
    assert_eq!(pulse.stalled(after(begin, 1_000_000)), BTreeSet::new());
    drop(pulse.work(LoopKind::Settler, begin));
    assert_eq!(pulse.stalled(after(begin, 1_000_000)), BTreeSet::new());
    assert_eq!(pulse.reasons(after(begin, 1_000_000)), Vec::<String>::new());
}

#[test]
fn work_without_progress_is_stalled_beyond_the_bound_until_it_goes_on_or_ends() {
    let (pulse, begin) = (pulse(), Instant::now());
    let work = pulse.work(LoopKind::Settler, begin);
    assert_eq!(pulse.stalled(after(begin, 10)), BTreeSet::new());
    assert_eq!(pulse.stalled(after(begin, 11)), BTreeSet::from([LoopKind::Settler]));
    assert_eq!(pulse.reasons(after(begin, 11)), ["the loop settler has made no progress for more than 10 s"]);
    work.beat_at(after(begin, 11));
    assert_eq!(pulse.stalled(after(begin, 21)), BTreeSet::new());
    assert_eq!(pulse.stalled(after(begin, 22)), BTreeSet::from([LoopKind::Settler]));
    drop(work);
    assert_eq!(pulse.stalled(after(begin, 22)), BTreeSet::new());
}

#[test]
fn of_units_that_overlap_one_without_progress_is_enough() {
    let (pulse, begin) = (pulse(), Instant::now());
    let hangs = pulse.work(LoopKind::ReadyStarter, begin);
    let goes_on = pulse.work(LoopKind::ReadyStarter, begin);
    goes_on.beat_at(after(begin, 20));
    assert_eq!(pulse.stalled(after(begin, 21)), BTreeSet::from([LoopKind::ReadyStarter]));
    drop(hangs);
    assert_eq!(pulse.stalled(after(begin, 21)), BTreeSet::new());
}

#[test]
fn labels_differ_and_are_snake_case() {
    let labels: BTreeSet<&str> = LoopKind::ALL.iter().map(|kind| kind.text()).collect();
    assert_eq!(labels.len(), LoopKind::ALL.len());
    for kind in LoopKind::ALL {
        assert_eq!(kind.text().replace('_', ""), format!("{kind:?}").to_lowercase());
    }
}

#[tokio::test]
async fn a_loop_and_its_children_are_watched_under_the_name_of_the_loop() {
    let pulse = pulse();
    let mut crew = Crew::new(&pulse);
    crew.spawn(LoopKind::Nudger, async {
        let _work = at_work();
        spawn_child(async {
            let _work = at_work();
            std::future::pending::<()>().await;
        });
        std::future::pending().await
    });
    let two = async {
        while pulse.units.lock().under_way.len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), two).await.expect("both begin");
    assert_eq!(pulse.stalled(after(Instant::now(), 11)), BTreeSet::from([LoopKind::Nudger]));
    assert!(at_work().0.is_none(), "no loop runs here");
}
