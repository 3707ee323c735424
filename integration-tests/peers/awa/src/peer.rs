//! awa at the settings that its documentation recommends.

use std::sync::Arc;
use std::time::Duration;

use awa::{
    AwaError, Client, InsertOpts, InsertParams, JobArgs, JobResult, PartitionedQueue, QueueConfig, QueueStorage,
    QueueStorageConfig,
};
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::arrivals::{Arrivals, now_us};
use crate::{Failure, Order};

/// One is a plain queue. Four, its documentation's first lever for a hot workload, completed less on two cores.
const PARTITIONS: usize = 1;
/// The shape with which its page on benchmarks completes 10,000 no-op jobs a second, for each partition.
const WORKERS_EACH: u32 = 1_024;
/// How often tasks that became due are promoted; 250 ms unless it is set. Its own tests of promptness use this value.
const PROMOTE: Duration = Duration::from_millis(25);
const POOL: u32 = 24;

#[derive(Serialize, Deserialize, JobArgs)]
pub struct Arrival {
    pub number: i64,
    pub due_us: i64,
    pub pad: String,
}

pub struct Peer {
    pool: PgPool,
    storage: QueueStorage,
    queue: PartitionedQueue,
    connections: u32,
}

impl Peer {
    pub async fn connect(order: &Order) -> Result<Self, Failure> {
        let connections = if order.work == "submit" { order.connections } else { POOL };
        let options = PgPoolOptions::new().max_connections(connections).min_connections(connections);
        let pool = options.connect(&order.postgres_url).await?;
        awa::migrations::run(&pool).await?;
        let queue = PartitionedQueue::new("arrivals", PARTITIONS)?;
        Ok(Self { pool, storage: QueueStorage::new(QueueStorageConfig::default())?, queue, connections })
    }

    fn options(&self, task: &Arrival) -> InsertOpts {
        let run_at = (task.due_us > now_us()).then(|| DateTime::from_timestamp_micros(task.due_us)).flatten();
        let partition = usize::try_from(task.number).expect("numbers are not negative");
        self.queue.route_opts_by_index(InsertOpts { run_at, ..InsertOpts::default() }, partition)
    }

    /// Stores tasks by COPY, the path for producers of many.
    pub async fn submit(&self, tasks: &[Arrival]) -> Result<(), Failure> {
        let prepare = |task| awa::model::insert::params_with(task, self.options(task));
        let jobs = tasks.iter().map(prepare).collect::<Result<Vec<InsertParams>, AwaError>>()?;
        self.storage.enqueue_params_copy(&self.pool, &jobs).await?;
        Ok(())
    }

    pub async fn submit_one(&self, task: &Arrival) -> Result<(), Failure> {
        awa::insert_with(&self.pool, task, self.options(task)).await?;
        Ok(())
    }

    pub async fn start(&self, arrivals: Arc<Arrivals>) -> Result<Client, Failure> {
        let client = Client::builder(self.pool.clone())
            .partitioned_queue(&self.queue, QueueConfig { max_workers: WORKERS_EACH, ..QueueConfig::default() })
            .promote_interval(PROMOTE)
            .register::<Arrival, _, _>(move |task: Arrival, _| {
                let got_us = now_us();
                let arrivals = arrivals.clone();
                async move {
                    arrivals.record(task.number, task.due_us, got_us);
                    Ok(JobResult::Completed)
                }
            })
            .build()?;
        client.start().await?;
        Ok(client)
    }

    pub fn settings(&self, order: &Order) -> String {
        format!(
            "PartitionedQueue of {PARTITIONS}, max_workers {WORKERS_EACH} each, promote_interval {PROMOTE:?}, LISTEN/NOTIFY, \
             poll_interval 200 ms, claim_batch_size 512, enqueue_params_copy of {}, insert_with for single tasks, pool {}",
            order.batch, self.connections
        )
    }
}
