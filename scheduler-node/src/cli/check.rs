//! `duetime check`: tests the configuration and every connection, one line each.

use std::{collections::HashMap, sync::Arc, time::Duration};

use common::{
    cluster::realm::RealmRecord,
    hint::{Hint, postgres_hints},
    ids::{ClusterId, DatabaseId, DatabaseName, RealmId},
};
use futures::future::join_all;
use prometheus::Registry;
use serde_json::json;
use tokio::sync::watch;

use super::{
    config_file::ConfigArgs,
    error::Error,
    output::{Form, say},
};
use crate::causes::explained;
use crate::{
    broker::{Broker, BrokerMetrics, BrokerState, ClusterGate},
    clock,
    config::{self, Config, Database, Http},
    coordination::{self, Coordination, CoordinationMetrics, ForeignPrefix},
    settings,
    store::{
        self, StoreMetrics,
        realm::InUse,
        schema::{Fit, Misfit, refuse_too_many},
    },
    supervise,
};

/// A server that has not answered within this time counts as unreachable.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

const DAY_S: i64 = 86_400;

/// A certificate that has fewer days left was to be renewed before: most are a month or a third of their time before.
const RENEWED_DAYS_BEFORE: i64 = 14;

/// One line of the output.
#[derive(Debug)]
struct Finding {
    what: String,
    found: Result<Answer, Fault>,
}

/// What a server that can be used has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Fits(String),
    /// It can be used, and would do better with another setting.
    Hint(String),
}

/// Why a required server cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// The server answered and refused: waiting does not help.
    Refused(String),
    Unreachable(String),
}

/// Checks everything before printing anything. The check does not disturb a running node.
pub async fn check(args: &ConfigArgs) -> Result<(), Error> {
    let findings = match args.file.load() {
        Ok(config) => look(&config).await,
        Err(error) => mistakes(&error),
    };
    for finding in &findings {
        match args.output.output {
            Form::Text => say(finding.line()),
            Form::Json | Form::Jsonl => say(finding.json()),
        }
    }
    verdict(&findings)
}

fn verdict(findings: &[Finding]) -> Result<(), Error> {
    let faults: Vec<&Fault> = findings.iter().filter_map(|finding| finding.found.as_ref().err()).collect();
    if faults.is_empty() {
        Ok(())
    } else if faults.iter().any(|fault| matches!(fault, Fault::Refused(_))) {
        Err(Error::CheckRefused)
    } else {
        Err(Error::CheckUnreachable)
    }
}

/// One line for each mistake in the configuration.
fn mistakes(error: &Error) -> Vec<Finding> {
    let finding = |problem: String| Finding { what: "config".to_owned(), found: Err(Fault::Refused(problem)) };
    match error {
        Error::Config(config::Error::Refused(complaints)) => {
            complaints.iter().map(|complaint| finding(complaint.to_string())).collect()
        }
        Error::Config(other) => vec![finding(explained(other))],
        other => vec![finding(explained(other))],
    }
}

async fn look(config: &Config) -> Vec<Finding> {
    let config_read = Finding { what: "config".to_owned(), found: Ok(Answer::Fits(summary(config))) };
    let databases = join_all(config.databases.iter().enumerate().map(|(index, database)| async move {
        let is_first = index == 0;
        let new_cluster_of = config.stated_shard_count().filter(|_| is_first);
        let looked = within(database_found(database, is_first, new_cluster_of)).await;
        (format!("database {}", database.name), looked)
    }));
    let (databases, etcd) = tokio::join!(databases, within(etcd_found(&config.etcd)));
    let cluster = databases.iter().find_map(|(_, looked)| Some(looked.as_ref().ok()?.cluster));
    let amqp = within(amqp_found(&config.amqp, cluster)).await;
    let realm = etcd.as_ref().ok().map(|(_, record)| record.map(|record| record.realm));
    let shard_count = databases.iter().find_map(|(_, looked)| Some(looked.as_ref().ok()?.shard_count));
    let stated = config.stated_shard_count();
    let mut names = HashMap::new();
    let databases = databases.into_iter().flat_map(|(what, mut looked)| {
        let hints = looked.as_mut().map_or_else(|_| Vec::new(), |looked| std::mem::take(&mut looked.hints));
        let found = looked
            .and_then(|looked| looked.under_one_name(&mut names)?.of_shards(shard_count, stated)?.in_realm(realm));
        let hints: Vec<_> = hints.iter().map(|hint| Finding::of_hint(&what, hint)).collect();
        [Finding { what, found: found.map(Answer::Fits) }].into_iter().chain(hints)
    });
    let etcd = etcd.and_then(|(found, record)| in_cluster(&config.etcd, found, record, cluster));
    let rest = [("etcd", etcd), ("amqp", amqp)]
        .map(|(what, found)| Finding { what: what.to_owned(), found: found.map(Answer::Fits) });
    [config_read].into_iter().chain(certificate_found(&config.http)).chain(databases).chain(rest).collect()
}

