//! Causes that concern applications and consumers.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use futures::FutureExt;
use integration_tests::consumer::{Answer, Consumer};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{BasicPublishOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use reqwest::Method;
use serde_json::{Value, json};

use super::{
    rules::HEAP_ENTRIES,
    scene::{Cause, Scene, until},
};

const NO_TASK: Cause = Cause {
    alerts: &["DuetimeSubmissionsInvalid"],
    says: "one message in duetime.submit is not JSON",
    play: |scene| junk(scene, "duetime.submit").boxed(),
};

const NO_REPORT: Cause = Cause {
    alerts: &["DuetimeQuarantineGrowing"],
    says: "one message in duetime.results is not JSON",
    play: |scene| junk(scene, "duetime.results").boxed(),
};

const REFUSED_IN_SQL: Cause = Cause {
    alerts: &["DuetimeInboxRefused"],
    says: "one submission in SQL with a header whose name is reserved",
    play: |scene| refused_in_sql(scene).boxed(),
};

const REFUSED_BY_THE_DATABASE: Cause = Cause {
    alerts: &["DuetimeSetAside"],
    says: "a foreign trigger refuses the tasks of one queue",
    play: |scene| refused_by_the_database(scene).boxed(),
};

const UNROUTABLE: Cause = Cause {
    alerts: &["DuetimePublishUnroutable", "DuetimeLanesClosed"],
    says: "one task of a queue whose policy names an exchange to which nothing is bound",
    play: |scene| unroutable(scene).boxed(),
};

const SET_ASIDE: Cause = Cause {
    alerts: &["DuetimeTasksSetAside"],
    says: "one task of a queue that sets unroutable messages aside",
    play: |scene| set_aside(scene).boxed(),
};

const DYING: Cause = Cause {
    alerts: &["DuetimeDeadTasksGrowing dying", "DuetimeDeadTasksGrowing dying-few", "DuetimeAttemptsFailing dying"],
    says: "consumers reject 60 tasks of a queue at their only attempt, and 4 of one with a failure_alert_threshold of 3, every 10 s",
    play: |scene| dying(scene).boxed(),
};

const CROWDED: Cause = Cause {
    alerts: &["DuetimeHeapFull"],
    says: "more tasks come due soon than the heaps may hold",
    play: |scene| crowded(scene).boxed(),
};

const OVERDUE: Cause = Cause {
    alerts: &["DuetimeTasksOverdue"],
    says: "a transaction keeps the row of a due task locked",
    play: |scene| overdue(scene).boxed(),
};

const FROZEN: Cause = Cause {
    alerts: &["DuetimeSchedulesMissed"],
    says: "all nodes freeze for 17 s while a schedule fires that makes up fire times for 10 s",
    play: |scene| frozen(scene).boxed(),
};

const LATE: Cause = Cause {
    alerts: &["DuetimeLatenessBudgetBurnsFast", "DuetimeLatenessBudgetBurnsSlowly"],
    says: "PostgreSQL freezes for 3 s whenever 300 tasks come due",
    play: |scene| late(scene).boxed(),
};

/// These causes do not affect each other.
pub(super) const AT_ONCE: &[Cause] =
    &[NO_TASK, NO_REPORT, REFUSED_IN_SQL, REFUSED_BY_THE_DATABASE, UNROUTABLE, SET_ASIDE, DYING];
pub(super) const ALONE: [&[Cause]; 4] = [&[OVERDUE], &[CROWDED], &[LATE], &[FROZEN]];

/// How long the schedule of `frozen` catches up for, the smallest value allowed. The nodes stand still for longer
/// than that and the lead of decisions together.
const CATCH_UP_MS: u64 = 10_000;
const STANDSTILL: Duration = Duration::from_secs(17);

/// A database that is silent for longer may be given up.
const PAUSE: Duration = Duration::from_secs(3);

/// Less than the window in which dead tasks are counted.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

async fn channel(scene: &Scene<'_>) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(&scene.cluster().amqp_url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

async fn junk(scene: &Scene<'_>, queue: &str) -> Result<()> {
    let (_connection, channel) = channel(scene).await?;
    scene.injected();
    channel
        .basic_publish("".into(), queue.into(), BasicPublishOptions::default(), b"no JSON", BasicProperties::default())
        .await?;
    scene.fired().await;
    Ok(())
}

async fn refused_in_sql(scene: &Scene<'_>) -> Result<()> {
    scene.injected();
    // Longer than the cluster takes, which PostgreSQL does not know.
    scene.sql("SELECT duetime.submit('steady', to_jsonb(repeat('x', 300000)))").await?;
    scene.fired().await;
    Ok(())
}

async fn unroutable(scene: &Scene<'_>) -> Result<()> {
    let client = scene.client()?;
    client.put_queue("nowhere", &json!({ "exchange": "amq.topic", "routing_key": "nowhere" })).await?;
    scene.injected();
    client.submit(&json!({ "queue": "nowhere", "delay_ms": 2_000 })).await?;
    scene.fired().await;
    let (_connection, channel) = channel(scene).await?;
    channel.queue_declare("nowhere".into(), QueueDeclareOptions::default(), FieldTable::default()).await?;
    channel
        .queue_bind(
            "nowhere".into(),
            "amq.topic".into(),
            "nowhere".into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await?;
    Ok(())
}

async fn set_aside(scene: &Scene<'_>) -> Result<()> {
    let client = scene.client()?;
    let policy = json!({ "exchange": "amq.topic", "routing_key": "aside", "unroutable": "set_aside" });
    client.put_queue("aside", &policy).await?;
    scene.injected();
    client.submit(&json!({ "queue": "aside", "delay_ms": 2_000 })).await?;
    scene.fired().await;
    Ok(())
}

async fn dying(scene: &Scene<'_>) -> Result<()> {
    let client = scene.client()?;
    let policy = json!({ "settle": "reject", "max_attempts": 1, "timeout_ms": 60_000 });
    let mut few = policy.clone();
    few["failure_alert_threshold"] = json!(3);
    scene.cluster().put_queues(&[("dying", policy), ("dying-few", few)]).await?;
    let (url, ledger) = (scene.cluster().amqp_url(), &scene.cluster().ledger);
    let rejecting = |queue| Consumer::scripted(&url, queue, ledger, Arc::new(|_| Answer::reject()));
    let _consumers = ["dying", "dying-few"].map(rejecting);
    scene.injected();
    // Repeated, because a queue's counters begin at 0: deaths before the first scrape of them are no increase.
    scene
        .fired_during(async {
            loop {
                client.batch(&tasks("dying", 60, 500)).await?;
                client.batch(&tasks("dying-few", 4, 500)).await?;
                tokio::time::sleep(AGAIN_AFTER).await;
            }
        })
        .await
}

async fn crowded(scene: &Scene<'_>) -> Result<()> {
    scene.cluster().consume_and_ack("crowd", &json!({})).await?;
    scene.injected();
    // Half as many again as three nodes may hold.
    scene.client()?.batch(&tasks("crowd", HEAP_ENTRIES as usize * 9 / 2, 11_000)).await?;
    scene.fired().await;
    Ok(())
}

async fn refused_by_the_database(scene: &Scene<'_>) -> Result<()> {
    let mut connection = scene.database().await?;
    sqlx::raw_sql(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no such tasks here' USING ERRCODE = '22023'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON duetime.task FOR EACH ROW WHEN (NEW.queue = 'refused') EXECUTE FUNCTION public.refuse()",
    )
    .execute(&mut connection)
    .await?;
    scene.injected();
    // The answer is 422.
    let _ = scene.client()?.submit(&json!({ "queue": "refused" })).await;
    scene.fired().await;
    sqlx::raw_sql("DROP FUNCTION public.refuse CASCADE").execute(&mut connection).await?;
    Ok(())
}

async fn overdue(scene: &Scene<'_>) -> Result<()> {
    let task = scene.client()?.submit(&json!({ "queue": "steady", "delay_ms": 3_000 })).await?;
    let mut connection = scene.database().await?;
    sqlx::raw_sql("BEGIN").execute(&mut connection).await?;
    sqlx::query("SELECT 1 FROM duetime.task WHERE id = $1::uuid FOR UPDATE")
        .bind(&task.id)
        .execute(&mut connection)
        .await?;
    scene.injected();
    scene.fired().await;
    sqlx::raw_sql("ROLLBACK").execute(&mut connection).await?;
    Ok(())
}

async fn late(scene: &Scene<'_>) -> Result<()> {
    let (client, postgres) = (scene.client()?, scene.cluster().postgres(0));
    scene.injected();
    scene
        .fired_during(async {
            loop {
                client.batch(&tasks("steady", 300, 2_000)).await.ok();
                tokio::time::sleep(Duration::from_secs(1)).await;
                postgres.pause()?;
                tokio::time::sleep(PAUSE).await;
                postgres.resume()?;
                tokio::time::sleep(PAUSE).await;
            }
        })
        .await?;
    postgres.resume()
}

async fn frozen(scene: &Scene<'_>) -> Result<()> {
    let (cluster, client) = (scene.cluster(), scene.client()?);
    let schedule = json!({
        "queue": "steady", "every_ms": 1_000, "payload": {}, "catch_up_ms": CATCH_UP_MS, "overlap": "allow",
    });
    let path = "/v1/schedules/pulse";
    client.call::<Value>(Method::PUT, path, Some(&schedule)).await?;
    until("the schedule fires", || async {
        let shown = client.call::<Value>(Method::GET, path, None).await;
        shown.is_ok_and(|schedule| schedule["last_fire_at"].is_string())
    })
    .await?;
    scene.injected();
    for node in 0..cluster.nodes().len() {
        cluster.pause(node)?;
    }
    tokio::time::sleep(STANDSTILL).await;
    for node in 0..cluster.nodes().len() {
        cluster.resume(node)?;
    }
    scene.fired().await;
    client.send(Method::DELETE, path, None).await?;
    Ok(())
}

/// A batch of tasks that are all due at one moment.
pub(super) fn tasks(queue: &str, count: usize, delay_ms: u64) -> Vec<Value> {
    vec![json!({ "queue": queue, "delay_ms": delay_ms }); count]
}
