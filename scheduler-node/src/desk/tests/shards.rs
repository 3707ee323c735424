//! Operators' requests about shards and databases, on two real databases. No loop carries the moves out here.

use std::sync::Arc;

use common::{
    access::Scope,
    cluster::{self, ClusterView},
    ids::DatabaseName,
    shard::Standing,
    wire::{
        Problem,
        shard::{DatabaseView, MoveAnswer, MoveRequest, RebalanceRequest},
    },
};
use sqlx::{AssertSqlSafe, Executor};
use tokio::sync::watch;

use super::{
    Counter, PLAIN, counter, fresh, lower_half, with_one_of_two_gone, with_two_databases_among,
    with_two_of_three_databases,
};
use crate::{
    coordination::{
        Views,
        tests::{member, node},
    },
    store::tests::fixture::{self, TestDatabase},
};

/// A counter with the shards 0 to 63 in `main` and 64 to 127 in `east`, by the fence rows too.
pub(crate) async fn divided() -> (Counter, [TestDatabase; 2]) {
    divided_among(watch::channel(Arc::default()).1).await
}

async fn divided_among(views: Views) -> (Counter, [TestDatabase; 2]) {
    let (counter, tests) = with_two_databases_among(views).await;
    tests[0].pool.execute("DELETE FROM duetime.shard WHERE id >= 64").await.unwrap();
    tests[1].pool.execute("DELETE FROM duetime.shard WHERE id < 64").await.unwrap();
    (counter, tests)
}

async fn asked(counter: &Counter, shards: &str, to: &str) -> Result<MoveAnswer, Problem> {
    let request = MoveRequest { shards: shards.parse().expect("a set"), to: DatabaseName::new(to) };
    counter.desk.shards_move(request, "ann").await
}

/// Has the fence rows say that the shards from 64 on are in `main`, as after moves.
async fn moved_to_main(tests: &[TestDatabase; 2]) {
    tests[1].pool.execute("UPDATE duetime.shard SET status = 'gone', epoch = 5").await.unwrap();
    let here = "INSERT INTO duetime.shard (id, epoch) SELECT g, 6 FROM generate_series(64, 127) AS g";
    tests[0].pool.execute(here).await.unwrap();
    tests[0].pool.execute("DELETE FROM duetime.move").await.unwrap();
}

async fn producers_may_submit(test: &TestDatabase) -> bool {
    let may = "SELECT has_function_privilege('duetime_producer', 'duetime.submit'::regproc::oid, 'EXECUTE')";
    sqlx::query_scalar(may).fetch_one(&test.pool).await.expect("asked")
}

fn summary(view: &DatabaseView) -> (String, String, String, Standing) {
    (view.shards.to_string(), view.leaving.to_string(), view.arriving.to_string(), view.standing)
}

fn seen(shards: &str, leaving: &str, arriving: &str, standing: Standing) -> (String, String, String, Standing) {
    (shards.to_owned(), leaving.to_owned(), arriving.to_owned(), standing)
}

#[tokio::test]
async fn shards_that_are_asked_to_move_are_listed_until_they_have() {
    let (counter, tests) = divided().await;
    let answer = asked(&counter, "60-70", "east").await.expect("accepted");
    assert_eq!((answer.shards.to_string(), answer.already.to_string()), ("60-63".to_owned(), "64-70".to_owned()));
    let list = counter.desk.move_list().await.expect("read");
    assert_eq!((list.moves.len(), list.moves[0].from.as_str(), list.moves[0].to.as_str()), (4, "main", "east"));
    assert_eq!((list.moves[0].requested_by.as_str(), list.moves[0].percent), ("ann", None));
    let progress =
        "UPDATE duetime.move SET step = 'copying', started_at = clock_timestamp() - interval '10 s', rows_total = 400,
                           rows_copied = 100, node = 'a', problem = 'lock timeout' WHERE shard = 60";
    tests[0].pool.execute(progress).await.unwrap();
    let list = counter.desk.move_list().await.expect("read");
    assert_eq!((list.moves[0].percent, list.moves[0].problem.as_deref()), (Some(25), Some("lock timeout")));
    assert!(list.moves[0].left_ms >= Some(29_000), "three quarters are left: {:?}", list.moves[0]);
    let shards = counter.desk.shard_list(false).await.expect("read").shards;
    assert_eq!((shards.len(), shards[60].moves_to.as_ref().map(|name| name.as_str())), (128, Some("east")));
    assert_eq!((shards[59].moves_to.as_ref(), shards[64].database.as_str(), shards[64].load), (None, "east", None));
    let databases = counter.desk.database_list(false).await.expect("read").databases;
    assert_eq!(summary(&databases[0]), seen("0-63", "60-63", "", Standing::Serving));
    assert_eq!(summary(&databases[1]), seen("64-127", "", "60-63", Standing::Serving));
    assert!(databases.iter().all(|view| view.up && view.place.starts_with("postgres://")), "{databases:?}");
    assert_eq!([databases[0].first, databases[1].first], [true, false]);
}

