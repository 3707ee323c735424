//! Look-ups of many keys at a time.

use common::{
    ids::{QueueName, ShardId},
    task::{Content, TaskState},
};

use super::fixture;
use crate::store::rivals::{AskedKey, KeyLook, Rival};

const HOUR_MS: i64 = 3_600_000;

fn asked<'a>(queue: &'a QueueName, partition_key: Option<&'a str>, key: &'a str, shard: u16) -> AskedKey<'a> {
    let key = (queue, partition_key, key);
    AskedKey { key, shard: ShardId::new(shard), window_ms: HOUR_MS, by_version: false }
}

/// Tasks of shard 0: live ones with the key `live`, of two partitions and in several versions, and finished ones.
const FILL: &str = r#"
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, headers, key, partition_key, version)
SELECT duetime.mint(now(), 0), 0, 'q', 'scheduled', now(), now(), 'four', 'x', '{"a": "\"b\""}', 'live', f.partition_key, f.version
  FROM (VALUES (NULL, 1), (NULL, 3), ('p', 2)) AS f (partition_key, version);
INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version, finished_at, drop_on)
SELECT duetime.mint(now(), 0), 0, 'q', 'dead', now(), now(), 'fifth', 'x', f.key, f.version, now(), (now() AT TIME ZONE 'UTC')::date + f.days
  FROM (VALUES ('live', 9, 1), ('ended', 6, 2), ('ended', 4, 3)) AS f (key, version, days)"#;

#[tokio::test]
async fn many_keys_have_the_answers_that_each_has_alone() {
    let test = fixture::database().await;
    sqlx::raw_sql(FILL).execute(&test.pool).await.unwrap();
    let [queue, other] = ["q", "other"].map(QueueName::new);
    let cases = [
        (&queue, None, "live", Some(3)),
        (&queue, Some("p"), "live", Some(2)),
        (&queue, Some("x"), "live", None),
        (&queue, None, "ended", Some(6)),
        (&queue, Some("p"), "ended", None),
        (&queue, None, "absent", None),
        (&other, None, "live", None),
        (&queue, None, "live", Some(3)),
    ];
    for cases in [&cases[..], &cases[..1], &cases[3..4], &[]] {
        let keys: Vec<AskedKey<'_>> =
            cases.iter().map(|(queue, partition_key, key, _)| asked(queue, *partition_key, key, 0)).collect();
        let looks = test.database.task_rivals(&keys).await.unwrap();
        assert_eq!(looks.len(), keys.len());
        for ((queue, partition_key, key, version), look) in cases.iter().zip(looks) {
            let alone = test.database.task_read_key(queue, *partition_key, key).await.unwrap();
            assert_eq!(alone.as_ref().map(|task| task.version), *version, "{partition_key:?} {key}");
            let alone = alone.map_or(KeyLook::Free, |task| {
                let (state, version) = (task.state, task.version);
                let (content_type, headers) = (task.content_type, task.headers);
                let content = Content { payload: task.payload.expect("no list reads it"), content_type, headers };
                let bytes = if state.is_final() { 0 } else { content.usage().bytes };
                KeyLook::Taken(Rival { state, version, bytes, unclaimed_bytes: None })
            });
            assert_eq!(look, alone, "{partition_key:?} {key}");
        }
    }
}

