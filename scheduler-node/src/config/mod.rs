//! The node's configuration: defaults, then a TOML file, then variables `DUETIME_SECTION__NAME`. Secrets may also
//! come from files (`*_file`). Each section has its own file here.
//!
//! All values are checked at once, relations between them included. Every mistake is reported as one sentence that
//! names its key. This module connects to nothing on purpose: an unreachable server is no mistake of the
//! configuration.

pub mod amqp;
pub mod audit;
pub mod auth;
pub mod cluster;
pub mod complaint;
pub mod console;
pub mod database;
pub mod delay_exchange;
pub mod difference;
pub mod etcd;
pub mod http;
pub mod keys;
pub mod link;
pub mod node;
pub mod oidc;
pub mod queues;
pub mod scheduler;
pub mod telemetry;

mod error;
#[cfg(any(test, feature = "failpoints"))]
pub mod fuzz;
mod read;
mod scope;
mod tls;
mod tree;

use std::{fmt::Write, path::Path};

use figment::{
    Figment,
    error::{Actual, Kind},
    providers::Serialized,
};
use serde::Deserialize;

pub use self::{
    amqp::Amqp, audit::Audit, auth::Auth, cluster::Cluster, complaint::Complaints, console::Console,
    database::Database, delay_exchange::DelayExchange, difference::Difference, error::Error, etcd::Etcd, http::Http,
    link::Link, node::Node, oidc::Oidc, queues::Queues, scheduler::Scheduler, telemetry::Telemetry,
};
use self::{difference::Values, tree::Tree};

#[cfg(test)]
pub use self::auth::{Role, Token};

/// The search for mistakes ends at this many.
const MISTAKES_MAX: usize = 200;

/// The whole configuration. Debug shows no secret.
#[derive(Clone, Debug)]
pub struct Config {
    pub node: Node,
    pub cluster: Cluster,
    pub etcd: Etcd,
    /// In the order of the file, at least one. The first migration gives each shard from 0 on to one of them.
    pub databases: Vec<Database>,
    pub amqp: Amqp,
    pub delay_exchanges: Vec<DelayExchange>,
    pub http: Http,
    pub auth: Auth,
    pub audit: Audit,
    pub console: Console,
    pub scheduler: Scheduler,
    pub queues: Queues,
    pub telemetry: Telemetry,
    /// As written, to compare with a later reading.
    values: Values,
}

/// The file, before its values are checked and its defaults settled.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawConfig {
    #[serde(default)]
    node: Node,
    #[serde(default)]
    cluster: Cluster,
    #[serde(default)]
    etcd: Etcd,
    #[serde(default)]
    database: Vec<database::RawDatabase>,
    amqp: Amqp,
    #[serde(default)]
    delay_exchange: Vec<DelayExchange>,
    #[serde(default)]
    http: Http,
    #[serde(default)]
    auth: auth::RawAuth,
    #[serde(default)]
    audit: Audit,
    #[serde(default)]
    console: Console,
    #[serde(default)]
    scheduler: Scheduler,
    #[serde(default)]
    queues: Queues,
    #[serde(default)]
    telemetry: Telemetry,
}

impl Config {
    /// Reads the file, if there is one, and the environment of the process.
    pub fn load(file: Option<&Path>) -> Result<Self, Error> {
        Self::read(file, environment())
    }

    /// Reads only a consumer's settings: the broker's address and the logging. The other sections may be missing, and
    /// their secrets may be out of reach.
    pub fn load_for_consumer(file: Option<&Path>) -> Result<(Amqp, Telemetry), Error> {
        Self::read_for_consumer(file, environment())
    }

