//! Databases that take too long for the rows of a whole page or round.

use super::*;
use crate::store::move_rows::WritePaces;

/// More tasks than a slow database takes at once, and a page.
const SOME_TASKS: &str = "
    INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type)
    SELECT duetime.mint(now(), 0), 0, 'q', 'scheduled', now() + g * interval '1 s', now(), '', ''
      FROM generate_series(1, 120) AS g";

/// Has each statement that writes or deletes more than 100 tasks run out of its time.
const FEW_AT_ONCE: &str = "
    CREATE FUNCTION public.few_at_once() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT count(*) FROM changed) > 100 THEN
            RAISE EXCEPTION 'a test ends this statement' USING ERRCODE = 'query_canceled';
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER few_come AFTER INSERT ON duetime.task REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION public.few_at_once();
    CREATE TRIGGER few_go AFTER DELETE ON duetime.task REFERENCING OLD TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION public.few_at_once()";

/// The tries after which a page and a round are a hundredth, and one more.
const TRIES: usize = 4;

/// Writes rounds until one is short, and after each that comes too late those of another move.
async fn write_rounds(moving: &mut Moving, mut another: Option<&mut Quick>) {
    let (ends, epoch) = (moving.ends.clone(), moving.epoch);
    let (mut tries, mut round) = (0, Round::Long);
    while round != Round::Short {
        match moving.work.round(&ends, epoch).await {
            Ok(ended) => round = ended,
            Err(error) => {
                assert!(error.is_out_of_time(), "{error:?}");
                tries += 1;
                assert!(tries < TRIES, "a round has the same rows again and again");
                if let Some(another) = &mut another {
                    another.write(&ends).await;
                }
            }
        }
    }
    assert!(tries > 0, "the target does not take all changes at once");
}

/// Writes all pages, and after each that comes too late those of another move.
async fn write_pages(moving: &mut Moving, mut another: Option<&mut Quick>) {
    let (ends, epoch) = (moving.ends.clone(), moving.epoch);
    moving.work.page = PageCursor::FIRST;
    let mut tries = 0;
    while moving.work.page != PageCursor::Done {
        if let Err(error) = moving.work.copy(&ends, epoch).await {
            assert!(error.is_out_of_time(), "{error:?}");
            tries += 1;
            assert!(tries < TRIES, "a page has the same rows again and again");
            if let Some(another) = &mut another {
                another.write(&ends).await;
            }
        }
    }
    assert!(tries > 0, "the target does not take the page at once");
}

#[tokio::test]
async fn what_a_database_does_not_write_in_time_comes_again_in_smaller_parts() {
    let mut moving = Moving::new().await;
    let (source, target) = (moving.tests[0].pool.clone(), moving.tests[1].pool.clone());
    moving.copy().await;
    sqlx::raw_sql(SOME_TASKS).execute(&source).await.unwrap();
    sqlx::raw_sql(FEW_AT_ONCE).execute(&target).await.unwrap();
    write_rounds(&mut moving, None).await;
    assert_eq!(moving.tests[1].live().await, 120);

    write_pages(&mut moving, None).await;

    moving.work.write_paces = WritePaces::default();
    let (ends, epoch, mut tries) = (moving.ends.clone(), moving.epoch, 0);
    while let Err(error) = moving.work.empty_target(&ends, epoch, &[]).await {
        assert!(error.is_out_of_time(), "{error:?}");
        tries += 1;
        assert!(tries < TRIES, "the clean-up has the same rows again and again");
    }
    assert!(tries > 0, "the target does not delete the page at once");
    assert_eq!(moving.tests[1].live().await, 0);
}

/// Another move between the same databases, whose writes are small and quick.
struct Quick {
    work: Work,
    epoch: Epoch,
}

impl Quick {
    const SHARD: ShardId = ShardId::new(1);

    async fn begin(moving: &Moving) -> Self {
        let shared = Arc::clone(&moving.work.shared);
        let (source, target) = (&moving.ends.source.sql, &moving.ends.target.sql);
        let epoch = source.shard_acquire(&[Self::SHARD], &shared.me).await.unwrap()[0].1;
        target.move_guard(&[Self::SHARD], false).await.unwrap();
        source.move_guard(&[Self::SHARD], false).await.unwrap();
        assert!(target.move_arrive(Self::SHARD, epoch, 0, None).await.unwrap());
        let work = Work::new(shared, &plan(Self::SHARD, "east"), CancellationToken::new());
        assert!(source.move_leave(Self::SHARD, epoch, work.next_write()).await.unwrap());
        Self { work, epoch }
    }

    /// Writes a short round and a short page.
    async fn write(&mut self, ends: &Ends) {
        let id = fixture::fresh_id_of(Self::SHARD);
        ends.source.sql.task_submit(&[new_task(id)], Sending::First).await.unwrap();
        while self.work.round(ends, self.epoch).await.unwrap() != Round::Short {}
        self.work.page = PageCursor::FIRST;
        while self.work.page != PageCursor::Done {
            self.work.copy(ends, self.epoch).await.unwrap();
        }
    }
}

#[tokio::test]
async fn quick_writes_of_another_move_do_not_make_those_of_a_slow_one_larger() {
    let mut moving = Moving::new().await;
    moving.copy().await;
    sqlx::raw_sql(SOME_TASKS).execute(&moving.tests[0].pool).await.unwrap();
    sqlx::raw_sql(FEW_AT_ONCE).execute(&moving.tests[1].pool).await.unwrap();
    let mut quick = Quick::begin(&moving).await;
    write_rounds(&mut moving, Some(&mut quick)).await;

    write_pages(&mut moving, Some(&mut quick)).await;
}
