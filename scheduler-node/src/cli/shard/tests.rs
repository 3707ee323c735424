use serde_json::json;

use super::*;

fn now() -> UnixMicros {
    UnixMicros::new(1_893_456_000_000_000)
}

fn list() -> MoveList {
    let planned = |shard: u16, to: &str| {
        json!({
            "shard": shard, "from": "main", "to": to, "step": "planned", "requested_by": "ann", "requested_at": 0,
            "rows_copied": 0, "bytes_copied": 0, "updated_at": 0,
        })
    };
    let mut copying = planned(3, "west");
    copying["step"] = json!("copying");
    copying["percent"] = json!(25);
    copying["left_ms"] = json!(180_000);
    copying["rows_copied"] = json!(1_000);
    copying["node"] = json!("node-2");
    copying["problem"] = json!("waits for\u{1b} a writer");
    let mut off = planned(9, "west");
    off["called_off_at"] = json!("2029-12-31T23:00:00Z");
    let ended = json!({
        "shard": 40, "from": "main", "to": "west", "outcome": "called_off", "requested_by": "ann", "requested_at": 0,
        "cut_ms": 40, "rows_copied": 7, "bytes_copied": 700, "ended_at": "2029-12-31T22:00:00Z",
    });
    let moves: Vec<_> = [4, 5, 7].map(|shard| planned(shard, "west")).into_iter().chain([planned(6, "east")]).collect();
    let moves: Vec<_> = [copying].into_iter().chain(moves).chain([off]).collect();
    serde_json::from_value(json!({ "moves": moves, "ended": [ended] })).expect("moves")
}

#[test]
fn moves_that_wait_share_a_line_and_the_others_show_their_progress() {
    let shown = picture(&list(), false, now());
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines.len(), 5, "{shown}");
    for words in ["3", "copying", "1000", "25 %", "3 m", "node-2", "waits for\\u{1b} a writer"] {
        assert!(lines[1].contains(words), "{words}: {shown}");
    }
    assert!(lines[2].starts_with('9') && lines[2].contains("called off"), "{shown}");
    assert!(lines[3].starts_with('6') && lines[4].starts_with("4-5,7"), "{shown}");
    let shown = picture(&list(), true, now());
    assert!(shown.contains("40 ms") && shown.contains("2 h ago"), "{shown}");
    assert_eq!(picture(&MoveList::default(), true, now()), "no shard moves");
}

#[test]
fn an_answer_names_the_shards_that_were_there_already() {
    let answer: MoveAnswer =
        serde_json::from_value(json!({ "shards": "0-3", "to": "west", "already": "9" })).expect("an answer");
    assert_eq!(requested(&answer, false), "0-3  moves to west\n9  already in west");
    assert!(requested(&answer, true).starts_with("0-3  moved to west"));
}

#[test]
fn a_rebalance_shows_each_database_before_and_after() {
    let database = |name: &str, before: usize, after: usize| {
        json!({
            "name": name, "standing": "serving", "shards_before": before, "shards_after": after,
            "load_percent_before": before as f64 * 0.5, "load_percent_after": after as f64 * 0.5,
        })
    };
    let answer = |moves: serde_json::Value| -> RebalanceAnswer {
        let databases = [database("main", 128, 64), database("west", 0, 64)];
        let answer = json!({ "dry_run": true, "tolerance_percent": 10, "moves": moves, "databases": databases });
        serde_json::from_value(answer).expect("an answer")
    };
    let shown = balance(&answer(json!([{ "shards": "0-63", "from": "main", "to": "west" }])));
    for words in ["128 -> 64", "64 % -> 32 %", "0-63", "nothing was changed"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(balance(&answer(json!([]))).contains("no database is more than 10 % above its share"));
}

#[test]
fn shards_are_read_as_the_api_takes_them() {
    assert_eq!(shards("0-15,20").map(|set| set.count()), Ok(17));
    assert!(shards("").is_err_and(|error| error.contains("0-15,20")));
    assert!(shards("9-3").is_err_and(|error| error.contains("`9-3`")));
}

#[test]
fn the_load_stands_beside_the_shards_when_it_was_asked_for() {
    let shard = |load: serde_json::Value| {
        let mut shard = json!({ "shard": 7, "database": "main", "status": "leaving", "owner": "a", "epoch": 4, "moves_to": "west" });
        if !load.is_null() {
            shard["load"] = load;
        }
        let list: ShardList =
            serde_json::from_value(json!({ "shards": [shard], "notes": ["`x` is away"] })).expect("a list");
        shard_table(&list)
    };
    let plain = shard(json!(null));
    assert!(plain.contains("leaving") && plain.contains("`x` is away") && !plain.contains("BYTES"), "{plain}");
    let loaded = shard(json!({ "tasks": 5, "finished": 6, "bytes": 7_000, "finished_per_second": 0.25 }));
    assert!(loaded.contains("FINISHED/S") && loaded.contains("7000") && loaded.contains("0.2"), "{loaded}");
}
