//! `duetime check`: tests the configuration and every connection, one line each.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use prometheus::Registry;
use serde_json::json;

use super::{
    config_file::ConfigArgs,
    error::Error,
    output::{Form, say},
};
use crate::causes::explained;
use crate::{
    broker::{Broker, BrokerMetrics, BrokerState},
    config::{self, Config, Database},
    coordination::{self, Coordination, CoordinationMetrics},
    settings,
    store::{self, StoreMetrics},
    supervise,
};

/// A server that has not answered within this time counts as unreachable.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// One line of the output.
#[derive(Debug)]
struct Finding {
    what: String,
    found: Result<String, Fault>,
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
    let config_read = Finding { what: "config".to_owned(), found: Ok(summary(config)) };
    let databases = join_all(config.databases.iter().map(|database| async {
        let looked = within(database_found(database, config.shard_count())).await;
        Finding { what: format!("database {}", database.name), found: looked }
    }));
    let (databases, etcd, amqp) =
        tokio::join!(databases, within(etcd_found(&config.etcd)), within(amqp_found(&config.amqp)));
    let rest = [Finding { what: "etcd".to_owned(), found: etcd }, Finding { what: "amqp".to_owned(), found: amqp }];
    [config_read].into_iter().chain(databases).chain(rest).collect()
}

fn summary(config: &Config) -> String {
    let (shards, databases, tokens) = (config.shard_count(), config.databases.len(), config.auth.token.len());
    format!(
        "node {}, {shards} shards in {databases} database(s), {tokens} token(s), listens on {}",
        config.node.name, config.http.listen
    )
}

async fn within(look: impl Future<Output = Result<String, Fault>>) -> Result<String, Fault> {
    let silent = || Fault::Unreachable(format!("no answer within {} s", ANSWER_WITHIN.as_secs()));
    tokio::time::timeout(ANSWER_WITHIN, look).await.unwrap_or_else(|_| Err(silent()))
}

async fn database_found(database: &Database, shard_count: u16) -> Result<String, Fault> {
    let families = StoreMetrics::families(&Registry::new()).map_err(|error| Fault::Refused(error.to_string()))?;
    let metrics = Arc::new(StoreMetrics::new(families, database.name.as_str()));
    let options = settings::database(database, "check");
    let store = store::Database::new(database.name.clone(), database.shards, options, metrics);
    match store.schema_check(shard_count).await {
        Ok(()) => {
            let version = store::migrate::schema_version();
            Ok(format!("{}, schema version {version}, shards {}", database.place(), database.shards))
        }
        Err(misfit) if misfit.is_unreachable() => {
            Err(Fault::Unreachable(format!("{}: {}", database.place(), explained(&misfit))))
        }
        Err(misfit) => Err(Fault::Refused(format!("{}: {}", database.place(), explained(&misfit)))),
    }
}

async fn etcd_found(etcd: &config::Etcd) -> Result<String, Fault> {
    let metrics = CoordinationMetrics::register(&Registry::new()).map_err(|error| Fault::Refused(error.to_string()))?;
    let settings = settings::etcd(etcd).map_err(|error| Fault::Refused(error.to_string()))?;
    let place = etcd.endpoints.join(",");
    let read = async { Coordination::new(settings, metrics).await?.assignment_read().await };
    match read.await {
        Ok(Some(_)) => Ok(format!("{place}, prefix {} with an assignment", etcd.prefix)),
        Ok(None) => Ok(format!("{place}, prefix {} without an assignment yet", etcd.prefix)),
        Err(error @ coordination::Error::Unanswered { .. }) => {
            Err(Fault::Unreachable(format!("{place}: {}", explained(&error))))
        }
        Err(error) => Err(Fault::Refused(format!("{place}: {}", explained(&error)))),
    }
}

async fn amqp_found(amqp: &config::Amqp) -> Result<String, Fault> {
    let metrics = BrokerMetrics::register(&Registry::new()).map_err(|error| Fault::Refused(error.to_string()))?;
    let (broker, keeper) = Broker::new(settings::amqp(amqp, None), Arc::new(metrics));
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

/// Whether the broker itself refused: a wrong password, a missing virtual host, a missing permission.
fn says_no(reason: &str) -> bool {
    ["ACCESS_REFUSED", "ACCESS-REFUSED", "NOT_ALLOWED", "NOT-ALLOWED"]
        .iter()
        .any(|code| reason.to_uppercase().contains(code))
}

impl Finding {
    fn line(&self) -> String {
        match &self.found {
            Ok(detail) => format!("{:<16} ok      {detail}", self.what),
            Err(Fault::Refused(reason) | Fault::Unreachable(reason)) => format!("{:<16} failed  {reason}", self.what),
        }
    }

    fn json(&self) -> serde_json::Value {
        let (result, detail) = match &self.found {
            Ok(detail) => ("ok", detail),
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
        Finding { what: "etcd".to_owned(), found: found.map(str::to_owned) }
    }

    #[test]
    fn a_refusal_weighs_more_than_what_cannot_be_reached() {
        let refused = || finding(Err(Fault::Refused("no".to_owned())));
        let unreachable = || finding(Err(Fault::Unreachable("silent".to_owned())));
        assert!(verdict(&[finding(Ok("fine"))]).is_ok());
        assert!(matches!(verdict(&[finding(Ok("fine")), unreachable()]), Err(Error::CheckUnreachable)));
        assert!(matches!(verdict(&[unreachable(), refused()]), Err(Error::CheckRefused)));
    }

    #[test]
    fn a_connection_refused_by_the_machine_is_not_a_refusal_of_the_broker() {
        assert!(says_no("cannot connect: ACCESS_REFUSED - Login was refused"));
        assert!(!says_no("cannot connect: Connection refused (os error 111)"));
    }
}
