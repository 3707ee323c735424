//! Waits until shards are where they were asked to move.

use std::time::Duration;

use common::{
    ids::DatabaseName,
    shard::ShardSet,
    wire::shard::{MoveList, MoveView, ShardList},
};
use indicatif::ProgressBar;

use super::is_on_its_way;
use crate::cli::{
    client::{Client, Request},
    error::Error,
    moment,
    print::printable,
    progress,
    wait::answered,
};

/// A move takes seconds to hours; this interval shows its progress.
pub(in crate::cli) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Shards, and the database to which they move.
type Wanted<'a> = (&'a ShardSet, &'a DatabaseName);

/// Waits until none of the shards is on its way. Refused when one of them stayed where it was.
pub(super) async fn moved(client: &Client, wanted: &[Wanted<'_>]) -> Result<(), Error> {
    let shards: ShardSet = wanted.iter().flat_map(|(shards, _)| shards.iter()).collect();
    let progress = progress::of_moves();
    let ended = none_left(client, &shards, &progress).await;
    progress.finish_and_clear();
    ended?;
    loop {
        let places: ShardList = answered(client, &Request::get(&["v1", "shards"]), LOOK_INTERVAL).await?;
        let stayed = stayed(&places, wanted);
        if stayed.is_empty() {
            return Ok(());
        }
        // A node that cannot read a database does not know yet which shards have come to it. The notes name it.
        let is_unread = |to: &DatabaseName| places.notes.iter().any(|note| note.contains(&format!("`{to}`")));
        if !wanted.iter().any(|(_, to)| is_unread(to)) {
            return Err(Error::Refused(format!("the moves of the shards {stayed} were called off")));
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn none_left(client: &Client, shards: &ShardSet, progress: &ProgressBar) -> Result<(), Error> {
    loop {
        let moves = Request::get(&["v1", "shards", "moves"]);
        let list: MoveList = answered(client, &moves, LOOK_INTERVAL).await?;
        let left: Vec<&MoveView> = list.moves.iter().filter(|it| is_on_its_way(it, shards)).collect();
        if left.is_empty() {
            return Ok(());
        }
        show(&left, progress);
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Shows how many moves are left, and the progress of those that copy.
pub(in crate::cli) fn show(left: &[&MoveView], progress: &ProgressBar) {
    progress.set_position(u64::try_from(left.len()).unwrap_or(u64::MAX));
    progress.set_message(printable(&described(left)));
}

/// The copied rows of the moves that know their number, the time of the slowest, and the first problem.
fn described(left: &[&MoveView]) -> String {
    let known = left.iter().filter_map(|it| Some((it.rows_copied, it.rows_total?)));
    let (copied, total) = known.fold((0, 0), |(copied, total), (more, of)| (copied + more, total + of.max(more)));
    let mut words = Vec::new();
    if total > 0 {
        words.push(format!("{copied} of {total} rows"));
    }
    if let Some(left_ms) = left.iter().filter_map(|it| it.left_ms).max() {
        let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        words.push(format!("{} left", moment::span(left)));
    }
    words.extend(left.iter().find_map(|it| it.problem.clone()));
    words.join(", ")
}

/// The shards that are not at their targets.
fn stayed(places: &ShardList, wanted: &[Wanted<'_>]) -> ShardSet {
    let is_at = |shard, to: &DatabaseName| places.shards.iter().any(|it| it.shard == shard && it.database == *to);
    let wanted = wanted.iter().flat_map(|(shards, to)| shards.iter().map(move |shard| (shard, *to)));
    wanted.filter(|(shard, to)| !is_at(*shard, to)).map(|(shard, _)| shard).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::wait::tests::client_of;

    fn view(shard: u16, step: &str, copied: i64, total: Option<i64>, left_ms: Option<i64>) -> MoveView {
        let view = json!({
            "shard": shard, "from": "main", "to": "west", "step": step, "requested_by": "ann", "requested_at": 0,
            "rows_copied": copied, "rows_total": total, "bytes_copied": 0, "left_ms": left_ms, "updated_at": 0,
        });
        serde_json::from_value(view).expect("a move")
    }

    #[test]
    fn progress_adds_up_the_moves_that_copy() {
        let moves = [
            view(1, "copying", 100, Some(400), Some(90_000)),
            view(2, "copying", 300, Some(200), Some(5_000)),
            view(3, "planned", 0, None, None),
        ];
        assert_eq!(described(&moves.iter().collect::<Vec<_>>()), "400 of 700 rows, 90 s left");
        assert_eq!(described(&[&moves[2]]), "");
        let stuck = MoveView { problem: Some("lock timeout".to_owned()), ..moves[2].clone() };
        assert_eq!(described(&[&stuck]), "lock timeout");
    }

    #[test]
    fn a_shard_that_is_not_at_the_target_has_stayed() {
        let shard = |number: u16, database: &str| json!({ "shard": number, "database": database, "status": "here" });
        let places = json!({ "shards": [shard(0, "west"), shard(1, "main")] });
        let places: ShardList = serde_json::from_value(places).expect("shards");
        let set = |text: &str| text.parse::<ShardSet>().expect("a set");
        let (west, main) = (DatabaseName::new("west"), DatabaseName::new("main"));
        assert_eq!(stayed(&places, &[(&set("0-1"), &west)]).to_string(), "1");
        assert_eq!(stayed(&places, &[(&set("0"), &west), (&set("1"), &main)]).to_string(), "");
    }

    #[test]
    fn a_shard_whose_source_is_only_cleaned_up_has_arrived() {
        let shards: ShardSet = "1-2".parse().expect("a set");
        for (shard, step, expected) in
            [(1, "planned", true), (1, "cutting", true), (1, "cleaning", false), (3, "copying", false)]
        {
            assert_eq!(is_on_its_way(&view(shard, step, 0, None, None), &shards), expected, "{shard} {step}");
        }
    }

    #[tokio::test]
    async fn a_wait_for_moves_outlasts_a_node_that_restarts() {
        let (moves, places) = (json!({ "moves": [], "ended": [] }), json!({ "shards": [] }));
        let client = client_of(vec![None, Some((200, moves)), None, Some((200, places))]).await;
        moved(&client, &[]).await.expect("the moves are over");
    }

    #[tokio::test]
    async fn a_shard_is_said_to_have_stayed_only_by_a_node_that_reads_every_database() {
        let moves = json!({ "moves": [], "ended": [] });
        let places = |database: &str, notes: &[&str]| {
            let shard = json!({ "shard": 0, "database": database, "status": "here" });
            Some((200, json!({ "shards": [shard], "notes": notes })))
        };
        let set: ShardSet = "0".parse().expect("a set");
        let wanted = [(&set, &DatabaseName::new("west"))];
        let away = || places("main", &["database `west` cannot be reached"]);
        let client = client_of(vec![Some((200, moves.clone())), away(), places("west", &[])]).await;
        moved(&client, &wanted).await.expect("it has arrived");
        let client = client_of(vec![Some((200, moves)), away(), places("main", &[])]).await;
        let stayed = moved(&client, &wanted).await.expect_err("it has stayed");
        assert_eq!(stayed.to_string(), "the moves of the shards 0 were called off");
        let others = places("main", &["database `east` cannot be reached"]);
        let client = client_of(vec![Some((200, json!({ "moves": [], "ended": [] }))), others]).await;
        moved(&client, &wanted).await.expect_err("another database says nothing of it");
    }
}