#[tokio::test]
async fn a_key_whose_shard_is_elsewhere_keeps_no_other_from_its_answer() {
    let test = fixture::database().await;
    sqlx::raw_sql(FILL).execute(&test.pool).await.unwrap();
    let places = "UPDATE duetime.shard SET status = 'leaving' WHERE id = 2;
                  UPDATE duetime.shard SET status = 'gone' WHERE id = 3;
                  UPDATE duetime.shard SET status = 'arriving' WHERE id = 4;
                  DELETE FROM duetime.shard WHERE id = 5;
                  INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key)
                  VALUES (duetime.mint(now(), 3), 3, 'q', 'scheduled', now(), now(), '', 'x', 'left behind')";
    sqlx::raw_sql(places).execute(&test.pool).await.unwrap();
    let queue = QueueName::new("q");
    let cases = [("live", 0), ("a", 2), ("a", 3), ("left behind", 3), ("a", 4), ("a", 5), ("ended", 0), ("a", 0)];
    let keys: Vec<AskedKey<'_>> = cases.iter().map(|(key, shard)| asked(&queue, None, key, *shard)).collect();
    let looks = test.database.task_rivals(&keys).await.unwrap();
    let answers: Vec<&str> = looks
        .iter()
        .map(|look| match look {
            KeyLook::Elsewhere => "elsewhere",
            KeyLook::Free => "free",
            KeyLook::Taken(_) => "taken",
        })
        .collect();
    assert_eq!(answers, ["taken", "free", "elsewhere", "elsewhere", "elsewhere", "elsewhere", "taken", "free"]);
}

/// Live and finished tasks with the same keys: the state, the version, and how long ago it ended.
const OF_VERSIONS: &str = "
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version, attempt, claim_epoch)
SELECT duetime.mint(now(), 0), 0, 'q', 'running', now(), now(), '', 'x', f.key, f.version, 1, 1
  FROM (VALUES ('older lives', 1), ('newer lives', 3)) AS f (key, version);
INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version)
SELECT duetime.mint(now(), 0), 0, 'q', 'scheduled', now(), now(), 'fifth', 'x', f.key, f.version
  FROM (VALUES ('unclaimed', 1), ('unclaimed', 3)) AS f (key, version);
INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version, finished_at, drop_on)
SELECT duetime.mint(now(), 0), 0, 'q', f.state::duetime.task_state, now(), now(), 'four', 'x', f.key, f.version, now() - f.ago::interval,
       (now() AT TIME ZONE 'UTC')::date + 1
  FROM (VALUES ('older lives', 'succeeded', 2, '1 min'), ('newer lives', 'succeeded', 2, '1 min'),
               ('cancelled', 'succeeded', 4, '2 min'), ('cancelled', 'cancelled', 5, '1 min'),
               ('in turn', 'dead', 4, '1 min'), ('in turn', 'succeeded', 3, '0'), ('unclaimed', 'cancelled', 4, '1 min'),
               ('long ago', 'succeeded', 6, '2 h'), ('long ago', 'cancelled', 7, '2 h')) AS f (key, state, version, ago)";

/// As duetime.task_put finds it.
#[tokio::test]
async fn of_the_tasks_that_answer_for_a_key_the_one_of_the_highest_version_is_found() {
    use TaskState::{Cancelled, Dead, Running, Scheduled, Succeeded};
    let test = fixture::database().await;
    sqlx::raw_sql(OF_VERSIONS).execute(&test.pool).await.unwrap();
    let queue = QueueName::new("q");
    let cases = [
        ("older lives", Some((Running, 1)), Some((Succeeded, 2))),
        ("newer lives", Some((Running, 3)), Some((Running, 3))),
        ("cancelled", Some((Succeeded, 4)), Some((Cancelled, 5))),
        ("in turn", Some((Dead, 4)), Some((Dead, 4))),
        ("unclaimed", Some((Scheduled, 3)), Some((Cancelled, 4))),
        ("long ago", None, None),
    ];
    for by_version in [false, true] {
        let key = |key| AskedKey { by_version, ..asked(&queue, None, key, 0) };
        let looks = test.database.task_rivals(&cases.map(|(text, ..)| key(text))).await.unwrap();
        for ((text, keyed, versioned), look) in cases.into_iter().zip(looks) {
            let found = match look {
                KeyLook::Taken(rival) => {
                    let superseded = rival.unclaimed_bytes;
                    assert_eq!(superseded, (text == "unclaimed" && by_version).then_some(5), "{text}");
                    Some((rival.state, rival.version))
                }
                KeyLook::Free => None,
                KeyLook::Elsewhere => panic!("the shard is here"),
            };
            assert_eq!(found, if by_version { versioned } else { keyed }, "{text}, by version: {by_version}");
        }
    }
}