/// The node's own certificate, if configured, read as a node reads it at its start.
fn certificate_found(http: &Http) -> Vec<Finding> {
    let Some(file) = &http.cert_file else { return Vec::new() };
    let finding = |found| Finding { what: "http".to_owned(), found };
    match settings::certificate(http) {
        Ok(certificate) => {
            let end_s = certificate.map_or(i64::MAX, |certificate| certificate.not_after_s());
            let left_s = end_s.saturating_sub(clock::now().to_utc().timestamp());
            certificate_in_time(&file.display().to_string(), left_s).into_iter().map(finding).collect()
        }
        Err(error) => vec![finding(Err(Fault::Refused(format!("http.cert_file: {}", explained(&error)))))],
    }
}

/// Refuses a certificate that has ended, and gives a hint about one that ends soon.
fn certificate_in_time(file: &str, left_s: i64) -> Vec<Result<Answer, Fault>> {
    if left_s <= 0 {
        return vec![Err(Fault::Refused(format!("http.cert_file: the certificate {file} has expired")))];
    }
    let mut found = vec![Ok(Answer::Fits(format!("certificate {file}")))];
    let days_left = left_s / DAY_S;
    if days_left < RENEWED_DAYS_BEFORE {
        found.push(Ok(Answer::Hint(format!("the certificate {file} ends in {days_left} days: renew it"))));
    }
    found
}

/// A database that fits.
struct DatabaseFound {
    name: DatabaseName,
    id: DatabaseId,
    text: String,
    shard_count: u16,
    cluster: ClusterId,
    /// The realm whose nodes use it now.
    used_by: Option<RealmId>,
    hints: Vec<Hint>,
}

impl DatabaseFound {
    /// Refuses a database that is among `names` already.
    fn under_one_name(self, names: &mut HashMap<DatabaseId, DatabaseName>) -> Result<Self, Fault> {
        match names.insert(self.id, self.name.clone()) {
            None => Ok(self),
            Some(other) => Err(Fault::Refused(Misfit::Same { database: self.name, other }.to_string())),
        }
    }

    /// Refuses a database of another number of shards than the first that answered. Names the number, and the one that
    /// the configuration states, if that is another.
    fn of_shards(mut self, shard_count: Option<u16>, stated: Option<u16>) -> Result<Self, Fault> {
        let found = self.shard_count;
        if let Some(expected) = shard_count.filter(|expected| *expected != found) {
            return Err(Fault::Refused(Misfit::Shards { database: self.name, found, expected }.to_string()));
        }
        self.text = match stated.filter(|stated| *stated != found) {
            Some(stated) => format!("{}, {found} shards, not the {stated} of the configuration", self.text),
            None => format!("{}, {found} shards", self.text),
        };
        Ok(self)
    }

    /// Refuses a database that the nodes of another realm use. `realm`: the one in etcd, if etcd has answered.
    fn in_realm(self, realm: Option<Option<RealmId>>) -> Result<String, Fault> {
        match (self.used_by, realm) {
            (Some(used_by), Some(realm)) if realm != Some(used_by) => {
                Err(Fault::Refused(format!("{}: {}", self.text, InUse { by: used_by })))
            }
            _ => Ok(self.text),
        }
    }
}

/// Refuses a prefix that belongs to another cluster than the databases.
fn in_cluster(
    etcd: &config::Etcd,
    found: String,
    record: Option<RealmRecord>,
    cluster: Option<ClusterId>,
) -> Result<String, Fault> {
    match (record, cluster) {
        (Some(record), Some(cluster)) if record.cluster != cluster => {
            let prefix = etcd.prefix.clone();
            Err(Fault::Refused(ForeignPrefix { prefix, found: record.cluster, expected: cluster }.to_string()))
        }
        _ => Ok(found),
    }
}

