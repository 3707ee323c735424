//! Faults of RabbitMQ, and messages that nodes cannot read.

use std::time::Duration;

use anyhow::{Result, ensure};
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicPublishOptions, QueueDeleteOptions, QueuePurgeOptions},
    types::{AMQPValue, FieldTable},
};
use rand::RngExt;

use super::{Kind, Needs, Part, Scene};
use crate::{
    chaos::queues::{BUSY, FRAGILE},
    sandbox::Rabbit,
};

const NOT_CONNECTED: &str = "RabbitMQ took no connection";
/// Messages of one fault.
const POISONED: usize = 60;
/// The name of the policy that leaves a RabbitMQ queue room for one message.
const FULL: &str = "chaos-full";
/// While the consumer is away, messages to be purged come within this time.
const PURGED_WITHIN: Duration = Duration::from_secs(10);
const PURGE_EVERY: Duration = Duration::from_millis(500);
/// By its log, RabbitMQ 3.10 ends members of a deleted quorum queue up to 5 s later, by the queue's name. When a broker
/// died meanwhile, the queue that had been declared anew was down until it was deleted again.
const ENDED_AFTER: Duration = Duration::from_secs(10);

pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "kill-rabbit",
        row: "F25",
        says: "the only broker is killed, or one of three (F31), and starts again",
        part: Part::Rabbit,
        needs: Needs::Nothing,
        play: |scene| Box::pin(kill(scene)),
    },
    Kind {
        name: "freeze-rabbit",
        row: "F26",
        says: "a broker is stopped with SIGSTOP, and continues",
        part: Part::Rabbit,
        needs: Needs::Nothing,
        play: |scene| Box::pin(freeze(scene)),
    },
    Kind {
        name: "close-connections",
        row: "F27",
        says: "a broker closes all connections, of nodes and consumers",
        part: Part::Rabbit,
        needs: Needs::Nothing,
        play: |scene| Box::pin(close_connections(scene)),
    },
    Kind {
        name: "memory-alarm",
        row: "F28",
        says: "a broker is allowed no memory, and blocks publishers",
        part: Part::Rabbit,
        needs: Needs::Nothing,
        play: |scene| Box::pin(alarm(scene)),
    },
    Kind {
        name: "delete-queue",
        row: "F29",
        says: "a RabbitMQ queue is deleted with its messages",
        part: Part::Rabbit,
        needs: Needs::Nothing,
        play: |scene| Box::pin(delete_queue(scene)),
    },
    Kind {
        name: "purge-queue",
        row: "F29",
        says: "a RabbitMQ queue is purged while its consumer is away; its tasks have to be reported, so they come again",
        part: Part::None,
        needs: Needs::Nothing,
        play: |scene| Box::pin(purge_queue(scene)),
    },
    Kind {
        name: "full-queue",
        row: "F30",
        says: "a policy leaves a RabbitMQ queue room for one message while its consumer is away, and the others are refused",
        part: Part::Rabbit,
        needs: Needs::Nothing,
        play: |scene| Box::pin(fill_queue(scene)),
    },
    Kind {
        name: "cut-broker",
        row: "F31",
        says: "one of three brokers is cut off from the other two and goes on alone, until it is killed and joins them again",
        part: Part::Rabbit,
        needs: Needs::Large,
        play: |scene| Box::pin(cut_broker(scene)),
    },
    Kind {
        name: "poison",
        row: "F33",
        says: "malformed submissions, results and rejections are published",
        part: Part::None,
        needs: Needs::Nothing,
        play: |scene| Box::pin(poison(scene)),
    },
];

fn broker(scene: &mut Scene) -> &'static Rabbit {
    let count = scene.sandbox().brokers().len();
    let place = scene.below(count);
    scene.sandbox().brokers()[place]
}

async fn kill(mut scene: Scene) -> Result<()> {
    let broker = broker(&mut scene);
    broker.kill();
    scene.hold().await;
    broker.restart().await
}

async fn freeze(mut scene: Scene) -> Result<()> {
    let broker = broker(&mut scene);
    broker.pause()?;
    scene.hold().await;
    broker.resume()
}

async fn close_connections(mut scene: Scene) -> Result<()> {
    let broker = broker(&mut scene);
    // Twice: the second time while clients are connecting again.
    for _ in 0..2 {
        let close = "[rabbit_networking:close_connection(Pid, \"chaos\") || Pid <- rabbit_networking:connections()]";
        broker.eval(&[close.to_owned()]).await?;
        scene.hold().await;
    }
    Ok(())
}

async fn alarm(mut scene: Scene) -> Result<()> {
    let broker = broker(&mut scene);
    broker.eval(&["vm_memory_monitor:set_vm_memory_high_watermark(0.0001)".to_owned()]).await?;
    scene.hold().await;
    broker.eval(&["vm_memory_monitor:set_vm_memory_high_watermark(0.4)".to_owned()]).await
}

