//! Hints: settings of a server that are far from what Duetime recommends, and missing indexes, each with the reason.
//!
//! A hint refuses nothing. The recommendations and their reasons are in `docs/operations.md`.

const MB: i64 = 1 << 20;
const GB: i64 = 1 << 30;

/// A checkpoint writes each page whole once after it, so a busy server needs room for minutes of the log.
const MAX_WAL_BYTES: i64 = 4 * GB;

/// New files of the log cost a write and a flush of each page while commits wait.
const MIN_WAL_BYTES: i64 = GB;

const CHECKPOINT_SECONDS: i64 = 900;

const COMPLETION_TARGET: f64 = 0.9;

/// The table of waiting tasks and its indexes are read at random.
const SHARED_BUFFERS_BYTES: i64 = 256 * MB;

/// The statements at a time that may look through the whole archive. One locks each of its partitions and their
/// indexes, and there is a partition for each day of the longest retention.
const ARCHIVE_STATEMENTS: i64 = 20;

/// What a server of PostgreSQL has set, in bytes and seconds, and what the database lacks.
#[derive(Clone, Debug, PartialEq)]
pub struct PostgresSettings {
    pub max_wal_bytes: i64,
    pub min_wal_bytes: i64,
    pub checkpoint_timeout_s: i64,
    pub checkpoint_completion_target: f64,
    pub shared_buffers_bytes: i64,
    pub fsync: bool,
    pub full_page_writes: bool,
    /// Whether a commit is on the server's disk before it is answered.
    pub commits_are_durable: bool,
    pub autovacuum: bool,
    pub max_locks_per_transaction: i64,
    /// The locks that the server has room for, of all transactions together.
    pub lock_room: i64,
    /// The locks of a statement that looks through the whole archive.
    pub archive_locks: i64,
    /// In which the server keeps the texts of this database.
    pub encoding: String,
    /// The indexes of the table of tasks that are missing, or left by a build that was given up.
    pub missing_indexes: Vec<String>,
}

/// A setting that is far from its recommendation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    pub setting: &'static str,
    pub current: String,
    pub recommended: String,
    pub why: &'static str,
}

/// The hints for a server, those about lost tasks first.
pub fn postgres_hints(settings: &PostgresSettings) -> Vec<Hint> {
    let hint = |is_far: bool, setting, current: String, recommended: &str, why| {
        is_far.then(|| Hint { setting, current, recommended: recommended.to_owned(), why })
    };
    let is_off = |is_on: bool, setting, why| hint(!is_on, setting, "off".to_owned(), "on", why);
    let is_small = |bytes: i64, least: i64, setting, why| {
        hint(bytes < least, setting, size(bytes), &format!("{} or more", size(least)), why)
    };
    let locks = settings.archive_locks * ARCHIVE_STATEMENTS;
    let locks_each = (settings.max_locks_per_transaction * locks + settings.lock_room - 1) / settings.lock_room.max(1);
    [
        is_off(settings.fsync, "fsync", "a crash of the server can lose accepted tasks and damage the database"),
        is_off(settings.full_page_writes, "full_page_writes", "a crash of the server can damage the database"),
        is_off(
            settings.commits_are_durable,
            "synchronous_commit",
            "a crash of the server loses tasks whose submission was answered",
        ),
        is_off(settings.autovacuum, "autovacuum", "dead rows make each read of due tasks slower"),
        is_small(
            settings.max_wal_bytes,
            MAX_WAL_BYTES,
            "max_wal_size",
            "frequent checkpoints write pages whole again, and tasks are late meanwhile",
        ),
        is_small(
            settings.min_wal_bytes,
            MIN_WAL_BYTES,
            "min_wal_size",
            "commits wait while the server creates new files of its log",
        ),
        hint(
            settings.checkpoint_timeout_s < CHECKPOINT_SECONDS,
            "checkpoint_timeout",
            format!("{} s", settings.checkpoint_timeout_s),
            &format!("{CHECKPOINT_SECONDS} s or more"),
            "frequent checkpoints write pages whole again",
        ),
        hint(
            settings.checkpoint_completion_target < COMPLETION_TARGET,
            "checkpoint_completion_target",
            settings.checkpoint_completion_target.to_string(),
            &COMPLETION_TARGET.to_string(),
            "a checkpoint that writes all at once holds up commits",
        ),
        is_small(
            settings.shared_buffers_bytes,
            SHARED_BUFFERS_BYTES,
            "shared_buffers",
            "the rows and indexes of waiting tasks should stay in memory: a quarter of the machine's, as a rule",
        ),
        hint(
            settings.lock_room < locks,
            "max_locks_per_transaction",
            settings.max_locks_per_transaction.to_string(),
            &format!("{locks_each} or more"),
            "a look through all finished tasks locks each day of the longest retention, and fails when there is no room",
        ),
    ]
    .into_iter()
    .flatten()
    .chain(encoding(settings))
    .chain(missing_indexes(settings))
    .collect()
}

