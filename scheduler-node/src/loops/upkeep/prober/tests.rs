use common::{ids::RealmId, queue::QueueBook};
use prometheus::Registry;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::*;
use crate::{
    coordination::tests::SOON,
    desk::tests::{Counter, fresh},
    supervise::spawn_child,
    working_set::{database::UNWRITTEN_FOR, failures::tests::Log},
};

/// The prober of the first database, on a node that knows its realm and has not reached the database yet.
fn prober(counter: &Counter) -> Prober {
    let database = counter.databases.home().clone();
    let mut standing = RealmStanding::default();
    standing.realms.found(RealmId::new(Uuid::from_u128(1)));
    Prober {
        fitness: Arc::new(watch::Sender::new(NodeFitness::unproven([database.name().clone()]))),
        database,
        is_home: true,
        places: counter.store.places().clone(),
        stated_shards: None,
        cluster: watch::Sender::default(),
        realm: watch::channel(standing).1,
        admitted: watch::Sender::default(),
        metrics: Arc::new(Metrics::register(&Registry::new()).expect("a fresh registry takes them")),
        misfit: mpsc::channel(1).0,
    }
}

#[tokio::test]
async fn a_database_that_left_messages_unwritten_is_shown_for_a_minute_unless_it_was_away_meanwhile() {
    let (counter, _test) = fresh().await;
    let prober = prober(&counter);
    let (database, mut guard) = (&prober.database, Guard::new(prober.realm.clone()));
    let mut probe_shows_it = async || {
        let probed = prober.probe(&mut true, &mut true, &mut guard).await;
        assert!(probed.is_ok(), "the database answers");
        prober.report(None, &mut LoggedReasons::default());
        prober.fitness.borrow().unwritable.contains(database.name())
    };
    database.leave_messages();
    assert!(!probe_shows_it().await, "it comes back from an outage");
    database.leave_messages();
    assert!(probe_shows_it().await, "it answers all the time");
    *database.unwritten.lock() = Instant::now().checked_sub(UNWRITTEN_FOR);
    assert!(!probe_shows_it().await, "the minute is over");
}

#[tokio::test]
async fn an_archive_without_partitions_gets_them_before_the_node_counts_its_database_as_usable() {
    let (counter, test) = fresh().await;
    test.drop_partitions().await;
    let prober = prober(&counter);
    let mut guard = Guard::new(prober.realm.clone());
    let probed = prober.probe(&mut true, &mut false, &mut guard).await;
    assert!(probed.is_ok(), "the database answers");
    let made = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'duetime.archive'::regclass";
    let made: i64 = sqlx::query_scalar(made).fetch_one(&test.pool).await.expect("it answers");
    assert!(made > 0);
}

#[tokio::test]
async fn each_reason_why_a_database_cannot_be_used_has_one_line_in_the_log() {
    let log = Log::keep();
    let (counter, _test) = fresh().await;
    let prober = prober(&counter);
    let mut logged = LoggedReasons::default();
    let lines = || log.count("the database cannot be used");
    for _ in 0..10 {
        for why in ["connection refused", "no answer"] {
            prober.report(Some(Unfit::away(why.to_owned())), &mut logged);
            let shown = prober.fitness.borrow().unfit.values().map(|unfit| unfit.why.clone()).collect::<Vec<_>>();
            assert_eq!(shown, [why], "the newest reason is shown");
        }
    }
    assert_eq!(lines(), 2);
    for attempt in 0..50 {
        prober.report(Some(Unfit::away(format!("attempt {attempt} failed"))), &mut logged);
    }
    assert_eq!(lines(), REASONS_LOGGED);
    prober.report(None, &mut logged);
    prober.report(Some(Unfit::away("no answer".to_owned())), &mut logged);
    assert_eq!(lines(), REASONS_LOGGED + 1, "it could be used meanwhile");
}

#[tokio::test]
async fn a_node_uses_no_database_before_it_knows_the_queues_and_the_keys_of_receipts() {
    let [main, other] = ["main", "other"].map(DatabaseName::new);
    let used = BTreeSet::from([main.clone(), other.clone()]);
    let (fitness, found) = watch::channel(NodeFitness { databases: 2, used: used.clone(), ..NodeFitness::default() });
    let (keys, receipts) = watch::channel(None);
    let (tell, mut told) = watch::channel(session_keeper::MemberFitness { used, ..Default::default() });
    let (books, stop) = (Books::default(), CancellationToken::new());
    let can_dispatch = until_home_is_read(Arc::clone(&books), receipts);
    let telling = spawn_child(tell_cluster(found, can_dispatch, tell, stop.clone()));
    let mut until_told = async |is_so: &dyn Fn(&session_keeper::MemberFitness) -> bool| {
        let waited = tokio::time::timeout(SOON, told.wait_for(is_so)).await;
        waited.expect("it is told in time").expect("the loop runs").clone()
    };
    until_told(&|told| told.used.is_empty() && !told.is_fit_for(&other)).await;
    keys.send_replace(Some(Arc::default()));
    fitness.send_modify(|found| found.broker_unfit = Some("away".to_owned()));
    let with_keys = until_told(&|told| told.broker_unfit).await;
    assert!(with_keys.used.is_empty(), "the queues are missing");
    books.store(Arc::new(QueueBook::new(1, [])));
    until_told(&|told| told.is_fit_for(&main) && told.is_fit_for(&other)).await;
    fitness.send_modify(|found| drop(found.unfit.insert(main.clone(), Unfit::away("no answer".to_owned()))));
    let later = until_told(&|told| told.unfit.contains(&main)).await;
    assert!(later.is_fit_for(&other), "it has known the queues since");
    stop.cancel();
    telling.await.expect("the loop ends");
}
