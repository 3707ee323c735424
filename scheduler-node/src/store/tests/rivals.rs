//! Look-ups of many keys at a time.

use common::{
    ids::{QueueName, ShardId},
    task::Content,
};

use super::fixture;
use crate::store::rivals::{AskedKey, KeyLook, Rival};

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
    let asked = [
        (&queue, None, "live", Some(3)),
        (&queue, Some("p"), "live", Some(2)),
        (&queue, Some("x"), "live", None),
        (&queue, None, "ended", Some(6)),
        (&queue, Some("p"), "ended", None),
        (&queue, None, "absent", None),
        (&other, None, "live", None),
        (&queue, None, "live", Some(3)),
    ];
    for asked in [&asked[..], &asked[..1], &asked[3..4], &[]] {
        let keys: Vec<AskedKey<'_>> = asked
            .iter()
            .map(|(queue, partition_key, key, _)| ((*queue, *partition_key, *key), ShardId::new(0)))
            .collect();
        let looks = test.database.task_rivals(&keys).await.unwrap();
        assert_eq!(looks.len(), keys.len());
        for ((queue, partition_key, key, version), look) in asked.iter().zip(looks) {
            let alone = test.database.task_read_key(queue, *partition_key, key).await.unwrap();
            assert_eq!(alone.as_ref().map(|task| task.version), *version, "{partition_key:?} {key}");
            let alone = alone.map_or(KeyLook::Free, |task| {
                let (state, version, finished_at) = (task.state, task.version, task.finished_at);
                let (content_type, headers) = (task.content_type, task.headers);
                let content = Content { payload: task.payload.expect("no list reads it"), content_type, headers };
                KeyLook::Taken(Rival { state, version, bytes: content.usage().bytes, finished_at })
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
    let asked = [("live", 0), ("a", 2), ("a", 3), ("left behind", 3), ("a", 4), ("a", 5), ("ended", 0), ("a", 0)];
    let keys: Vec<AskedKey<'_>> =
        asked.iter().map(|(key, shard)| ((&queue, None, *key), ShardId::new(*shard))).collect();
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