/// No broker may go away until the members of the queue have ended, see [`ENDED_AFTER`].
async fn delete_queue(scene: Scene) -> Result<()> {
    // The connection may be closed meanwhile, or the queue without a leader.
    if delete(&scene).await.is_err() {
        scene.note_void("RabbitMQ did not confirm the deletion");
    }
    tokio::time::sleep(ENDED_AFTER).await;
    Ok(())
}

async fn delete(scene: &Scene) -> Result<()> {
    let connection = connect(scene).await?;
    let channel = connection.create_channel().await?;
    channel.queue_delete(FRAGILE.into(), QueueDeleteOptions::default()).await?;
    Ok(())
}

async fn purge_queue(mut scene: Scene) -> Result<()> {
    scene.sandbox().hold_consumers(FRAGILE, true);
    scene.hold().await;
    // RabbitMQ may be away in another fault.
    if tokio::time::timeout(PURGED_WITHIN, purge(&scene)).await.is_err() {
        scene.note_void("no message was there to be purged");
    }
    scene.sandbox().hold_consumers(FRAGILE, false);
    Ok(())
}

/// Purges until messages were there.
async fn purge(scene: &Scene) {
    loop {
        if let Ok(connection) = connect(scene).await
            && let Ok(channel) = connection.create_channel().await
            && let Ok(purged) = channel.queue_purge(FRAGILE.into(), QueuePurgeOptions::default()).await
            && purged > 0
        {
            return;
        }
        tokio::time::sleep(PURGE_EVERY).await;
    }
}

async fn fill_queue(mut scene: Scene) -> Result<()> {
    let broker = broker(&mut scene);
    let (vhost, pattern) = (scene.sandbox().vhost().to_owned(), format!("^{BUSY}$"));
    let full = r#"{"max-length":1,"overflow":"reject-publish"}"#;
    scene.sandbox().hold_consumers(BUSY, true);
    let set = broker.ctl(&["set_policy", "-p", &vhost, FULL, &pattern, full, "--apply-to", "queues"]).await;
    scene.hold().await;
    let cleared = broker.ctl(&["clear_policy", "-p", &vhost, FULL]).await;
    scene.sandbox().hold_consumers(BUSY, false);
    set.and(cleared).map(drop)
}

/// The two others keep the quorum. A broker that was cut off joins again only when it starts again.
async fn cut_broker(mut scene: Scene) -> Result<()> {
    let broker = broker(&mut scene);
    // Each connection between brokers is refused from now on, in both directions.
    let cut = "[begin erlang:set_cookie(Other, cut), erlang:disconnect_node(Other) end || Other <- nodes()]";
    broker.eval(&[cut.to_owned()]).await?;
    scene.hold().await;
    let alone = broker.ctl(&["eval", "nodes()."]).await;
    broker.kill();
    broker.restart().await?;
    ensure!(alone?.trim() == "[]", "the broker was not cut off");
    Ok(())
}

async fn connect(scene: &Scene) -> Result<Connection> {
    Ok(Connection::connect(&scene.sandbox().amqp_url(), ConnectionProperties::default()).await?)
}

/// Bytes for each queue that nodes read: no JSON, no headers, wrong types, another task's name.
async fn poison(mut scene: Scene) -> Result<()> {
    // RabbitMQ may be away in another fault.
    let Ok(connection) = connect(&scene).await else {
        scene.note_void(NOT_CONNECTED);
        return Ok(());
    };
    let Ok(channel) = connection.create_channel().await else {
        scene.note_void(NOT_CONNECTED);
        return Ok(());
    };
    for turn in 0..POISONED {
        let queue = ["duetime.submit", "duetime.results", "duetime.rejected"][turn % 3];
        let body: Vec<u8> = (0..scene.random.random_range(0..400)).map(|_| scene.random.random()).collect();
        let mut headers = FieldTable::default();
        if turn % 2 == 0 {
            headers.insert("duetime-queue".into(), AMQPValue::LongLongInt(7));
            headers.insert("duetime-attempt".into(), AMQPValue::LongString("one".into()));
        }
        let properties = BasicProperties::default()
            .with_headers(headers)
            .with_correlation_id(if turn % 4 == 0 { "no task" } else { "00000000-0000-7000-8000-000000000001" }.into());
        let options = BasicPublishOptions::default();
        // The connection may be closed meanwhile.
        if channel.basic_publish("".into(), queue.into(), options, &body, properties).await.is_err() {
            if turn == 0 {
                scene.note_void(NOT_CONNECTED);
            }
            break;
        }
    }
    Ok(())
}
