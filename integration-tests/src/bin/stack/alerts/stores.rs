//! Causes that concern the stores and the links to them.

use anyhow::{Context, Result};
use futures::{FutureExt, future};
use integration_tests::sandbox::{Proxy, Sandbox};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    scene::{Cause, Scene, until},
    tasks::tasks,
};

const REFUSING: Cause = Cause {
    alerts: &["DuetimeSubmissionsFailing", "DuetimeStatementsFailing", "DuetimeInboxStuck", "DuetimeInternalErrors"],
    says: "a trigger on duetime.task refuses a queue whose tasks come over HTTP and in SQL, and whose tasks are moved",
    play: |scene| refusing(scene).boxed(),
};

const NO_PARTITION: Cause = Cause {
    alerts: &["DuetimeArchivePartitionsFailing"],
    says: "no table can be made, when a queue is to keep its dead for longer",
    play: |scene| no_partition(scene).boxed(),
};

const LOCKED: Cause = Cause {
    alerts: &["DuetimePoolSaturated"],
    says: "a transaction locks duetime.task while one node is asked for a task by 100 clients",
    play: |scene| locked(scene).boxed(),
};

const HANGING: Cause = Cause {
    alerts: &["DuetimeLoopStalled"],
    says: "a transaction locks duetime.audit while a queue is changed",
    play: |scene| hanging(scene).boxed(),
};

const NOTES_REFUSED: Cause = Cause {
    alerts: &["DuetimeAuditNotesMissing"],
    says: "a trigger refuses the rows of duetime.audit while a queue is changed",
    play: |scene| notes_refused(scene).boxed(),
};

const DATABASE_GONE: Cause = Cause {
    alerts: &["DuetimeDatabaseDown"],
    says: "PostgreSQL is killed",
    play: |scene| database_gone(scene).boxed(),
};

const MOVE_HELD_UP: Cause = Cause {
    alerts: &["DuetimeMoveStuck"],
    says: "a shard is to move to another database while a transaction that has written a task stays open",
    play: |scene| move_held_up(scene).boxed(),
};

const RESTORED: Cause = Cause {
    alerts: &["DuetimeCommitsMissing"],
    says: "PostgreSQL comes back with the data of a backup",
    play: |scene| restored(scene).boxed(),
};

const ETCD_GONE: Cause = Cause {
    alerts: &["DuetimeNoMaster", "DuetimeEtcdUnreachable", "DuetimeLeaseRenewalFailing"],
    says: "etcd is killed, and then the master, so that no node can become master",
    play: |scene| etcd_gone(scene).boxed(),
};

const ETCD_FULL: Cause = Cause {
    alerts: &["DuetimeEtcdRefusesWrites"],
    says: "the alarm of etcd's quota is raised",
    play: |scene| etcd_full(scene).boxed(),
};

const BROKER_GONE: Cause = Cause {
    alerts: &["DuetimeBrokerDown", "DuetimePublishUnknown"],
    says: "RabbitMQ falls silent while 1,000 tasks come due, and is killed",
    play: |scene| broker_gone(scene).boxed(),
};

const BROKER_FULL: Cause = Cause {
    alerts: &["DuetimeBrokerBlocked"],
    says: "RabbitMQ is allowed almost no memory",
    play: |scene| broker_full(scene).boxed(),
};

const CUT_OFF: Cause = Cause {
    alerts: &["DuetimeNodeCutOff"],
    says: "one node's connection to RabbitMQ is cut",
    play: |scene| cut_off(scene).boxed(),
};

pub(super) const ALONE: [&[Cause]; 12] = [
    &[REFUSING, NO_PARTITION],
    &[LOCKED],
    &[HANGING],
    &[NOTES_REFUSED],
    &[MOVE_HELD_UP],
    &[ETCD_GONE],
    &[ETCD_FULL],
    &[BROKER_FULL],
    &[CUT_OFF],
    &[BROKER_GONE],
    &[DATABASE_GONE],
    // The last one, because it takes tasks away.
    &[RESTORED],
];

const MARKS: &str = "duetime_database_statement_seconds_count{database=\"db1\",op=\"position_mark\"}";

