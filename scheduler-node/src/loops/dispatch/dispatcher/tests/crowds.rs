//! The claims of a crowd that leave the heap together.

use common::delay::turn::CROWD;

use super::*;

/// A dispatcher with the tasks of a crowd that is overdue.
async fn with_a_crowd(loops: &Loops) -> Dispatcher {
    loops.database().sql.ping().await.unwrap();
    let entry =
        |_| Entry { wake_at: UnixMicros::FIRST, id: fixture::fresh_id_of(ShardId::new(0)), kind: WakeKind::Claim };
    loops.database().owned_shards.offer((0..=CROWD).map(entry));
    loops.dispatcher(loops.claims().0, Lead::new(LONG, clock::instant()))
}

#[tokio::test]
async fn of_a_crowd_several_claims_leave_the_heap_together_and_of_the_rest_one() {
    let loops = Loops::new().await;
    let dispatcher = with_a_crowd(&loops).await;
    for entries in [CLAIMS_IN_FLIGHT * 100, 100] {
        let Turn::Wake(batch) = dispatcher.turn() else { panic!("they are due") };
        assert_eq!((batch.entries.len(), batch.each, batch.is_full), (entries, 100, true));
    }
}

#[tokio::test]
async fn claims_of_a_backlog_follow_each_other_where_a_window_has_room_for_one_but_not_for_all() {
    let loops = Loops::new().await;
    let mut dispatcher = with_a_crowd(&loops).await;
    // A quarter of a window is not for the overdue.
    for (window, room, is_full) in [(200, 150, true), (100, 75, false)] {
        dispatcher.pace.window = window;
        let Turn::Wake(batch) = dispatcher.turn() else { panic!("they are due") };
        assert_eq!((batch.entries.len(), batch.each, batch.is_full), (room, 100, is_full));
        loops.database().owned_shards.give_back(batch.entries);
    }
}

#[tokio::test]
async fn of_a_crowd_two_claims_are_under_way_while_the_database_is_slow() {
    let loops = Loops::new().await;
    let mut dispatcher = with_a_crowd(&loops).await;
    dispatcher.pace.batch = 200;
    let mut size = ClaimSize::new(200);
    for took in [Duration::ZERO, LONG] {
        size.took(200, took, clock::instant());
    }
    dispatcher.size = Arc::new(Mutex::new(size));
    let Turn::Wake(batch) = dispatcher.turn() else { panic!("they are due") };
    assert_eq!((batch.entries.len(), batch.each, batch.places), (2 * 100, 100, PLACES_OF_A_SLOW_CLAIM));

    let (room_for_one, mut children) = (Arc::new(Semaphore::new(2)), JoinSet::new());
    let stop = CancellationToken::new();
    assert!(dispatcher.begin_claims(batch, &room_for_one, &mut children, &stop).now_or_never().is_none());
    assert_eq!(children.len(), 1, "the second waits until the first has ended");
}

#[tokio::test]
async fn what_waits_for_a_place_when_the_node_stops_goes_back_into_the_heap() {
    let loops = Loops::new().await;
    let dispatcher = with_a_crowd(&loops).await;
    let Turn::Wake(batch) = dispatcher.turn() else { panic!("they are due") };
    let (room_for_one, mut children, stop) = (Arc::new(Semaphore::new(1)), JoinSet::new(), CancellationToken::new());
    {
        let mut beginning = std::pin::pin!(dispatcher.begin_claims(batch, &room_for_one, &mut children, &stop));
        assert!(beginning.as_mut().now_or_never().is_none(), "the second claim waits for the first");
        stop.cancel();
        assert!(beginning.as_mut().now_or_never().is_some());
    }
    assert_eq!((children.len(), loops.database().owned_shards.heap_len()), (1, CROWD + 1 - 100));
}

#[tokio::test]
async fn no_claim_begins_once_the_broker_is_blocked_or_the_shard_is_released() {
    let loops = Loops::new().await;
    let mut dispatcher = with_a_crowd(&loops).await;
    let (places, mut children, stop) = (Arc::new(Semaphore::new(4)), JoinSet::new(), CancellationToken::new());
    let up = dispatcher.broker.clone();
    let blocked = watch::channel(BrokerState::Up { blocked: true }).1;
    for (broker, releases, left) in [(blocked, false, CROWD + 1), (up, true, 0)] {
        let Turn::Wake(batch) = dispatcher.turn() else { panic!("they are due") };
        dispatcher.broker = broker;
        if releases {
            loops.database().owned_shards.begin_release(&[ShardId::new(0)]);
        }
        dispatcher.begin_claims(batch, &places, &mut children, &stop).await;
        let owned_shards = &loops.database().owned_shards;
        assert_eq!((children.len(), owned_shards.in_flight(), owned_shards.heap_len()), (0, 0, left));
    }
}

#[tokio::test]
async fn deadlines_and_rescues_of_a_crowd_hold_no_place_of_a_claim_while_they_have_one_of_their_own() {
    let loops = Loops::new().await;
    let dispatcher = with_a_crowd(&loops).await;
    let of = |kind| Entry { wake_at: UnixMicros::FIRST, id: fixture::fresh_id_of(ShardId::new(0)), kind };
    loops.database().owned_shards.offer([WakeKind::Deadline, WakeKind::Rescue].map(of));
    let Turn::Wake(mut batch) = dispatcher.turn() else { panic!("they are due") };
    let others = |batch: &Batch| batch.entries.iter().filter(|entry| entry.kind != WakeKind::Claim).count();
    let (mut children, all) = (JoinSet::new(), batch.entries.len());
    dispatcher.begin_others(&mut batch, &Arc::new(Semaphore::new(0)), &mut children);
    assert_eq!((children.len(), others(&batch), batch.entries.len()), (0, 2, all), "they go with the claims");
    dispatcher.begin_others(&mut batch, &Arc::new(Semaphore::new(1)), &mut children);
    assert_eq!((children.len(), others(&batch), batch.entries.len()), (1, 0, all - 2));
}

/// Deadlines wait for their moments.
#[test]
fn deadlines_and_rescues_of_a_crowd_hold_one_place_beside_its_claims() {
    let kinds = [WakeKind::Deadline, WakeKind::Claim, WakeKind::Rescue, WakeKind::Claim];
    for (each, places, parts) in
        [(4, 1, vec![(4, 1)]), (4, 2, vec![(2, 2), (2, 1)]), (1, 1, vec![(1, 1), (1, 1), (2, 1)])]
    {
        let entry = |kind| Entry { wake_at: UnixMicros::FIRST, id: fixture::fresh_id_of(ShardId::new(0)), kind };
        let batch = Batch { entries: kinds.map(entry).into(), ahead: Duration::ZERO, is_full: false, each, places };
        let divided = batch.into_parts(4);
        assert!(divided.iter().map(|(part, holds)| (part.len(), *holds)).eq(parts), "{divided:?}");
    }
}
