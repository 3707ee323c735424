//! One look at everything that could grow: the tasks, the nodes, PostgreSQL, RabbitMQ, etcd.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use integration_tests::{
    client::Client,
    sandbox::{Node, Sandbox},
};
use sqlx::{Connection, PgConnection, Row as _};
use tokio::time::timeout;

use super::{
    super::{
        machine::{handles, resident_kb, threads},
        report::progress,
        scrape::Scrape,
        shards::in_etcd,
    },
    book::Book,
    traffic::QUEUES,
};

/// A store under too much load may answer after minutes. The look then goes on without it.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

const KB_PER_MB: f64 = 1024.0;
const BYTES_PER_MB: f64 = 1024.0 * 1024.0;

/// A small value may grow by so much without a judgement: an allocator's and a table's unit of growth.
const SLACK_MB: f64 = 10.0;
/// Connections come and go with the load, and each is a handle.
const SLACK_HANDLES: f64 = 20.0;
/// The runtime starts threads for blocking work as it needs them.
const SLACK_THREADS: f64 = 10.0;
/// A session, an election or a queue's consumer that is renewed while the tool looks.
const SLACK_COUNT: f64 = 10.0;

/// A column of all rows.
struct Column {
    name: &'static str,
    unit: &'static str,
    /// Where the column must stay flat: the growth that never counts.
    slack: Option<f64>,
}

const fn plain(name: &'static str, unit: &'static str) -> Column {
    Column { name, unit, slack: None }
}

const fn flat(name: &'static str, unit: &'static str, slack: f64) -> Column {
    Column { name, unit, slack: Some(slack) }
}

pub(super) const ARCHIVE: &str = "archive";
pub(super) const DEAD_ROWS: &str = "tasks: dead rows";
pub(super) const CHANNELS: &str = "channels";

const TASKS: [Column; 3] = [plain("submitted", ""), plain("arrived", ""), plain("missing", "")];
const PUBLISHED: [Column; 2] = [plain("published late: p50", "ms"), plain("published late: p99", "ms")];
const NODE: [Column; 3] =
    [flat("memory", "MB", SLACK_MB), flat("file handles", "", SLACK_HANDLES), flat("threads", "", SLACK_THREADS)];
/// The values of [`LOOK`], in its order.
const POSTGRES: [Column; 13] = [
    flat("tasks", "MB", SLACK_MB),
    plain("tasks: heap", "MB"),
    plain("tasks: indexes", "MB"),
    plain("tasks: live rows", ""),
    plain(DEAD_ROWS, ""),
    plain("tasks: since the last autovacuum", "s"),
    plain("xmin horizon", "transactions"),
    flat(ARCHIVE, "MB", SLACK_MB),
    plain("archive: partitions", ""),
    plain("audit", "MB"),
    flat("other tables", "MB", SLACK_MB),
    plain("connections to PostgreSQL", ""),
    plain("write-ahead log", "MB"),
];
const RABBIT: [Column; 5] = [
    flat("queues", "", SLACK_COUNT),
    plain("messages", ""),
    plain("connections to RabbitMQ", ""),
    plain(CHANNELS, ""),
    plain("RabbitMQ: memory", "MB"),
];
const ETCD: [Column; 2] = [flat("keys in etcd", "", SLACK_COUNT), plain("etcd: database", "MB")];

/// The heap of a table has its toast and its maps. A partition that a node is about to drop is no table of `archive`,
/// and not one of the others. The audit keeps a row for each change, and drops it after days. The oldest xmin horizon
/// is that of the statement that runs longest.
const LOOK: &str = "
SELECT pg_total_relation_size(s.relid)::float8 / 1048576,
       pg_table_size(s.relid)::float8 / 1048576,
       pg_indexes_size(s.relid)::float8 / 1048576,
       s.n_live_tup::float8,
       s.n_dead_tup::float8,
       extract(epoch FROM clock_timestamp() - s.last_autovacuum)::float8,
       (SELECT max(age(backend_xmin)) FROM pg_stat_activity)::float8,
       (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('duetime.archive'))::float8 / 1048576,
       (SELECT count(*) FROM pg_inherits WHERE inhparent = 'duetime.archive'::regclass)::float8,
       pg_total_relation_size('duetime.audit')::float8 / 1048576,
       (SELECT sum(pg_total_relation_size(oid)) FROM pg_class
         WHERE relnamespace = 'duetime'::regnamespace AND relkind = 'r' AND oid <> s.relid
           AND relname <> 'audit' AND relname NOT LIKE 'archive%')::float8 / 1048576,
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database())::float8,
       pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8 / 1048576
  FROM pg_stat_user_tables AS s
 WHERE s.relid = 'duetime.task'::regclass";

/// One value of a row.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub name: String,
    pub unit: &'static str,
    /// Where the column must stay flat: the growth that never counts.
    pub slack: Option<f64>,
    /// NaN where the look did not succeed.
    pub value: f64,
}

/// What one look shows. All rows have the same columns.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub minutes: f64,
    pub cells: Vec<Cell>,
}