const REFUSE_TASKS: &str = "
CREATE OR REPLACE FUNCTION public.refuse_task() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.queue = 'refused' THEN RAISE EXCEPTION 'refused'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_task BEFORE INSERT OR UPDATE ON duetime.task FOR EACH ROW EXECUTE FUNCTION public.refuse_task()";

const REFUSE_TABLES: &str = "
CREATE OR REPLACE FUNCTION public.refuse_table() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused';
END $$;
CREATE EVENT TRIGGER refuse_table ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION public.refuse_table()";

const REFUSE_NOTES: &str = "
CREATE FUNCTION public.refuse_note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'no notes here' USING ERRCODE = '22023'; END $$;
CREATE TRIGGER refuse_note BEFORE INSERT ON duetime.audit FOR EACH ROW EXECUTE FUNCTION public.refuse_note()";

/// Longer than a dead task is kept by default.
const KEEP_DEAD_MS: i64 = 40 * 86_400_000;

/// Enough for more than one statement in twenty to be theirs, and for no free connection to be left.
const WRITERS: usize = 12;
const READERS: usize = 100;

async fn refusing(scene: &Scene<'_>) -> Result<()> {
    let moved = scene.client()?.submit(&json!({ "queue": "refused", "delay_ms": 86_400_000 })).await?.id;
    scene.sql(REFUSE_TASKS).await?;
    scene.injected();
    scene.sql("SELECT duetime.submit('refused', '1')").await?;
    let clients = scene.cluster().clients();
    let writers = (0..WRITERS).map(|writer| {
        let (client, moved) = (&clients[writer % clients.len()], &moved);
        async move {
            loop {
                // These calls are meant to fail.
                client.submit(&json!({ "queue": "refused" })).await.ok();
                client.run(moved).await.ok();
            }
        }
    });
    scene.fired_during(async { future::join_all(writers).map(|_: Vec<()>| Ok(())).await }).await?;
    scene.sql("DROP TRIGGER refuse_task ON duetime.task").await
}

async fn no_partition(scene: &Scene<'_>) -> Result<()> {
    scene.sql(REFUSE_TABLES).await?;
    scene.injected();
    scene.client()?.put_queue("kept", &json!({ "keep_dead_ms": KEEP_DEAD_MS })).await?;
    scene.fired().await;
    scene.sql("DROP EVENT TRIGGER refuse_table").await
}

async fn locked(scene: &Scene<'_>) -> Result<()> {
    let client = scene.cluster().client(0);
    let task = client.submit(&json!({ "queue": "steady", "delay_ms": 3_600_000 })).await?;
    let mut connection = scene.database().await?;
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.task IN ACCESS EXCLUSIVE MODE").execute(&mut connection).await?;
    scene.injected();
    let readers = (0..READERS).map(|_| async {
        loop {
            client.get(&task.id).await.ok();
        }
    });
    scene.fired_during(async { future::join_all(readers).map(|_: Vec<()>| Ok(())).await }).await?;
    sqlx::raw_sql("ROLLBACK").execute(&mut connection).await?;
    client.cancel(&task.id).await.ok();
    Ok(())
}

async fn hanging(scene: &Scene<'_>) -> Result<()> {
    let mut connection = scene.database().await?;
    sqlx::raw_sql("BEGIN; LOCK TABLE duetime.audit IN ACCESS EXCLUSIVE MODE").execute(&mut connection).await?;
    scene.injected();
    // The auditor cannot write this deed.
    scene.cluster().client(0).put_queue("noted", &json!({})).await?;
    scene.fired().await;
    sqlx::raw_sql("ROLLBACK").execute(&mut connection).await?;
    Ok(())
}

async fn notes_refused(scene: &Scene<'_>) -> Result<()> {
    scene.sql(REFUSE_NOTES).await?;
    scene.injected();
    scene.cluster().client(0).put_queue("refused-note", &json!({})).await?;
    scene.fired().await;
    scene.sql("DROP FUNCTION public.refuse_note CASCADE").await
}

