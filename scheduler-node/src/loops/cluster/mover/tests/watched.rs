//! Whether the work on a move shows as stalled.

use super::*;
use crate::loops::cluster::mover::work::LEAVING_AT_LEAST;
use crate::supervise::{LoopKind, Pulse};

#[tokio::test]
async fn a_step_of_a_move_that_hangs_is_a_stall_of_its_loop() {
    let moving = Moving::new().await;
    // The step reads the fence of the target.
    let mut holder = moving.tests[1].pool.acquire().await.unwrap();
    for sql in ["BEGIN", "LOCK TABLE duetime.shard IN ACCESS EXCLUSIVE MODE"] {
        sqlx::raw_sql(sql).execute(&mut *holder).await.unwrap();
    }
    let pulse = Pulse::with_bound(|_| Duration::from_millis(500));
    let mover = Mover { shared: Arc::clone(&moving.work.shared) };
    let stop = CancellationToken::new();
    let task = spawn_child(pulse.run(LoopKind::Mover, mover.run(stop.clone())));
    let is_stalled = || pulse.stalled(Instant::now()).contains(&LoopKind::Mover);
    eventually("it is stalled", is_stalled).await;
    sqlx::raw_sql("ROLLBACK").execute(&mut *holder).await.unwrap();
    let target = moving.ends.target.clone();
    eventually("the target has the shard", || target.owned_shards.own_since(SHARD).is_some()).await;
    stop.cancel();
    soon("the end of the mover", task).await.unwrap();
    assert!(!is_stalled(), "it is at work no more");
}

#[tokio::test]
async fn each_page_of_a_long_step_is_progress() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    let (ends, epoch) = (moving.ends.clone(), moving.epoch);
    let fence = ends.source.sql.move_fence(SHARD).await.unwrap().expect("it leaves");
    let pulse = Pulse::with_bound(|_| Duration::ZERO);
    pulse.run(LoopKind::Mover, async { moving.work.unit = Some(at_work()) }).await;
    for step in ["a round", "the end of notes", "the clean-up of a target", "a pause"] {
        // Time has passed since the last progress.
        ends.source.sql.move_fence(SHARD).await.unwrap();
        let before = Instant::now();
        assert!(!pulse.stalled(before).is_empty());
        match step {
            "a round" => assert_eq!(moving.work.round(&ends, epoch).await.unwrap(), Round::Short),
            "the end of notes" => assert!(moving.work.forget_changes(&ends, &fence).await.unwrap()),
            "a pause" => moving.work.pause(Instant::now()).await,
            _ => assert!(moving.work.empty_target(&ends, epoch, &[]).await.unwrap()),
        }
        assert!(pulse.stalled(before).is_empty(), "{step}");
    }
}

#[tokio::test]
async fn a_cut_that_waits_for_its_turn_is_no_stall() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    moving.work.leaving_since = Instant::now().checked_sub(LEAVING_AT_LEAST);
    let (ends, epoch, shared) = (moving.ends.clone(), moving.epoch, Arc::clone(&moving.work.shared));
    let pulse = Pulse::with_bound(|_| Duration::ZERO);
    pulse.run(LoopKind::Mover, async { moving.work.unit = Some(at_work()) }).await;
    let _turn_of_another = shared.cuts.acquire().await.unwrap();
    let home = Arc::clone(&moving.ends.source.sql);
    let beats = async {
        let noted = async { while home.move_list().await.unwrap()[0].step != MovePhase::Cutting {} };
        soon("the note of the cut", noted).await;
        // The first may be that of the note.
        for _ in 0..3 {
            let before = Instant::now();
            eventually("it gets on", || pulse.stalled(before).is_empty()).await;
        }
    };
    tokio::select! {
        stepped = Box::pin(moving.work.cut(&ends, epoch)) => panic!("it has no turn: {stepped:?}"),
        () = beats => {}
    }
}