#[tokio::test]
async fn a_request_that_cannot_be_carried_out_changes_nothing_and_says_why() {
    let (counter, _tests) = divided().await;
    asked(&counter, "10", "east").await.expect("accepted");
    for (shards, to, status, field, words) in [
        ("", "east", 422, Some("shards"), "names no shard"),
        ("0", "west", 422, Some("to"), "there are: main, east"),
        ("120-130", "main", 422, Some("shards"), "no shards 128-130; its shards are 0-127"),
        ("64-70", "east", 409, None, "are in database `east` already"),
        ("9-10", "east", 409, None, "the shards 10 move already"),
    ] {
        let problem = asked(&counter, shards, to).await.expect_err("refused");
        assert_eq!((problem.status, problem.field.as_deref()), (status, field), "{problem}");
        assert!(problem.detail.contains(words), "{problem}");
    }
    assert_eq!(counter.desk.move_list().await.expect("read").moves.len(), 1);
}

#[tokio::test]
async fn a_database_that_a_node_does_not_use_yet_receives_no_shards_and_the_answer_names_the_node() {
    let uses = |databases: &[&str]| Some(databases.iter().copied().map(DatabaseName::new).collect());
    let (a, b) = (node("a"), node("b"));
    let mut view = ClusterView::default();
    view.members.insert(a.name.clone(), cluster::Member { databases: uses(&["main", "east"]), ..member(&a) });
    view.members.insert(b.name.clone(), cluster::Member { databases: uses(&["main"]), ..member(&b) });
    let (tell, views) = watch::channel(Arc::new(view.clone()));
    let (counter, _tests) = divided_among(views).await;
    let problem = asked(&counter, "0", "east").await.expect_err("b does not use it");
    assert_eq!((problem.status, problem.detail.contains("these do not: b.")), (409, true), "{problem}");
    let problem = counter.desk.database_drain("main", "ann").await.expect_err("its shards would go there");
    assert_eq!((problem.status, problem.detail.contains("these do not: b.")), (409, true), "{problem}");
    let list = counter.desk.database_list(false).await.expect("read");
    assert_eq!(list.databases[0].standing, Standing::Serving, "nothing was changed");
    assert_eq!(counter.desk.move_list().await.expect("read").moves.len(), 0);
    view.members.get_mut(&b.name).expect("a member").databases = uses(&["main", "east"]);
    tell.send_replace(Arc::new(view));
    asked(&counter, "0", "east").await.expect("every node uses it now");
}

#[tokio::test]
async fn a_database_whose_commits_are_not_replicated_receives_no_shards() {
    let (counter, _tests) = divided().await;
    let east = &counter.store.databases()[1];
    east.pretend_unreplicated(Some("no standby"));
    let moved = asked(&counter, "0", "east").await.expect_err("its tasks would not be replicated");
    let drained = counter.desk.database_drain("main", "ann").await.expect_err("its shards would go there");
    for problem in [moved, drained] {
        assert_eq!(problem.status, 409, "{problem}");
        assert_eq!(problem.detail, "commits of database `east` are not replicated: no standby");
    }
    let list = counter.desk.database_list(false).await.expect("read");
    assert_eq!(list.databases[0].standing, Standing::Serving, "nothing was changed");
    east.pretend_unreplicated(None);
    asked(&counter, "0", "east").await.expect("they are replicated again");
}

#[tokio::test]
async fn a_target_that_is_away_is_refused_and_the_rest_is_still_shown() {
    let (counter, test) = with_one_of_two_gone().await;
    test.pool.execute("DELETE FROM duetime.shard WHERE id >= 64").await.unwrap();
    let problem = asked(&counter, "0", "east").await.expect_err("refused");
    assert_eq!((problem.status, problem.detail.contains("`east` cannot be reached")), (503, true), "{problem}");
    assert_eq!(counter.desk.move_list().await.expect("read").moves.len(), 0);
    let list = counter.desk.database_list(true).await.expect("read");
    assert_eq!(list.databases.iter().map(|view| view.up).collect::<Vec<_>>(), [true, false]);
    assert!(list.notes.len() == 1 && list.notes[0].contains("`east`"), "{:?}", list.notes);
    let refused = counter.desk.shards_rebalance(RebalanceRequest::default(), "ann").await.expect_err("its load");
    assert_eq!(refused.status, 503);
}