    fn read_for_consumer(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(Amqp, Telemetry), Error> {
        let mut complaints = Complaints::default();
        let mut tree = Tree::of_sections(&["amqp", "telemetry"], file, environment, &mut complaints)?;
        let urls = tree.urls();
        let raw = shape(&mut tree, &mut complaints);
        if let Some(raw) = &raw {
            raw.amqp.check(&mut complaints);
            raw.telemetry.check(&mut complaints);
        }
        complaints.hide(&urls);
        complaints.name_variables(&tree.variables);
        match raw {
            Some(raw) if complaints.is_empty() => Ok((raw.amqp, raw.telemetry)),
            _ => Err(Error::Refused(complaints)),
        }
    }

    /// Reads the file, if there is one, with `environment` taking precedence.
    pub fn read(file: Option<&Path>, environment: impl IntoIterator<Item = (String, String)>) -> Result<Self, Error> {
        let mut complaints = Complaints::default();
        let tree = Tree::of(file, environment, &mut complaints)?;
        Self::of_tree(tree, complaints)
    }

    fn of_tree(mut tree: Tree, mut complaints: Complaints) -> Result<Self, Error> {
        let urls = tree.urls();
        let raw = shape(&mut tree, &mut complaints);
        let config = raw.map(|raw| validate(raw, Values::of(&tree), &mut complaints));
        complaints.hide(&urls);
        complaints.name_variables(&tree.variables);
        match config {
            Some(config) if complaints.is_empty() => Ok(config),
            _ => Err(Error::Refused(complaints)),
        }
    }

    /// The number of shards that the first migration writes into the databases.
    pub fn first_shard_count(&self) -> u16 {
        let ranges = self.databases.iter().filter_map(|database| database.shards);
        ranges.map(|shards| shards.last().number() + 1).max().unwrap_or(0)
    }

    /// The same number, if the configuration states it: as `cluster.shards`, or by the ranges of the databases.
    pub fn stated_shard_count(&self) -> Option<u16> {
        let is_stated = self.cluster.shards.is_some() || self.databases.iter().any(|database| database.is_ranged);
        is_stated.then(|| self.first_shard_count())
    }

    /// Warnings about settings that work but send passwords over a network in the clear, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = self.amqp.warning().into_iter().collect();
        let is_clear = |url: &String| Link::parse(url).is_some_and(|link| link.scheme == "http" && !link.is_loopback());
        if self.etcd.password.is_some() && self.etcd.endpoints.iter().any(is_clear) {
            warnings.push("`etcd.password` is sent over the network unencrypted; use https:// endpoints".to_owned());
        }
        warnings
    }

    /// The effective configuration on one line, fit for a log: no passwords, no tokens.
    pub fn redacted(&self) -> String {
        let mut line =
            format!("node={} etcd={} prefix={}", self.node.name, self.etcd.endpoints.join(","), self.etcd.prefix);
        for database in &self.databases {
            // Writing to a String cannot fail.
            let _ = write!(line, " database.{}={}", database.name, database.place());
            if let Some(shards) = database.shards.filter(|_| database.is_ranged) {
                let _ = write!(line, " shards={shards}");
            }
        }
        let _ = write!(line, " amqp={} listen={}", self.amqp.place(), self.http.listen);
        for of in &self.delay_exchanges {
            let _ = write!(line, " delay_exchange.{}={}", of.name, of.deliver_to);
        }
        let Scheduler { horizon_ms, heap_entries, claim_ahead_ms, batch, window } = self.scheduler;
        let _ = write!(line, " tokens={} horizon_ms={horizon_ms} heap_entries={heap_entries}", self.auth.token.len());
        if let Some(oidc) = &self.auth.oidc {
            let _ = write!(line, " oidc={}", oidc.issuer);
        }
        let _ = write!(line, " claim_ahead_ms={claim_ahead_ms} batch={batch} window={window}");
        let _ = write!(line, " show_payloads={}", self.console.show_payloads);
        let Queues { auto_create, max_payload_bytes, max, max_per_caller } = self.queues;
        let _ = write!(line, " auto_create={auto_create} max_payload_bytes={max_payload_bytes}");
        let _ = write!(line, " queues_max={max} queues_max_per_caller={max_per_caller}");
        line
    }
}