fn encoding(settings: &PostgresSettings) -> Option<Hint> {
    (settings.encoding != "UTF8").then(|| Hint {
        setting: "server_encoding",
        current: settings.encoding.clone(),
        recommended: "UTF8, by a dump that is restored into a new database".to_owned(),
        why: "tasks with characters that it does not have are refused",
    })
}

fn missing_indexes(settings: &PostgresSettings) -> Option<Hint> {
    let missing = &settings.missing_indexes;
    (!missing.is_empty()).then(|| Hint {
        setting: "duetime.task",
        current: format!("without {}", missing.join(" and ")),
        recommended: "`duetime migrate --indexes` when all nodes run this version".to_owned(),
        why: "lanes and dependencies with thousands of waiting tasks are slow without all indexes",
    })
}

fn size(bytes: i64) -> String {
    if bytes >= GB && bytes % GB == 0 { format!("{} GB", bytes / GB) } else { format!("{} MB", bytes / MB) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recommended() -> PostgresSettings {
        PostgresSettings {
            max_wal_bytes: 4 * GB,
            min_wal_bytes: GB,
            checkpoint_timeout_s: 900,
            checkpoint_completion_target: 0.9,
            shared_buffers_bytes: 256 * MB,
            fsync: true,
            full_page_writes: true,
            commits_are_durable: true,
            autovacuum: true,
            max_locks_per_transaction: 64,
            lock_room: 6_400,
            archive_locks: 245,
            encoding: "UTF8".to_owned(),
            missing_indexes: Vec::new(),
        }
    }

    #[test]
    fn the_recommended_settings_cause_no_hint() {
        assert_eq!(postgres_hints(&recommended()), []);
    }

    #[test]
    fn each_setting_that_is_far_from_its_recommendation_causes_its_own_hint() {
        let good = recommended();
        let years = PostgresSettings { archive_locks: 2_590, ..recommended() };
        let unbuilt = PostgresSettings { missing_indexes: vec!["task_lane".to_owned()], ..recommended() };
        for (setting, current, settings) in [
            ("fsync", "off", PostgresSettings { fsync: false, ..good.clone() }),
            ("full_page_writes", "off", PostgresSettings { full_page_writes: false, ..good.clone() }),
            ("synchronous_commit", "off", PostgresSettings { commits_are_durable: false, ..good.clone() }),
            ("server_encoding", "LATIN1", PostgresSettings { encoding: "LATIN1".to_owned(), ..good.clone() }),
            ("autovacuum", "off", PostgresSettings { autovacuum: false, ..good.clone() }),
            ("max_wal_size", "1 GB", PostgresSettings { max_wal_bytes: GB, ..good.clone() }),
            ("min_wal_size", "80 MB", PostgresSettings { min_wal_bytes: 80 * MB, ..good.clone() }),
            ("checkpoint_timeout", "300 s", PostgresSettings { checkpoint_timeout_s: 300, ..good.clone() }),
            (
                "checkpoint_completion_target",
                "0.5",
                PostgresSettings { checkpoint_completion_target: 0.5, ..good.clone() },
            ),
            ("shared_buffers", "128 MB", PostgresSettings { shared_buffers_bytes: 128 * MB, ..good }),
            ("max_locks_per_transaction", "64", years.clone()),
            ("duetime.task", "without task_lane", unbuilt),
        ] {
            let hints = postgres_hints(&settings);
            let found: Vec<_> = hints.iter().map(|hint| (hint.setting, hint.current.as_str())).collect();
            assert_eq!(found, [(setting, current)]);
        }
        assert_eq!(postgres_hints(&years)[0].recommended, "518 or more");
    }
}
