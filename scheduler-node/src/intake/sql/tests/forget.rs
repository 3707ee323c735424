//! What is deleted of the inboxes and of the notes of arrivals.

use super::*;
use crate::{intake::sql::forget::STATEMENTS_PER_TURN, loops::upkeep::prober::Unfit};

/// A shard brings its notes along when it moves into the database from whose inbox its rows came.
#[tokio::test]
async fn old_notes_of_arrivals_from_the_inbox_of_their_own_database_are_forgotten() {
    let (counter, [main, _east]) = with_two_databases().await;
    let note = "INSERT INTO duetime.received (id, source, received_at)
                SELECT duetime.mint(now(), 0), 'main', now() - h * interval '1 hour' FROM unnest(ARRAY[0, 2]) AS a (h)";
    sqlx::raw_sql(note).execute(&main.pool).await.unwrap();
    intake(&counter).forget(&mut BTreeMap::new()).await.unwrap();
    let left = "SELECT count(*) FROM duetime.received";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&main.pool).await.unwrap(), 1);
}

/// All nodes ended before the row was deleted. Without the note, its task is made again once the row is seen.
#[tokio::test]
async fn a_note_of_an_arrival_outlives_a_row_of_the_inbox_that_no_look_reaches() {
    let (counter, [main, east]) = with_two_databases().await;
    let row = "INSERT INTO duetime.inbox (id, shard, request, submitted_at, leaving_at)
               SELECT duetime.mint(now(), 100), 100, '{}', past, past
                 FROM (SELECT now() - interval '3 hours' AS past) AS p
               RETURNING id";
    let id: uuid::Uuid = sqlx::query_scalar(row).fetch_one(&main.pool).await.unwrap();
    let note = "INSERT INTO duetime.received (id, source, received_at) VALUES ($1, 'main', now() - interval '2 hours')";
    sqlx::query(note).bind(id).execute(&east.pool).await.unwrap();
    let intake = intake(&counter);
    fixture::run_out_of_time(intake.source());
    assert_eq!(intake.source().inbox_standing().await.unwrap().waiting, 0, "it is before the mark");
    intake.forget(&mut BTreeMap::new()).await.unwrap();
    let left = "SELECT count(*) FROM duetime.received";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&east.pool).await.unwrap(), 1);
}

/// A submission is not sent again so late, and its note has nothing to do with any inbox.
#[tokio::test]
async fn notes_of_replacements_are_forgotten_after_ten_minutes_however_old_the_rows_of_an_inbox_are() {
    let (counter, test) = fresh().await;
    let row = "INSERT INTO duetime.inbox (id, shard, request, submitted_at, leaving_at)
               SELECT duetime.mint(now(), 100), 100, '{}', past, past
                 FROM (SELECT now() - interval '3 hours' AS past) AS p";
    sqlx::raw_sql(row).execute(&test.pool).await.unwrap();
    let note = "INSERT INTO duetime.received (id, source, received_at)
                SELECT duetime.mint(now(), 0), '(replaced)', now() - m * interval '1 min'
                  FROM unnest(ARRAY[0, 8, 12]) AS a (m)";
    sqlx::raw_sql(note).execute(&test.pool).await.unwrap();
    let intake = intake(&counter);
    // After such a look, notes of arrivals wait.
    fixture::looked_from_head(intake.source(), Duration::from_secs(5));
    intake.forget(&mut BTreeMap::new()).await.unwrap();
    let left = "SELECT count(*) FROM duetime.received";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&test.pool).await.unwrap(), 2);
}

/// The glance that wakes the intake also has the next glances rest, so whether they rest says nothing.
#[tokio::test]
async fn notes_of_arrivals_are_forgotten_just_after_a_quick_glance_and_wait_after_a_slow_one() {
    let (counter, [main, _east]) = with_two_databases().await;
    let note = "INSERT INTO duetime.received (id, source, received_at)
                VALUES (duetime.mint(now(), 0), 'main', now() - interval '2 hours')";
    sqlx::raw_sql(note).execute(&main.pool).await.unwrap();
    let intake = intake(&counter);
    let left = async |took| {
        intake.source().look().await.unwrap();
        // Glances rest for nine times as long: longer than this test looks.
        fixture::looked_from_head(intake.source(), took);
        intake.forget(&mut BTreeMap::new()).await.unwrap();
        let left = "SELECT count(*) FROM duetime.received";
        sqlx::query_scalar::<_, i64>(left).fetch_one(&main.pool).await.unwrap()
    };
    assert_eq!(left(Duration::from_secs(5)).await, 1);
    assert_eq!(left(Duration::from_millis(900)).await, 0);
}