#[tokio::test]
async fn a_target_that_is_read_only_is_refused_and_the_answer_says_so() {
    let (counter, tests) = divided().await;
    // As on a standby, or on a primary that an operator has made read-only.
    let read_only = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$";
    tests[1].pool.execute(read_only).await.unwrap();
    let problem = asked(&counter, "0", "east").await.expect_err("refused");
    assert_eq!((problem.status, problem.detail.contains("`east` is read-only")), (503, true), "{problem}");
    let rebalance = RebalanceRequest::parse(r#"{"tolerance_percent":0}"#).expect("a request");
    let fill = "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
                SELECT gen_random_uuid(), g % 64, 'q', 'scheduled', now(), now(), '{}', 'x' FROM generate_series(1, 640) AS g";
    tests[0].pool.execute(fill).await.unwrap();
    let problem = counter.desk.shards_rebalance(rebalance, "ann").await.expect_err("refused");
    assert!(problem.detail.contains("`east` is read-only"), "{problem}");
    assert_eq!(counter.desk.move_list().await.expect("read").moves.len(), 0);
}

#[tokio::test]
async fn a_target_that_does_not_fit_is_refused_and_the_answer_leads_to_the_reason() {
    let (main, east) = (fixture::database().await, fixture::database().await);
    main.keep_shards(lower_half()).await;
    // As after a start at which `east` had no schema, or that of another cluster.
    let databases = vec![fixture::named("main", &main.url), fixture::awaiting_schema("east", &east.url).into()];
    let problem = asked(&counter(databases, PLAIN), "0", "east").await.expect_err("refused");
    assert_eq!((problem.status, problem.detail.contains("`east` is not used by this node")), (503, true), "{problem}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_overlapping_requests_at_one_moment_one_is_refused() {
    let (counter, tests) = divided().await;
    for _ in 0..10 {
        let (one, other) = tokio::join!(asked(&counter, "0-9", "east"), asked(&counter, "5-15", "east"));
        let refused = [&one, &other].into_iter().filter_map(|answer| answer.as_ref().err()).collect::<Vec<_>>();
        assert_eq!((refused.len(), refused[0].status), (1, 409), "{one:?} {other:?}");
        tests[0].pool.execute("DELETE FROM duetime.move").await.unwrap();
    }
}

#[tokio::test]
async fn a_move_is_called_off_until_its_cut() {
    let (counter, tests) = divided().await;
    asked(&counter, "0-3", "east").await.expect("accepted");
    tests[0].pool.execute("UPDATE duetime.move SET step = 'cutting' WHERE shard = 3").await.unwrap();
    let call_off = async |shards: &str| counter.desk.shards_call_off(shards.parse().expect("a set"), "ann").await;
    let answer = call_off("2-4").await.expect("called off");
    let sets = [answer.called_off, answer.too_late, answer.not_moving].map(|set| set.to_string());
    assert_eq!(sets, ["2", "3", "4"]);
    assert_eq!(call_off("3").await.expect_err("too late").status, 409);
    assert_eq!(call_off("90").await.expect_err("it does not move").status, 404);
    assert_eq!(call_off("").await.expect_err("nothing").status, 422);
    let databases = counter.desk.database_list(false).await.expect("read").databases;
    assert_eq!(databases[0].leaving.to_string(), "0-1,3", "a move that is called off leaves the shard where it is");
}

#[tokio::test]
async fn a_rebalance_plans_first_and_a_second_one_moves_nothing() {
    let (counter, tests) = divided().await;
    // Every shard of `main` has 30 tasks, every one of `east` 10.
    for (test, tasks, first) in [(&tests[0], 30, 0), (&tests[1], 10, 64)] {
        let fill = format!(
            "INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
             SELECT gen_random_uuid(), {first} + s, 'q', 'scheduled', now(), now(), '{{}}', 'x'
               FROM generate_series(0, 63) AS s, generate_series(1, {tasks}) AS n"
        );
        test.pool.execute(AssertSqlSafe(fill)).await.unwrap();
    }
    let request = |json| RebalanceRequest::parse(json).expect("a request");
    let plan =
        counter.desk.shards_rebalance(request(r#"{"dry_run":true,"tolerance_percent":5}"#), "ann").await.unwrap();
    assert_eq!(counter.desk.move_list().await.expect("read").moves.len(), 0, "a dry run");
    // 2,560 tasks: 1,344 are 5 % above a half, so 20 shards of 30 tasks have to leave.
    assert_eq!((plan.moves.len(), plan.moves[0].shards.count(), plan.moves[0].to.as_str()), (1, 20, "east"));
    let (main, east) = (&plan.databases[0], &plan.databases[1]);
    assert_eq!((main.shards_before, main.shards_after, east.shards_before, east.shards_after), (64, 44, 64, 84));
    assert!(main.load_percent_before > 70.0 && main.load_percent_after < 53.0, "{plan:?}");
    let done = counter.desk.shards_rebalance(request(r#"{"tolerance_percent":5}"#), "ann").await.expect("done");
    assert_eq!(done.moves, plan.moves);
    assert_eq!(counter.desk.move_list().await.expect("read").moves.len(), 20);
    let again = counter.desk.shards_rebalance(request(r#"{"tolerance_percent":5}"#), "ann").await.expect("done");
    assert_eq!(again.moves, []);
}

#[tokio::test]
async fn a_drained_database_loses_its_shards_and_is_removed_when_it_is_empty() {
    let (counter, tests) = divided().await;
    let desk = &counter.desk;
    assert_eq!(desk.database_remove("east", "ann").await.expect_err("it serves").status, 409);
    asked(&counter, "0-3", "east").await.expect("accepted");
    let drained = desk.database_drain("east", "ann").await.expect("drained");
    assert_eq!(summary(&drained), seen("64-127", "64-127", "", Standing::Draining));
    let closed = asked(&counter, "7", "east").await.expect_err("it drains");
    assert_eq!((closed.status, closed.detail.contains("`east` is draining")), (409, true), "{closed}");
    let last = desk.database_drain("main", "ann").await.expect_err("the last one");
    assert_eq!((last.status, last.detail.contains("last one")), (409, true), "{last}");
    let holds = desk.database_remove("east", "ann").await.expect_err("it has shards");
    assert!(holds.status == 409 && holds.detail.contains("still holds the shards 64-127"), "{holds}");
    assert_eq!(desk.database_drain("east", "ann").await.expect("again").since, drained.since);

    moved_to_main(&tests).await;
    assert!(producers_may_submit(&tests[1]).await);
    let removed = desk.database_remove("east", "ann").await.expect("removed");
    assert_eq!(summary(&removed), seen("", "", "", Standing::Removed));
    assert!(!producers_may_submit(&tests[1]).await, "soon no node collects it");
    assert_eq!(desk.database_remove("east", "ann").await.expect("still").since, removed.since);
    assert_eq!(asked(&counter, "7", "east").await.expect_err("removed").status, 409);
    assert_eq!(desk.database_drain("east", "ann").await.expect_err("removed").status, 409);
    let back = desk.database_undrain("east", "ann").await.expect("undrained");
    assert_eq!((back.standing, back.since), (Standing::Serving, None));
    assert!(producers_may_submit(&tests[1]).await);
}

#[tokio::test]
async fn a_drain_passes_over_databases_that_are_away_and_says_so_if_no_other_is_left() {
    let (counter, _tests) = with_two_of_three_databases().await;
    let drained = counter.desk.database_drain("main", "ann").await.expect("another one receives its shards");
    assert_eq!(summary(&drained), seen("0-63", "0-63", "", Standing::Draining));
    let moves = counter.desk.move_list().await.expect("read").moves;
    assert!(moves.iter().all(|it| it.to.as_str() == "east"), "{moves:?}");

    let (counter, _test) = with_one_of_two_gone().await;
    let away = counter.desk.database_drain("main", "ann").await.expect_err("no other one answers");
    let words =
        "`main` drains, but its shards have no place to go to yet: database `east` cannot be reached; try again";
    assert!(away.status == 503 && away.detail.ends_with(words), "{away}");
    let list = counter.desk.database_list(false).await.expect("read");
    assert_eq!(list.databases[0].standing, Standing::Draining);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_drain_the_last_two_databases_at_once_one_is_left() {
    let (counter, _tests) = divided().await;
    for _ in 0..20 {
        let (one, other) =
            tokio::join!(counter.desk.database_drain("main", "ann"), counter.desk.database_drain("east", "bob"));
        let statuses = [&one, &other].map(|done| done.as_ref().map_or_else(|no| no.status, |_| 200));
        assert!(statuses.contains(&409), "{one:?} {other:?}");
        let databases = counter.desk.database_list(false).await.expect("read").databases;
        assert!(databases.iter().any(|view| view.standing == Standing::Serving), "{databases:?}");
        for name in ["main", "east"] {
            counter.desk.database_undrain(name, "ann").await.expect("undrained");
        }
    }
}

#[tokio::test]
async fn a_database_is_not_removed_while_a_move_or_a_submission_concerns_it() {
    let (counter, tests) = divided().await;
    counter.desk.database_drain("east", "ann").await.expect("drained");
    moved_to_main(&tests).await;
    let cleaning = "INSERT INTO duetime.move (shard, source, target, step, requested_by) VALUES (64, 'east', 'main', 'cleaning', 'ann')";
    tests[0].pool.execute(cleaning).await.unwrap();
    let moving = counter.desk.database_remove("east", "ann").await.expect_err("refused");
    assert!(moving.status == 409 && moving.detail.contains("moves of the shards 64"), "{moving}");
    tests[0].pool.execute("DELETE FROM duetime.move").await.unwrap();
    tests[1].pool.execute("SELECT duetime.submit('q', '{}')").await.unwrap();
    let waiting = counter.desk.database_remove("east", "ann").await.expect_err("refused");
    assert!(waiting.status == 409 && waiting.detail.contains("1 submissions in SQL"), "{waiting}");
    tests[1].pool.execute("DELETE FROM duetime.inbox").await.unwrap();
    assert_eq!(counter.desk.database_remove("main", "ann").await.expect_err("the first").status, 409);
    assert_eq!(counter.desk.database_remove("east", "ann").await.expect("empty").standing, Standing::Removed);
}

#[tokio::test]
async fn a_database_is_not_removed_while_a_submission_waits_that_no_look_reaches_or_that_cannot_be_looked_for() {
    let (counter, tests) = divided().await;
    counter.desk.database_drain("east", "ann").await.expect("drained");
    moved_to_main(&tests).await;
    let earlier = "INSERT INTO duetime.inbox (id, shard, request, submitted_at)
                   SELECT duetime.mint(now(), 64), 64, '{}', now() - interval '1 hour'";
    tests[1].pool.execute(earlier).await.unwrap();
    let east = &counter.store.databases()[1];
    fixture::run_out_of_time(east);
    assert_eq!(east.inbox_standing().await.unwrap().waiting, 0, "it is before the mark");
    let waiting = counter.desk.database_remove("east", "ann").await.expect_err("refused");
    assert!(waiting.status == 409 && waiting.detail.contains("1 submissions in SQL"), "{waiting}");

    tests[1].pool.execute("DELETE FROM duetime.inbox").await.unwrap();
    let mut holder = tests[1].pool.acquire().await.unwrap();
    holder.execute("BEGIN; LOCK TABLE duetime.inbox IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let unknown = counter.desk.database_remove("east", "ann").await.expect_err("refused");
    assert_eq!(unknown.status, 503, "{unknown}");
    holder.execute("COMMIT").await.unwrap();
    assert!(producers_may_submit(&tests[1]).await, "nothing was changed");
    assert_eq!(counter.desk.database_remove("east", "ann").await.expect("empty").standing, Standing::Removed);
}

#[tokio::test]
async fn an_unknown_database_is_404_and_a_caller_for_some_queues_may_look_only() {
    let (counter, _test) = fresh().await;
    let desk = &counter.desk;
    for problem in [
        desk.database_drain("west", "ann").await.expect_err("unknown"),
        desk.database_undrain("west", "ann").await.expect_err("unknown"),
        desk.database_remove("west", "ann").await.expect_err("unknown"),
    ] {
        assert_eq!((problem.status, problem.detail.ends_with("there are: main")), (404, true), "{problem}");
    }
    let some = desk.within(Scope::of(Some(vec!["mine".to_owned()])).expect("a scope"));
    assert_eq!(some.shard_list(false).await.expect("shown").shards.len(), 128);
    assert_eq!(some.database_list(false).await.expect("shown").databases.len(), 1);
    let request = MoveRequest::parse(r#"{"shards":"0","to":"main"}"#).expect("a request");
    for status in [
        some.shard_list(true).await.expect_err("refused").status,
        some.database_list(true).await.expect_err("refused").status,
        some.shards_move(request, "ann").await.expect_err("refused").status,
        some.shards_call_off("0".parse().expect("a set"), "ann").await.expect_err("refused").status,
        some.shards_rebalance(RebalanceRequest::default(), "ann").await.expect_err("refused").status,
        some.database_drain("main", "ann").await.expect_err("refused").status,
    ] {
        assert_eq!(status, 403);
    }
}