fn summary(config: &Config) -> String {
    let (databases, tokens) = (config.databases.len(), config.auth.token.len());
    format!("node {}, {databases} database(s), {tokens} token(s), listens on {}", config.node.name, config.http.listen)
}

async fn within<T>(look: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    let silent = || Fault::Unreachable(format!("no answer within {} s", ANSWER_WITHIN.as_secs()));
    tokio::time::timeout(ANSWER_WITHIN, look).await.unwrap_or_else(|_| Err(silent()))
}

/// `new_cluster_of`: the number of shards of the cluster that an empty database becomes the first of.
async fn database_found(
    database: &Database,
    is_first: bool,
    new_cluster_of: Option<u16>,
) -> Result<DatabaseFound, Fault> {
    let families = StoreMetrics::families(&Registry::new()).map_err(|error| Fault::Refused(error.to_string()))?;
    let metrics = Arc::new(StoreMetrics::new(families, database.name.as_str()));
    let options = settings::database(database, "check");
    let name = database.name.clone();
    let store = store::Database::new(name.clone(), options, metrics);
    let in_its_place = |fit: Fit| if is_first { fit.require_first(&name).map(|()| fit) } else { Ok(fit) };
    let checked = store.schema_check().await.and_then(in_its_place).map_err(|misfit| match new_cluster_of {
        Some(asked) if matches!(misfit, Misfit::Empty { .. }) => refuse_too_many(&name, asked).err().unwrap_or(misfit),
        _ => misfit,
    });
    match checked {
        Ok(Fit { version, id, cluster, shard_count, .. }) => {
            let text = format!("{}, schema version {version}", database.place());
            match store.realm_read().await {
                // A server that refuses to tell its settings gets no hints.
                Ok(used_by) => {
                    let hints =
                        store.server_settings().await.map_or_else(|_| Vec::new(), |found| postgres_hints(&found));
                    Ok(DatabaseFound { name, id, text, shard_count, cluster, used_by, hints })
                }
                Err(error) => Err(Fault::Unreachable(format!("{}: {}", database.place(), explained(&error)))),
            }
        }
        Err(misfit) if misfit.is_unreachable() => {
            Err(Fault::Unreachable(format!("{}: {}", database.place(), explained(&misfit))))
        }
        Err(misfit) => Err(Fault::Refused(format!("{}: {}", database.place(), explained(&misfit)))),
    }
}

async fn etcd_found(etcd: &config::Etcd) -> Result<(String, Option<RealmRecord>), Fault> {
    let metrics = CoordinationMetrics::register(&Registry::new()).map_err(|error| Fault::Refused(error.to_string()))?;
    let settings = settings::etcd(etcd).map_err(|error| Fault::Refused(error.to_string()))?;
    let place = etcd.endpoints.join(",");
    let read = async {
        let coordination = Coordination::new(settings, metrics).await?;
        let found = (coordination.assignment_read().await?, coordination.realm_read().await?);
        coordination.write_probe().await?;
        Ok(found)
    };
    match read.await {
        Ok((Some(_), realm)) => Ok((format!("{place}, prefix {} with an assignment", etcd.prefix), realm)),
        Ok((None, realm)) => Ok((format!("{place}, prefix {} without an assignment yet", etcd.prefix), realm)),
        Err(error @ coordination::Error::Unanswered { .. }) => {
            Err(Fault::Unreachable(format!("{place}: {}", explained(&error))))
        }
        Err(error) => Err(Fault::Refused(format!("{place}: {}", explained(&error)))),
    }
}

