//! Shards move while what the move needs fails: the servers of both databases, the links to them, etcd, the master.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use integration_tests::{
    load::Load,
    sandbox::{Builder, Proxy, Sandbox},
};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::{
    command::Terminal,
    confirm, load,
    moves::{MOVED_WITHIN, ask, ask_for, cancel_at_the_last_moment, cuts, each_row_once, moved, number, report_cuts},
    rebalance::fill,
    scenario, traffic, until,
};

/// Holds a move up for a moment in each of its phases, so that a fault meets it there. A small shard has some 20 pages,
/// and the pause after each is as long again. So the clean-up takes some 4 s.
const SLOWLY: &str = "after_move_page=sleep(15);after_move_close=sleep(60);after_move_sweep=sleep(100)";

/// The shards of one ask. Two nodes move two each at the same time.
const SHARDS: i64 = 4;

/// What remains outstanding comes within this time after the last fault.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// A bound that only shows that a cut beside faults comes to an end. It waits 10 s for each answer to a statement. Then
/// another attempt ends it, and counts from its own beginning.
const CUT_BESIDE_FAULTS_MS: i64 = 60_000;

/// A phase of a move, as a condition on its row. The clean-up begins 5 s after the mover has seen the end of the cut,
/// which its row has a moment before, and with the next look at the moves: that is 5 to 6 s after `cut_ended_at`.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Copy,
    Rounds,
    Cut,
    CleanUp,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Copy, Self::Rounds, Self::Cut, Self::CleanUp];

    /// Whether a move is in this phase, or past it.
    const fn reached(self) -> &'static str {
        match self {
            Self::Copy => "m.rows_copied > 0 OR m.page->>'part' <> 'tasks'",
            Self::Rounds => "m.page->>'part' = 'done'",
            Self::Cut => "m.step IN ('cutting', 'cleaning')",
            Self::CleanUp => "m.cut_ended_at < clock_timestamp() - interval '6 s'",
        }
    }
}

fn two_nodes() -> Builder {
    (0..2).fold(Sandbox::builder().compared().databases(2).nodes(2), |builder, node| builder.failpoints(node, SLOWLY))
}

/// Waits until one of the moves has reached a phase, or all have ended.
async fn reach(sandbox: &Sandbox, phase: Phase) -> Result<()> {
    let query =
        format!("SELECT count(*) FILTER (WHERE {}) > 0 OR count(*) = 0 FROM duetime.move AS m", phase.reached());
    until(&format!("a move reaches {phase:?}"), MOVED_WITHIN, || async {
        let mut home = PgConnection::connect(&sandbox.database_url(0)).await.ok()?;
        let reached: bool = sqlx::query_scalar(AssertSqlSafe(query.clone())).fetch_one(&mut home).await.ok()?;
        reached.then_some(())
    })
    .await
}

