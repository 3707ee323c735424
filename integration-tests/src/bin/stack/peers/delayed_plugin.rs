//! The delayed-message plugin of RabbitMQ, from the file that `DELAYED_PLUGIN` names.

use std::{path::PathBuf, sync::Arc};

use anyhow::Result;
use integration_tests::sandbox::{Rabbit, Tether, fresh};
use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};
use tokio::time::Instant;

use super::{
    broker::{self, Broker, Message, PUBLISHING},
    collector::Collector,
    judge::FIRST_PENDING,
    pace::{self, MONTH, Task},
    singles,
    work::{AHEAD, Order, Outcome, Told, Work},
};
use crate::bench::drain::Drain;

const FILE: &str = "DELAYED_PLUGIN";
const WORK: &str = "work";
const EXCHANGE: &str = "delayed";

/// The plugin's file, or how to name it.
pub(super) fn file() -> Result<PathBuf, String> {
    let file = std::env::var_os(FILE).map(PathBuf::from);
    let file =
        file.ok_or_else(|| format!("{FILE}=/path/to/rabbitmq_delayed_message_exchange-VERSION.ez is not set"))?;
    if file.is_file() { Ok(file) } else { Err(format!("{FILE} names {}, which is no file", file.display())) }
}

pub(super) async fn run(order: &Order) -> Result<Outcome> {
    let file = match file() {
        Ok(file) => file,
        Err(why) => return Ok(Outcome::Not(why)),
    };
    if order.work == Work::Throughput {
        return Ok(Outcome::Not("without a delay it is a plain exchange: see raw-rabbitmq".into()));
    }
    // A broker of its own: the plugin is in no other peer's way.
    let server = Rabbit::start_with_plugin(&fresh("rabbit"), Tether::Tethered, &file).await?;
    let url = server.add_vhost("plugin").await?;
    let broker = Broker::connect(&url).await?;
    broker.queue(WORK, &[]).await?;
    broker.delayed_exchange(EXCHANGE, WORK).await?;
    let collector = Arc::new(Collector::default());
    let _drain = (order.work != Work::Submit).then(|| Drain::start(&url, WORK, collector.eye()));
    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let told = match order.work {
        Work::Late => late(order, &broker, &collector).await?,
        Work::Burst => burst(order, &broker, &collector).await?,
        Work::Throughput | Work::Submit => {
            let clients = Broker::with_channels(&url, order.connections).await?;
            let one = async |channel: &lapin::Channel, task: Task| {
                broker::publish_one(channel, delayed(task, order.payload_bytes)).await
            };
            let told = singles::submit(order, clients.channels(), one).await?;
            return Ok(Outcome::Counted(described(told, name)));
        }
    };
    Ok(Outcome::Arrived(described(told, name), collector.take()))
}

async fn late(order: &Order, broker: &Broker, collector: &Collector) -> Result<Told> {
    let pending = pace::due_at(pace::instant_in(MONTH), FIRST_PENDING, order.pending);
    broker.publish_all(&pending, |task| delayed(task, order.payload_bytes)).await?;
    let began = Instant::now();
    let tasks = pace::evenly(order);
    let (count, last) = (tasks.len() as u64, tasks.last().map_or(0, |task| task.due_us));
    let coming = pace::at_their_instants(tasks, AHEAD);
    broker.publish_as_they_come(coming, |task| delayed(task, order.payload_bytes)).await?;
    let told = Told { submitted: count, submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() };
    collector.wait(count, pace::instant_of(last) + order.patience()).await;
    Ok(told)
}

async fn burst(order: &Order, broker: &Broker, collector: &Collector) -> Result<Told> {
    let (began, due_us) = (Instant::now(), pace::burst_instant(order));
    let tasks = pace::due_at(due_us, 0, order.tasks);
    broker.publish_all(&tasks, |task| delayed(task, order.payload_bytes)).await?;
    pace::ensure_ahead(due_us)?;
    let told = Told { submitted: order.tasks, submit_seconds: began.elapsed().as_secs_f64(), ..Told::default() };
    collector.wait(order.tasks, pace::instant_of(due_us) + order.patience()).await;
    Ok(told)
}

fn delayed(task: Task, bytes: usize) -> Message {
    let mut headers = FieldTable::default();
    headers.insert("x-delay".into(), AMQPValue::LongLongInt(broker::ms_until(task.due_us)));
    let properties = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
    Message { exchange: EXCHANGE, key: WORK.to_owned(), payload: task.payload(bytes), properties, mandatory: false }
}

fn described(mut told: Told, file: String) -> Told {
    told.settings = format!("a direct delayed exchange, a quorum queue, {PUBLISHING}");
    told.version = file;
    "one copy on one node, which a lost disk takes with it".clone_into(&mut told.unfair);
    told
}
