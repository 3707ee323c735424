//! Shows which server of each database is in use, when another one takes its place, and what it may lack.

use std::collections::BTreeMap;

use common::ids::DatabaseName;

use crate::{metrics::Metrics, working_set::database::NodeDatabases};

/// The servers in use, each with its timeline, as they were at the last reading.
#[derive(Debug, Default)]
pub(super) struct Servers(BTreeMap<DatabaseName, (String, Option<i64>)>);

impl Servers {
    pub(super) fn read(&mut self, databases: &NodeDatabases, metrics: &Metrics) {
        for database in databases.all().iter() {
            let name = database.name().as_str();
            let missing = database.sql.loss().map_or(0, |loss| i64::try_from(loss.bytes.max(1)).unwrap_or(i64::MAX));
            metrics.database_missing_bytes.with_label_values(&[name]).set(missing);
            let unreplicated = i64::from(database.sql.unreplicated().is_some());
            metrics.database_unreplicated.with_label_values(&[name]).set(unreplicated);
            self.note(database.name(), database.sql.server(), metrics);
        }
    }

    fn note(&mut self, database: &DatabaseName, now: (String, Option<i64>), metrics: &Metrics) {
        let (server, timeline) = &now;
        let Some(before) = self.0.get(database) else {
            metrics.database_server.with_label_values(&[database.as_str(), server]).set(1);
            self.0.insert(database.clone(), now);
            return;
        };
        // Between two servers none is admitted.
        if *before == now || (timeline.is_none() && before.1.is_some()) {
            return;
        }
        // A server that said nothing of its timeline yet is no other one.
        if before.0 != *server || before.1.is_some() {
            metrics.database_failovers.with_label_values(&[database.as_str()]).inc();
        }
        metrics.database_server.with_label_values(&[database.as_str(), &before.0]).set(0);
        metrics.database_server.with_label_values(&[database.as_str(), server]).set(1);
        self.0.insert(database.clone(), now);
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn a_failover_counts_once_and_names_the_server() {
        let metrics = Metrics::register(&Registry::new()).unwrap();
        let (mut servers, main) = (Servers::default(), DatabaseName::new("main"));
        let count = || metrics.database_failovers.with_label_values(&["main"]).get();
        for (server, timeline, expected) in [
            ("a:1", None, 0),
            ("a:1", Some(1), 0),
            ("a:1", Some(1), 0),
            ("a:1", None, 0),
            ("b:1", None, 0),
            ("b:1", Some(2), 1),
            ("b:1", Some(3), 2),
        ] {
            servers.note(&main, (server.to_owned(), timeline), &metrics);
            assert_eq!(count(), expected, "{server} {timeline:?}");
        }
        let used = |server| metrics.database_server.with_label_values(&["main", server]).get();
        assert_eq!((used("a:1"), used("b:1")), (0, 1));
    }
}
