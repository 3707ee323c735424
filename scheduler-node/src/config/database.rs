//! `[[database]]`: the PostgreSQL databases that hold the tasks, each with the shards that it has at first.

use common::{
    ids::DatabaseName,
    shard::{
        DEFAULT_SHARDS,
        range::{self, CoverError, NotARange, ShardRange},
    },
};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::{cluster::Cluster, complaint::Complaints, link::Link, node::is_plain_name, read};
use crate::address::{SESSION_ATTRS, parameters};

/// One PostgreSQL database.
#[derive(Clone, Debug)]
pub struct Database {
    pub name: DatabaseName,
    pub url: SecretString,
    /// The shards that the first migration gives it. `None`: it begins without any. Shards may move later.
    pub shards: Option<ShardRange>,
    /// Whether the file states these shards.
    pub is_ranged: bool,
    /// Most connections that this node opens to it. Half of them are for dispatching, a quarter for writes, a quarter
    /// for reads.
    pub max_connections: u32,
    /// Whether the node accepts tasks only while a synchronous standby confirms commits.
    pub require_synchronous_standby: bool,
}

impl Database {
    /// The database's address, fit for a log: the URL without password and options.
    pub fn place(&self) -> String {
        Link::parse(self.url.expose_secret()).map(|link| link.to_string()).unwrap_or_default()
    }
}

/// The section as the file has it. The default of an omitted field depends on the number of databases.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDatabase {
    #[serde(default = "main")]
    name: String,
    #[serde(deserialize_with = "read::secret")]
    url: SecretString,
    shards: Option<String>,
    #[serde(default = "twenty")]
    max_connections: u32,
    #[serde(default)]
    require_synchronous_standby: bool,
}

fn main() -> String {
    "main".to_owned()
}

/// Three nodes stay within the 100 connections that PostgreSQL allows by default.
const fn twenty() -> u32 {
    20
}

/// The smallest number that leaves two connections for dispatching and one each for writes and reads.
const CONNECTIONS_LEAST: u32 = 4;

/// Checks each database, and all of them together. The result may be used only when there is no complaint.
pub(super) fn settle(raw: Vec<RawDatabase>, cluster: Cluster, complaints: &mut Complaints) -> Vec<Database> {
    if raw.is_empty() && !complaints.about("database") {
        complaints.add("database", "is missing; add a [[database]] with a url");
    }
    // Without any range the first database has all shards.
    let is_ranged = raw.iter().any(|raw| raw.shards.is_some());
    let count = cluster.shards.unwrap_or_else(|| DEFAULT_SHARDS.into());
    let mut databases: Vec<Database> = Vec::with_capacity(raw.len());
    let mut complete = true;
    for (index, raw) in raw.into_iter().enumerate() {
        let key = |name: &str| format!("database[{index}].{name}");
        check_one(&raw, &databases, key, complaints);
        let shards = match &raw.shards {
            Some(text) => read_shards(text).map(Some),
            None => Ok((index == 0 && !is_ranged).then(|| ShardRange::all(count))),
        };
        match shards {
            Ok(shards) => databases.push(Database {
                name: DatabaseName::new(&raw.name),
                url: raw.url,
                is_ranged: raw.shards.is_some(),
                shards,
                max_connections: raw.max_connections,
                require_synchronous_standby: raw.require_synchronous_standby,
            }),
            Err(problem) => {
                complete = false;
                complaints.add(key("shards"), problem);
            }
        }
    }
    if complete {
        check_cover(&databases, cluster, complaints);
    }
    databases
}

fn read_shards(text: &str) -> Result<ShardRange, String> {
    let range: ShardRange = text.parse().map_err(|error: NotARange| format!("is wrong: {error}"))?;
    if range.last().number() < u16::MAX {
        Ok(range)
    } else {
        Err("ends at 65535; the last shard may be 65534 at most".to_owned())
    }
}

/// Whether this value of `target_session_attrs` leads to a server that takes writes. A node finds it in any case, so
/// libpq's default is as good.
fn is_writer(value: &str) -> bool {
    ["any", "read-write", "primary"].contains(&value)
}

fn check_one(raw: &RawDatabase, before: &[Database], key: impl Fn(&str) -> String, complaints: &mut Complaints) {
    complaints.unless(
        is_plain_name(&raw.name),
        key("name"),
        format!("is {:?}; it must be 1 to 64 characters from A-Z a-z 0-9 . _ -", raw.name),
    );
    complaints.unless(
        before.iter().all(|other| other.name.as_str() != raw.name),
        key("name"),
        format!("is {:?}, the name of another database; give each a name of its own", raw.name),
    );
    let url = raw.url.expose_secret();
    if let Some(fault) = Link::fault_of_list(url, &["postgres", "postgresql"]) {
        complaints.add(key("url"), fault);
    } else if let Some((_, wanted)) = parameters(url).find(|(name, value)| name == SESSION_ATTRS && !is_writer(value)) {
        complaints.add(
            key("url"),
            format!("has {SESSION_ATTRS}={wanted}; a node writes: leave it out, or set read-write or primary"),
        );
    } else if before.iter().any(|other| other.url.expose_secret() == url) {
        complaints.add(key("url"), "belongs to another database; each needs a PostgreSQL database of its own");
    }
    complaints.unless(
        (CONNECTIONS_LEAST..=1_000).contains(&raw.max_connections),
        key("max_connections"),
        format!("is {}; it must be between {CONNECTIONS_LEAST} and 1000", raw.max_connections),
    );
}

/// Checks that the databases together hold every shard from 0 on exactly once at first.
fn check_cover(databases: &[Database], cluster: Cluster, complaints: &mut Complaints) {
    let ranges: Vec<_> =
        databases.iter().filter_map(|database| Some((database.name.clone(), database.shards?))).collect();
    let implied = ranges.iter().map(|(_, range)| u32::from(range.last().number()) + 1).max().unwrap_or(0);
    if let Some(stated) = cluster.shards.filter(|stated| *stated != implied)
        && !complaints.about("cluster.shards")
    {
        complaints.add(
            "cluster.shards",
            format!(
                "is {stated}, but the databases' ranges hold the shards up to {}; leave one of them out",
                implied.saturating_sub(1)
            ),
        );
    }
    let at = |is_it: &dyn Fn(&Database) -> bool| match databases.iter().position(is_it) {
        Some(index) => format!("database[{index}].shards"),
        None => "database".to_owned(),
    };
    match range::check_cover(&ranges, implied) {
        Ok(()) | Err(CoverError::Nothing) => {}
        Err(CoverError::Overlap { one, other, shared }) => complaints.add(
            at(&|database| database.name == other),
            format!("holds the shards {shared}, but so does database `{one}`; each shard belongs to one database"),
        ),
        Err(CoverError::Gap(missing)) => complaints.add(
            at(&|database| {
                database
                    .shards
                    .is_some_and(|shards| u32::from(shards.first().number()) == u32::from(missing.last().number()) + 1)
            }),
            // In a cluster that exists, a database that was removed leaves such a gap, and no range matters any more.
            format!(
                "leaves a gap: no database holds the shards {missing}; together they must cover 0 to the last; if the \
                 cluster exists already, leave `shards` out of every section"
            ),
        ),
        Err(error @ CoverError::Beyond { .. }) => complaints.add("database", error.to_string()),
    }
}