#[tokio::test]
async fn a_turn_to_forget_ends_after_some_statements_and_the_next_one_goes_on() {
    let (counter, test) = fresh().await;
    let refused = "INSERT INTO duetime.inbox (id, shard, request, submitted_at, error, refused_at)
                   SELECT duetime.mint(past, 0), 0, '{}', past, 'no', past
                     FROM (SELECT now() - interval '1 year' AS past) AS p, generate_series(1, $1)";
    let rows = i32::try_from(1_000 * STATEMENTS_PER_TURN + 10).unwrap();
    sqlx::query(refused).bind(rows).execute(&test.pool).await.unwrap();
    let note = "INSERT INTO duetime.received (id, source, received_at)
                SELECT duetime.mint(now(), 0), 'main', now() - interval '2 hours' FROM generate_series(1, $1)";
    sqlx::query(note).bind(rows).execute(&test.pool).await.unwrap();
    let intake = intake(&counter);
    let left = "SELECT (SELECT count(*) FROM duetime.inbox) + (SELECT count(*) FROM duetime.received)";
    let (of_a_turn, mut before) = (i64::from(rows) - 10, 2 * i64::from(rows));
    while before > 0 {
        let has_more = intake.forget(&mut BTreeMap::new()).await.unwrap();
        let left: i64 = sqlx::query_scalar(left).fetch_one(&test.pool).await.unwrap();
        // The last statement of a kind may not count, or delete few rows. On a busy machine a slow one is the last.
        let gone = before - left;
        assert!(gone <= of_a_turn + 1_000, "{gone} of {before}");
        assert!(gone > of_a_turn - 1_000 || !has_more, "{gone} of {before}");
        before = left;
    }
    assert!(!intake.forget(&mut BTreeMap::new()).await.unwrap());
}

/// It passes deleted rows that an old transaction keeps from being vacuumed, and so would the next one. Submissions in
/// SQL wait meanwhile.
#[tokio::test]
async fn a_slow_statement_is_the_last_of_its_kind_in_a_turn_to_forget() {
    let (counter, test) = fresh().await;
    let note = "INSERT INTO duetime.received (id, source, received_at)
                SELECT duetime.mint(now(), 0), source, now() - interval '2 hours'
                  FROM unnest(ARRAY['main', '(replaced)']) AS source, generate_series(1, 2500)";
    let slow = "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
                $$BEGIN PERFORM pg_sleep(0.3); RETURN NULL; END$$;
                CREATE TRIGGER slow BEFORE DELETE ON duetime.received
                FOR EACH STATEMENT EXECUTE FUNCTION public.slow()";
    for change in [note, slow] {
        sqlx::raw_sql(change).execute(&test.pool).await.unwrap();
    }
    let intake = intake(&counter);
    for expected in [1_500, 500] {
        assert!(!intake.forget(&mut BTreeMap::new()).await.unwrap(), "the rest waits for a minute");
        let left = "SELECT source, count(*) FROM duetime.received GROUP BY source ORDER BY source";
        let left: Vec<(String, i64)> = sqlx::query_as(left).fetch_all(&test.pool).await.unwrap();
        assert_eq!(left, [("(replaced)".to_owned(), expected), ("main".to_owned(), expected)]);
    }
}

/// Each of its statements would take seconds, in which no row is collected.
#[tokio::test]
async fn a_database_that_cannot_be_used_is_not_asked_to_forget() {
    let (counter, [main, east]) = with_two_databases().await;
    let note = "INSERT INTO duetime.received (id, source, received_at)
                VALUES (duetime.mint(now(), 0), 'main', now() - interval '2 hours')";
    for test in [&main, &east] {
        sqlx::raw_sql(note).execute(&test.pool).await.unwrap();
    }
    let left = async |test: &TestDatabase| {
        let left = "SELECT count(*) FROM duetime.received";
        sqlx::query_scalar::<_, i64>(left).fetch_one(&test.pool).await.unwrap()
    };
    // Without the database of the inbox itself, there is no standing that tells how old a note must be.
    for (away, expected) in [("main", (1, 1)), ("east", (0, 1))] {
        let unfit = BTreeMap::from([(DatabaseName::new(away), Unfit::away("it is away".to_owned()))]);
        let fitness = watch::channel(NodeFitness { unfit, ..NodeFitness::default() }).1;
        let intake = SqlIntake { fitness, ..intake(&counter) };
        assert!(!intake.forget(&mut BTreeMap::new()).await.unwrap());
        assert_eq!((left(&main).await, left(&east).await), expected, "{away} is away");
    }
}

#[tokio::test]
async fn a_database_that_fails_to_forget_is_left_out_and_the_others_have_all_their_turns() {
    let (counter, [main, east]) = with_two_databases().await;
    main.fill_disk("DELETE", "received").await;
    let note = "INSERT INTO duetime.received (id, source, received_at)
                SELECT duetime.mint(now(), 100), 'main', now() - interval '2 hours' FROM generate_series(1, $1)";
    // The failed statement is one of the turn.
    let rows = i32::try_from(1_000 * (STATEMENTS_PER_TURN - 1) + 10).unwrap();
    sqlx::query(note).bind(rows).execute(&east.pool).await.unwrap();
    let (intake, mut failing) = (intake(&counter), BTreeMap::new());
    let left = "SELECT count(*) FROM duetime.received";
    let (mut turns, mut left_east) = (0, i64::from(rows));
    while left_east > 0 {
        let has_more = intake.forget(&mut failing).await.unwrap();
        turns += 1;
        left_east = sqlx::query_scalar(left).fetch_one(&east.pool).await.unwrap();
        // On a busy machine a statement may be slow, and the rest waits then.
        assert!(left_east == 10 || !has_more, "{left_east}");
        assert!(failing.keys().eq([&DatabaseIndex::HOME]), "{failing:?}");
        // The next turn would succeed.
        sqlx::raw_sql("DROP FUNCTION IF EXISTS public.fill_disk() CASCADE").execute(&main.pool).await.unwrap();
        sqlx::query(note).bind(1).execute(&main.pool).await.unwrap();
    }
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&main.pool).await.unwrap(), turns, "it was left out");
}