/// Checks the broker, and, if the databases have said which cluster they belong to, whose the virtual host is.
async fn amqp_found(amqp: &config::Amqp, cluster: Option<ClusterId>) -> Result<String, Fault> {
    let metrics = BrokerMetrics::register(&Registry::new()).map_err(|error| Fault::Refused(error.to_string()))?;
    let cluster = cluster.map(|cluster| {
        let known = watch::channel(Some(cluster)).1;
        ClusterGate { publishing: known.clone(), consuming: known }
    });
    let (broker, keeper) = Broker::new(settings::amqp(amqp, None, cluster), Arc::new(metrics));
    let mut state = broker.state();
    supervise::spawn_child(keeper);
    // The first change of state is the outcome of the first attempt.
    let changed = state.changed().await;
    let found = match &*state.borrow() {
        BrokerState::Up { blocked: false } => Ok(amqp.place()),
        BrokerState::Up { blocked: true } => {
            Ok(format!("{}, but it accepts no messages: it is short of memory or disk", amqp.place()))
        }
        BrokerState::Down { reason, .. } if says_no(reason) => {
            Err(Fault::Refused(format!("{}: {reason}", amqp.place())))
        }
        BrokerState::Down { reason, .. } => Err(Fault::Unreachable(format!("{}: {reason}", amqp.place()))),
    };
    broker.close().await;
    changed.map_err(|_| Fault::Unreachable("the connection ended".to_owned())).and(found)
}

/// Whether the broker itself refused: a wrong password, a missing virtual host or permission, another cluster's host.
fn says_no(reason: &str) -> bool {
    ["ACCESS_REFUSED", "ACCESS-REFUSED", "NOT_ALLOWED", "NOT-ALLOWED", "PRECONDITION_FAILED", "PRECONDITION-FAILED"]
        .iter()
        .any(|code| reason.to_uppercase().contains(code))
}

impl Finding {
    fn of_hint(what: &str, Hint { setting, current, recommended, why }: &Hint) -> Self {
        let text = format!("{setting} is {current}, recommended: {recommended}; {why}");
        Self { what: what.to_owned(), found: Ok(Answer::Hint(text)) }
    }

    fn line(&self) -> String {
        match &self.found {
            Ok(Answer::Fits(detail)) => format!("{:<16} ok      {detail}", self.what),
            Ok(Answer::Hint(hint)) => format!("{:<16} hint    {hint}", self.what),
            Err(Fault::Refused(reason) | Fault::Unreachable(reason)) => format!("{:<16} failed  {reason}", self.what),
        }
    }

    fn json(&self) -> serde_json::Value {
        let (result, detail) = match &self.found {
            Ok(Answer::Fits(detail)) => ("ok", detail),
            Ok(Answer::Hint(hint)) => ("hint", hint),
            Err(Fault::Refused(reason)) => ("refused", reason),
            Err(Fault::Unreachable(reason)) => ("unreachable", reason),
        };
        json!({ "what": self.what, "result": result, "detail": detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(found: Result<&str, Fault>) -> Finding {
        Finding { what: "etcd".to_owned(), found: found.map(|text| Answer::Fits(text.to_owned())) }
    }

    #[test]
    fn a_refusal_weighs_more_than_what_cannot_be_reached() {
        let refused = || finding(Err(Fault::Refused("no".to_owned())));
        let unreachable = || finding(Err(Fault::Unreachable("silent".to_owned())));
        let hint = Finding { found: Ok(Answer::Hint("more".to_owned())), ..finding(Ok("fine")) };
        assert!(verdict(&[finding(Ok("fine")), hint]).is_ok());
        assert!(matches!(verdict(&[finding(Ok("fine")), unreachable()]), Err(Error::CheckUnreachable)));
        assert!(matches!(verdict(&[unreachable(), refused()]), Err(Error::CheckRefused)));
    }

    #[test]
    fn a_certificate_that_ends_soon_is_a_hint_and_one_that_has_ended_is_refused() {
        let found = |left_s| certificate_in_time("cert.pem", left_s);
        assert_eq!(found(14 * DAY_S).len(), 1);
        let soon = found(14 * DAY_S - 1);
        assert!(matches!(&soon[..], [Ok(Answer::Fits(_)), Ok(Answer::Hint(hint))] if hint.contains("in 13 days")));
        assert!(matches!(&found(0)[..], [Err(Fault::Refused(_))]));
    }

    #[test]
    fn a_connection_refused_by_the_machine_is_not_a_refusal_of_the_broker() {
        assert!(says_no("cannot connect: ACCESS_REFUSED - Login was refused"));
        assert!(!says_no("cannot connect: Connection refused (os error 111)"));
    }
}