impl Row {
    fn add<const N: usize>(&mut self, columns: &[Column; N], prefix: &str, values: Result<[f64; N]>) {
        let values = values.unwrap_or_else(|error| {
            progress(&format!("soak: a look does not show `{prefix}{}` and what follows: {error:#}", columns[0].name));
            [f64::NAN; N]
        });
        self.cells.extend(columns.iter().zip(values).map(|(column, value)| Cell {
            name: format!("{prefix}{}", column.name),
            unit: column.unit,
            slack: column.slack,
            value,
        }));
    }
}

/// Looks, and remembers what the next look needs.
#[derive(Debug)]
pub(super) struct Looker<'a> {
    cluster: &'a Sandbox,
    clients: Vec<Client>,
    published: Scrape,
    log_mb: f64,
}

impl<'a> Looker<'a> {
    pub(super) async fn start(cluster: &'a Sandbox) -> Result<Self> {
        let clients = cluster.clients();
        let published = Scrape::of(&clients).await?;
        let mut looker = Self { cluster, clients, published, log_mb: 0.0 };
        looker.postgres().await?;
        Ok(looker)
    }

    pub(super) async fn look(&mut self, minutes: f64, book: &Book) -> Row {
        let mut row = Row { minutes, cells: Vec::new() };
        let tally = book.tally();
        row.add(&TASKS, "", Ok([tally.submitted as f64, tally.arrived as f64, book.missing() as f64]));
        row.add(&PUBLISHED, "", within(self.published()).await);
        for node in self.cluster.nodes() {
            row.add(&NODE, &format!("{}: ", node.name()), held(node));
        }
        row.add(&POSTGRES, "", within(self.postgres()).await);
        row.add(&RABBIT, "", within(rabbit(self.cluster)).await);
        row.add(&ETCD, "", within(etcd(self.cluster)).await);
        row
    }

    /// The lateness of what was published since the last look.
    async fn published(&mut self) -> Result<[f64; 2]> {
        let now = Scrape::of(&self.clients).await?;
        let late = now.since(&self.published).histogram("duetime_lateness_seconds", &format!("queue=\"{QUEUES}"));
        self.published = now;
        Ok([late.quantile(0.5) * 1e3, late.quantile(0.99) * 1e3])
    }

    /// The log's length is that since the last look.
    async fn postgres(&mut self) -> Result<[f64; POSTGRES.len()]> {
        let mut connection = PgConnection::connect(&self.cluster.database_url(0)).await?;
        let row = sqlx::query(LOOK).fetch_one(&mut connection).await.context("looking at PostgreSQL")?;
        connection.close().await?;
        let mut values = [f64::NAN; POSTGRES.len()];
        for (place, value) in values.iter_mut().enumerate() {
            *value = row.try_get::<Option<f64>, _>(place)?.unwrap_or(f64::NAN);
        }
        if let Some(log_mb) = values.last_mut() {
            let now_mb = *log_mb;
            *log_mb -= self.log_mb;
            self.log_mb = now_mb;
        }
        Ok(values)
    }
}

async fn within<const N: usize>(answer: impl Future<Output = Result<[f64; N]>>) -> Result<[f64; N]> {
    timeout(ANSWER_WITHIN, answer).await.with_context(|| format!("no answer within {ANSWER_WITHIN:?}"))?
}

fn held(node: &Node) -> Result<[f64; 3]> {
    let pid = node.pid().with_context(|| format!("{} has ended", node.name()))?;
    let [kb, handles, threads] =
        [resident_kb(pid), handles(pid), threads(pid)].map(|value| value.map_or(f64::NAN, |value| value as f64));
    Ok([kb / KB_PER_MB, handles, threads])
}

async fn rabbit(cluster: &Sandbox) -> Result<[f64; 5]> {
    let rabbit = cluster.rabbit();
    let [queues, messages, connections, channels] = rabbit.counts(cluster.vhost()).await?.map(|count| count as f64);
    // The first process is the broker, the second its name server.
    let memory_kb = rabbit.pids().first().and_then(|pid| resident_kb(*pid)).map_or(f64::NAN, |kb| kb as f64);
    Ok([queues, messages, connections, channels, memory_kb / KB_PER_MB])
}

async fn etcd(cluster: &Sandbox) -> Result<[f64; 2]> {
    let (keys, _) = in_etcd(cluster).await?;
    Ok([keys as f64, cluster.etcd().data_bytes().await? as f64 / BYTES_PER_MB])
}

/// The rows as a file of comma-separated values, written as they come.
#[derive(Debug)]
pub(super) struct Csv {
    file: BufWriter<File>,
    is_empty: bool,
}

impl Csv {
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self { file: BufWriter::new(file), is_empty: true })
    }

    pub(super) fn add(&mut self, row: &Row) -> Result<()> {
        if self.is_empty {
            let names: String = row.cells.iter().map(|cell| format!(",{} {}", cell.name, cell.unit)).collect();
            writeln!(self.file, "minutes{}", names.replace(" ,", ",").trim_end())?;
            self.is_empty = false;
        }
        write!(self.file, "{:.2}", row.minutes)?;
        for cell in &row.cells {
            if cell.value.is_nan() {
                write!(self.file, ",")?;
            } else {
                write!(self.file, ",{:.3}", cell.value)?;
            }
        }
        writeln!(self.file)?;
        Ok(self.file.flush()?)
    }
}