/// The environment of the process. A variable that is not UTF-8 cannot be one of Duetime's.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Gives the values their types. A value that does not fit its type becomes a complaint and is dropped, so that the
/// next mistake comes to light as well.
fn shape(tree: &mut Tree, complaints: &mut Complaints) -> Option<RawConfig> {
    for _ in 0..MISTAKES_MAX {
        // Lossy, because a variable holds text even where a number or a boolean is expected.
        let error = match Figment::from(Serialized::defaults(&tree.root)).extract_lossy::<RawConfig>() {
            Ok(mut raw) => {
                raw.telemetry.set_by(&tree.variables);
                return Some(raw);
            }
            Err(error) => error,
        };
        let mut path = error.path.clone();
        match &error.kind {
            Kind::UnknownField(_, known) => {
                // The path ends with the unknown name.
                let section = tree::key_path(&path[..path.len().saturating_sub(1)]);
                let section = if section.is_empty() { "the file".to_owned() } else { format!("[{section}]") };
                complaints.add(tree::key_path(&path), format!("is unknown; {section} has {}", known.join(", ")));
                tree.remove(&path);
            }
            Kind::MissingField(name) => {
                path.push(name.to_string());
                let key = tree::key_path(&path);
                if !complaints.about(&format!("{key}_file")) {
                    complaints.add(key, "is missing; it has no default");
                }
                tree.stand_in(&path);
            }
            kind => {
                complaints.add(tree::key_path(&path), mismatch(&path, kind));
                tree.remove(&path);
            }
        }
    }
    None
}

/// Why a value does not fit its type. The message repeats the value only if it cannot be a secret.
fn mismatch(path: &[String], kind: &Kind) -> String {
    let secret = path.last().is_some_and(|name| keys::SECRETS.iter().any(|key| key.rsplit('.').next() == Some(name)));
    match kind {
        Kind::InvalidType(..) | Kind::InvalidValue(..) if secret => "must be text in quotes".to_owned(),
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            let expected = plain(expected);
            let found = match found {
                // A section may hold a password, so the text in its place may hold one too.
                Actual::Str(_) if ["a list", "a section"].contains(&expected) => "text".to_owned(),
                Actual::Str(text) => format!("{text:?}"),
                other => other.to_string(),
            };
            format!("is {found}; it must be {expected}")
        }
        Kind::UnknownVariant(found, known) => format!("is {found:?}; it must be one of {}", known.join(", ")),
        Kind::Message(problem) => problem.clone(),
        other => other.to_string(),
    }
}

/// The name of a type in plain words.
fn plain(expected: &str) -> &str {
    match expected {
        "u32" | "u64" | "usize" => "a whole number, not negative",
        "a string" | "a borrowed string" | "path string" => "text in quotes",
        "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        _ if expected.starts_with("struct") => "a section",
        _ => expected,
    }
}

/// The default of a limit that is part of another one is no higher than that one.
fn lower_defaults(raw: &mut RawConfig, values: &Values) {
    if !values.has("http.max_connections_per_address") {
        raw.http.max_connections_per_address = raw.http.max_connections_per_address.min(raw.http.max_connections);
    }
    if !values.has("queues.max_per_caller") {
        raw.queues.max_per_caller = raw.queues.max_per_caller.min(raw.queues.max);
    }
}

/// Checks the meaning of the values, each alone and in relation to the others.
fn validate(mut raw: RawConfig, values: Values, complaints: &mut Complaints) -> Config {
    lower_defaults(&mut raw, &values);
    raw.node.check(complaints);
    raw.cluster.check(complaints);
    raw.etcd.check(complaints);
    let databases = database::settle(raw.database, raw.cluster, complaints);
    raw.amqp.check(complaints);
    delay_exchange::check(&raw.delay_exchange, complaints);
    let auth = auth::settle(raw.auth, complaints);
    raw.http.check(&auth, complaints);
    raw.audit.check(complaints);
    raw.scheduler.check(complaints);
    raw.queues.check(complaints);
    raw.telemetry.check(complaints);
    Config {
        node: raw.node,
        cluster: raw.cluster,
        etcd: raw.etcd,
        databases,
        amqp: raw.amqp,
        delay_exchanges: raw.delay_exchange,
        http: raw.http,
        auth,
        audit: raw.audit,
        console: raw.console,
        scheduler: raw.scheduler,
        queues: raw.queues,
        telemetry: raw.telemetry,
        values,
    }
}

#[cfg(test)]
mod tests;