/// Runs the story under traffic of every kind: keys, order, results and cancels. Then it judges.
async fn under_traffic(sandbox: &Sandbox, story: impl Future<Output = Result<()>>) -> Result<()> {
    traffic::consume(sandbox).await?;
    let running = traffic::Traffic::start(sandbox);
    let (client, ledger) = (sandbox.client(0), &sandbox.ledger);
    let over = AtomicBool::new(false);
    // A cancel that is under way is waited for: the ledger has to know its answer.
    let cancels = async {
        while !over.load(Ordering::Relaxed) {
            cancel_at_the_last_moment(&client, ledger, Duration::from_secs(1)).await?;
        }
        anyhow::Ok(())
    };
    let story = async {
        let told = story.await;
        over.store(true, Ordering::Relaxed);
        told
    };
    let (told, cancelled) = tokio::join!(story, cancels);
    running.end().await?;
    told.and(cancelled)?;
    let longest_ms = report_cuts(sandbox).await?;
    ensure!(longest_ms <= CUT_BESIDE_FAULTS_MS, "a cut took {longest_ms} ms");
    ensure!(ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
    each_row_once(sandbox).await?;
    sandbox.settled().await
}

async fn kill_and_restart(sandbox: &Sandbox, database: usize, when: Phase) -> Result<()> {
    let fault = sandbox.ledger.fault(&format!("server {database} killed at {when:?}"));
    sandbox.postgres(database).kill();
    sandbox.postgres(database).restart().await?;
    sandbox.ledger.heal(fault);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_of_a_move_are_killed_in_each_of_its_phases() {
    scenario(two_nodes(), async |sandbox| {
        under_traffic(sandbox, async {
            // Each server is the source of one way and the target of the other, so each dies as both.
            for from in [0, 1] {
                let asked = ask(sandbox, from, SHARDS).await?;
                for (number, phase) in Phase::ALL.into_iter().enumerate() {
                    reach(sandbox, phase).await?;
                    kill_and_restart(sandbox, number % 2, phase).await?;
                }
                moved(sandbox).await?;
                let ended = "SELECT count(*) FROM duetime.move_ended WHERE outcome = 'moved'";
                ensure!(number(sandbox, 0, ended).await? >= asked, "the moves have ended as they were asked for");
            }
            Ok(())
        })
        .await
    })
    .await;
}

/// Asks for moves of two shards that a node owns.
async fn ask_of(sandbox: &Sandbox, node: usize, from: usize) -> Result<()> {
    let wanted = "SELECT id FROM duetime.shard WHERE status = 'here' AND owner = $1 ORDER BY id LIMIT 2";
    let shards: Vec<i32> = until("the node owns shards there", MOVED_WITHIN, || async {
        let mut source = PgConnection::connect(&sandbox.database_url(from)).await.ok()?;
        let wanted = sqlx::query_scalar(wanted).bind(sandbox.node(node).name());
        wanted.fetch_all(&mut source).await.ok().filter(|shards: &Vec<i32>| !shards.is_empty())
    })
    .await?;
    ask_for(sandbox, from, shards).await.map(drop)
}

/// Cuts a node's link to a database at a phase of a move, and heals it once the move is held up, goes on elsewhere, or
/// has passed its cut.
async fn cut_off(sandbox: &Sandbox, node: usize, database: usize, phase: Phase) -> Result<()> {
    reach(sandbox, phase).await?;
    let began = Instant::now();
    let fault = sandbox.ledger.fault(&format!("the link to database {database} cut at {phase:?}"));
    let link: &Proxy = &sandbox.links(node).databases[database];
    link.cut();
    let name = sandbox.node(node).name();
    until("the move is held up, goes on elsewhere, or has passed its cut", MOVED_WITHIN, || async {
        let mut home = PgConnection::connect(&sandbox.database_url(0)).await.ok()?;
        let noticed =
            "SELECT coalesce(bool_or(problem IS NOT NULL OR node <> $1 OR step = 'cleaning'), true) FROM duetime.move";
        let noticed: bool = sqlx::query_scalar(noticed).bind(name).fetch_one(&mut home).await.ok()?;
        noticed.then_some(())
    })
    .await?;
    link.heal();
    sandbox.ledger.heal(fault);
    println!("the link to database {database} was cut at {phase:?} for {:.0} s", began.elapsed().as_secs_f32());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_links_of_a_mover_are_cut_and_etcd_and_the_master_fail() {
    scenario(two_nodes().proxied(), async |sandbox| {
        under_traffic(sandbox, async {
            // The second database is the target, and the source on the way back.
            let node = sandbox.master().await?;
            ask_of(sandbox, node, 0).await?;
            cut_off(sandbox, node, 1, Phase::Copy).await?;
            cut_off(sandbox, node, 1, Phase::Cut).await?;
            moved(sandbox).await?;
            ask_of(sandbox, node, 1).await?;
            cut_off(sandbox, node, 1, Phase::Copy).await?;
            moved(sandbox).await?;

            ask(sandbox, 0, SHARDS).await?;
            reach(sandbox, Phase::Copy).await?;
            // etcd holds no permission: a cut takes place without it.
            sandbox.etcd().kill_all();
            reach(sandbox, Phase::CleanUp).await?;
            sandbox.etcd().restart_all().await?;
            let master = sandbox.master().await?;
            sandbox.kill(master);
            sandbox.restart(master).await?;
            moved(sandbox).await
        })
        .await
    })
    .await;
}

/// Refuses rows of the first shards as a server without room does.
const FULL: &str = "
CREATE FUNCTION public.full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON duetime.task FOR EACH ROW WHEN (NEW.shard < 2) EXECUTE FUNCTION public.full()";

#[tokio::test(flavor = "multi_thread")]
async fn a_target_without_room_holds_moves_up_until_it_has_some() {
    scenario(Sandbox::builder().compared().databases(2).nodes(1), async |sandbox| {
        sandbox.consume_and_ack("mail", &confirm()).await?;
        let stream = load(sandbox, &[0], Load::new("mail", 50), Duration::from_secs(10));
        fill(sandbox, 0..2).await?;
        let mut target = PgConnection::connect(&sandbox.database_url(1)).await?;
        sqlx::raw_sql(FULL).execute(&mut target).await?;
        ask_for(sandbox, 0, vec![0, 1]).await?;
        until("both moves say so", MOVED_WITHIN, || async {
            let full = "SELECT count(*) FROM duetime.move WHERE problem LIKE '%No space left%'";
            (number(sandbox, 0, full).await.ok()? == 2).then_some(())
        })
        .await?;
        // What has been copied can be deleted without room.
        Terminal::of(sandbox).text(&["shard", "call-off", "1"]).await?;
        let called_off = "SELECT count(*) FROM duetime.move_ended WHERE outcome = 'called_off' AND shard = 1";
        until("the move that was called off has ended", MOVED_WITHIN, || async {
            (number(sandbox, 0, called_off).await.ok()? == 1).then_some(())
        })
        .await?;
        sqlx::raw_sql("DROP TRIGGER full_disk ON duetime.task").execute(&mut target).await?;
        moved(sandbox).await?;
        let arrived = number(sandbox, 1, "SELECT count(*) FROM duetime.task WHERE queue = 'later'").await?;
        ensure!(arrived == 1_000, "{arrived} of the tasks have arrived");
        cuts(sandbox).await?;
        stream.await?;
        ensure!(sandbox.ledger.wait_all(BACK_WITHIN).await, "tasks are outstanding");
        each_row_once(sandbox).await
    })
    .await;
}
