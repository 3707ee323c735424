use std::{collections::BTreeSet, time::Instant};

use futures::FutureExt;

use super::*;
use crate::{
    clock,
    loops::tests::{LONG, Loops, SUCCEED, confirmed, until},
    supervise::{LoopKind, Pulse},
};

#[tokio::test]
async fn confirms_are_gathered_until_no_due_message_waits_to_be_sent_or_the_window_is_half_full() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let lanes = Arc::<Lanes>::default();
    lanes.backlog.note(true, clock::instant());
    let (settlements, mut confirms) = Settlements::channel();
    settlements.confirmed(vec![confirmed(ids[1], SUCCEED)]).await;
    let mut batch = vec![confirmed(ids[0], SUCCEED)];

    loops.database().owned_shards.begin(ids);
    let full = loops.settler(ids.len(), &lanes);
    assert!(full.give_way(&mut batch, &mut confirms).now_or_never().is_some(), "the window needs its places");
    assert_eq!(batch.len(), 1);

    let roomy = loops.settler(ids.len() * 2, &lanes);
    {
        let mut way = std::pin::pin!(roomy.give_way(&mut batch, &mut confirms));
        assert!(way.as_mut().now_or_never().is_none(), "a due message waits to be sent");
        lanes.backlog.note(false, clock::instant());
        assert!(way.now_or_never().is_some());
    }
    assert_eq!(batch.len(), 2, "what came meanwhile is written together");
}

#[tokio::test]
async fn a_settler_whose_database_hangs_is_stalled_until_it_goes_on() {
    let loops = Loops::new().await;
    let ids = loops.claimed().await;
    let pulse = Pulse::with_bound(|_| Duration::from_millis(300));
    assert_eq!(pulse.stalled(Instant::now() + LONG), BTreeSet::new(), "it has no work yet");
    let mut hold = loops.test.pool.acquire().await.unwrap();
    let begin = "BEGIN; LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(begin).execute(&mut *hold).await.unwrap();
    let go_on = async {
        until(|| async { pulse.stalled(Instant::now()) == BTreeSet::from([LoopKind::Settler]) }).await;
        assert!(pulse.reasons(Instant::now())[0].contains("settler"));
        sqlx::raw_sql("COMMIT").execute(&mut *hold).await.unwrap();
    };
    tokio::join!(pulse.run(LoopKind::Settler, loops.settle(ids, SUCCEED)), go_on);
    assert_eq!(pulse.stalled(Instant::now() + LONG), BTreeSet::new(), "all is written");
    assert_eq!(loops.test.state_of(ids[0]).await.as_deref(), Some("succeeded"));
}