async fn move_held_up(scene: &Scene<'_>) -> Result<()> {
    let mut connection = scene.database().await?;
    sqlx::raw_sql("BEGIN; UPDATE duetime.task SET progress = 1 WHERE false").execute(&mut connection).await?;
    let request = json!({ "shards": "7", "to": "db2" });
    scene.client()?.call::<Value>(Method::POST, "/v1/shards/moves", Some(&request)).await.context("asking")?;
    scene.injected();
    scene.fired().await;
    sqlx::raw_sql("ROLLBACK").execute(&mut connection).await?;
    Ok(())
}

async fn database_gone(scene: &Scene<'_>) -> Result<()> {
    scene.injected();
    scene.cluster().postgres(0).kill();
    scene.fired().await;
    scene.cluster().postgres(0).restart().await
}

async fn restored(scene: &Scene<'_>) -> Result<()> {
    let (cluster, server) = (scene.cluster(), scene.cluster().postgres(0));
    server.stop().await?;
    let backup = server.save().await?;
    server.restart().await?;
    // A mark follows the first task that is accepted.
    let marks = cluster.node(0).client().metric(MARKS).await?;
    until_marked(cluster, marks).await?;
    server.stop().await?;
    server.put_back(&backup).await?;
    server.restart().await?;
    scene.injected();
    scene.fired().await;
    let path = "/v1/databases/db1/accept-loss";
    scene.client()?.call::<Value>(Method::POST, path, None).await.map(drop).context("accepting the loss")
}

async fn until_marked(cluster: &Sandbox, before: Option<f64>) -> Result<()> {
    let client = cluster.node(0).client();
    until("a node marks the position of the database", || async {
        client.batch(&tasks("steady", 1, 500)).await.ok();
        client.metric(MARKS).await.ok().flatten() > before
    })
    .await
}

async fn etcd_gone(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster();
    let master = cluster.master().await?;
    scene.injected();
    cluster.etcd().kill_all();
    cluster.kill(master);
    scene.fired().await;
    cluster.etcd().restart_all().await?;
    cluster.restart(master).await?;
    cluster.settled().await
}

async fn etcd_full(scene: &Scene<'_>) -> Result<()> {
    let etcd = scene.cluster().etcd();
    etcd.raise_no_space().await?;
    scene.injected();
    scene.fired().await;
    etcd.clear_no_space().await
}

async fn broker_gone(scene: &Scene<'_>) -> Result<()> {
    let cluster = scene.cluster();
    let ways = || (0..cluster.nodes().len()).map(|node| &cluster.links(node).rabbit);
    let before = unconfirmed(cluster).await;
    scene.client()?.batch(&tasks("steady", 1_000, 1_500)).await?;
    scene.injected();
    // Messages published now stay in flight, and their outcome will be unknown.
    ways().for_each(Proxy::cut);
    let published =
        until("messages are published and not confirmed", || async { unconfirmed(cluster).await > before }).await;
    cluster.rabbit().kill();
    ways().for_each(Proxy::heal);
    scene.fired().await;
    cluster.rabbit().restart().await?;
    published
}

/// Rises when messages were sent and no confirm has come for a second: their lane is closed. Then their outcome is
/// unknown.
async fn unconfirmed(cluster: &Sandbox) -> f64 {
    let mut sum = 0.0;
    for client in cluster.clients() {
        for metric in ["duetime_lanes_closed", "duetime_publish_unknown_total"] {
            sum += client.metric(metric).await.ok().flatten().unwrap_or(0.0);
        }
    }
    sum
}

async fn broker_full(scene: &Scene<'_>) -> Result<()> {
    let rabbit = scene.cluster().rabbit();
    scene.injected();
    rabbit.ctl(&["set_vm_memory_high_watermark", "0.000001"]).await?;
    scene.fired().await;
    rabbit.ctl(&["set_vm_memory_high_watermark", "0.6"]).await.map(drop)
}

async fn cut_off(scene: &Scene<'_>) -> Result<()> {
    let way = &scene.cluster().links(1).rabbit;
    scene.injected();
    way.refuse();
    scene.fired().await;
    way.heal();
    Ok(())
}
