//! `duetime shard`: where the shards are, and their moves between databases.

mod wait;

pub(super) use wait::{LOOK_INTERVAL, show};

use clap::{Args, Subcommand};
use common::{
    ids::ShardId,
    shard::{ShardSet, move_progress::MovePhase},
    time::UnixMicros,
    wire::shard::{
        CallOffAnswer, EndedMoveView, LoadView, MoveAnswer, MoveGroup, MoveList, MoveView, RebalanceAnswer, ShardList,
    },
};
use reqwest::Method;
use serde_json::json;

use super::{
    client::Request,
    error::Error,
    invocation::Invocation,
    moment,
    output::{Form, say},
    pages::Pages,
    print,
};
use crate::clock;

/// The subcommands that act on shards.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the database and the owner of each shard.
    #[command(after_help = "Example:\n  duetime shard list --load")]
    List(Invocation<List>),
    /// Move shards to another database while their tasks fire.
    #[command(after_help = "Example:\n  duetime shard move 0-15,20 --to west --wait")]
    Move(Invocation<Move>),
    /// Show the moves that have not ended, with their progress.
    #[command(after_help = "Example:\n  duetime shard moves --ended")]
    Moves(Invocation<Moves>),
    /// Call moves off, which is possible until their cut.
    #[command(after_help = "Example:\n  duetime shard call-off 0-15")]
    CallOff(Invocation<Shards>),
    /// Divide the load among the databases with the fewest moves.
    #[command(
        after_help = "Examples:\n  duetime shard rebalance --dry-run\n  duetime shard rebalance --tolerance 5 --wait"
    )]
    Rebalance(Invocation<Rebalance>),
}

/// What to show of the shards.
#[derive(Debug, Args)]
pub struct List {
    /// Estimate what each shard carries, from a sample of each database.
    #[arg(long)]
    load: bool,
}

/// Some shards.
#[derive(Debug, Args)]
pub struct Shards {
    /// Numbers and ranges of shards: `0-15,20`.
    #[arg(value_parser = shards)]
    shards: ShardSet,
}

/// The shards to move.
#[derive(Debug, Args)]
pub struct Move {
    #[command(flatten)]
    which: Shards,
    /// Name of the database to which they move.
    #[arg(long, value_name = "DATABASE")]
    to: String,
    /// Return when the shards are there, not as soon as the moves are requested.
    #[arg(long)]
    wait: bool,
}

/// What to show of the moves.
#[derive(Debug, Args)]
pub struct Moves {
    /// Show the last moves that have ended too.
    #[arg(long)]
    ended: bool,
}

/// How to divide the load.
#[derive(Debug, Args)]
pub struct Rebalance {
    /// Show the moves and request none.
    #[arg(long)]
    dry_run: bool,
    /// How far above its share a database may be, in percent; 10 by default.
    #[arg(long, value_name = "PERCENT")]
    tolerance: Option<u32>,
    /// Return when the shards are there, not as soon as the moves are requested.
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
}

fn shards(text: &str) -> Result<ShardSet, String> {
    let set: ShardSet = text.parse().map_err(|error: common::shard::set::NotASet| error.to_string())?;
    if set.is_empty() { Err("name some shards, like 0-15,20".to_owned()) } else { Ok(set) }
}

pub(super) async fn shard(command: &Command) -> Result<(), Error> {
    match command {
        Command::List(invocation) => list(invocation).await,
        Command::Move(invocation) => shift(invocation).await,
        Command::Moves(invocation) => moves(invocation).await,
        Command::CallOff(invocation) => call_off(invocation).await,
        Command::Rebalance(invocation) => rebalance(invocation).await,
    }
}

async fn list(invocation: &Invocation<List>) -> Result<(), Error> {
    let estimates = vec![("estimates", invocation.args.load.to_string())];
    let request = |_: Option<&str>| Request::get(&["v1", "shards"]).query(estimates.clone());
    let (client, pages) = (invocation.client()?, Pages::only("shards"));
    pages.print(&client, invocation.form(), request, |page| Ok(shard_table(&page.read()?))).await
}

async fn shift(invocation: &Invocation<Move>) -> Result<(), Error> {
    let (client, args) = (invocation.client()?, &invocation.args);
    let body = json!({ "shards": args.which.shards, "to": args.to }).to_string();
    let response = client.send(&Request::post(&["v1", "shards", "moves"]).body(body)).await?;
    let answer: MoveAnswer = response.read()?;
    if args.wait {
        wait::moved(&client, &[(&answer.shards, &answer.to)]).await?;
    }
    match invocation.form() {
        Form::Text => say(requested(&answer, args.wait)),
        Form::Json | Form::Jsonl => say(&response.text),
    }
    Ok(())
}

fn requested(answer: &MoveAnswer, ended: bool) -> String {
    let verb = if ended { "moved" } else { "moves" };
    let already = if answer.already.is_empty() {
        String::new()
    } else {
        format!("\n{}  already in {}", answer.already, answer.to)
    };
    format!("{}  {verb} to {}{already}", answer.shards, answer.to)
}

async fn moves(invocation: &Invocation<Moves>) -> Result<(), Error> {
    let answer = invocation.client()?.send(&Request::get(&["v1", "shards", "moves"])).await?;
    invocation.print(&answer, |answer| Ok(picture(&answer.read()?, invocation.args.ended, clock::now())))
}

async fn call_off(invocation: &Invocation<Shards>) -> Result<(), Error> {
    let query = vec![("shards", invocation.args.shards.to_string())];
    let request = Request::new(Method::DELETE, &["v1", "shards", "moves"]).query(query);
    let answer = invocation.client()?.send(&request).await?;
    invocation.print(&answer, |answer| {
        let CallOffAnswer { called_off, too_late, not_moving } = answer.read()?;
        let sets = [(called_off, "called off"), (too_late, "past the cut, so it ends"), (not_moving, "does not move")];
        let lines = sets.iter().filter(|(set, _)| !set.is_empty()).map(|(set, words)| format!("{set}  {words}"));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    })
}

async fn rebalance(invocation: &Invocation<Rebalance>) -> Result<(), Error> {
    let (client, Rebalance { dry_run, tolerance, wait }) = (invocation.client()?, &invocation.args);
    let body = json!({ "dry_run": dry_run, "tolerance_percent": tolerance }).to_string();
    let response = client.send(&Request::post(&["v1", "shards", "rebalance"]).body(body)).await?;
    if *wait {
        let answer: RebalanceAnswer = response.read()?;
        let wanted: Vec<_> = answer.moves.iter().map(|group| (&group.shards, &group.to)).collect();
        wait::moved(&client, &wanted).await?;
    }
    invocation.print(&response, |answer| Ok(balance(&answer.read()?)))
}

fn shard_table(list: &ShardList) -> String {
    let loaded = list.shards.iter().any(|shard| shard.load.is_some());
    let head = ["SHARD", "DATABASE", "STATUS", "OWNED BY", "EPOCH", "MOVES TO"];
    let head: Vec<&str> = head.into_iter().chain(loaded.then_some(LOAD_HEAD).into_iter().flatten()).collect();
    let rows = list.shards.iter().map(|shard| {
        let mut row = vec![
            shard.shard.number().to_string(),
            shard.database.to_string(),
            shard.status.text().to_owned(),
            shard.owner.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
            shard.epoch.map(|epoch| epoch.number().to_string()).unwrap_or_default(),
            shard.moves_to.as_ref().map(ToString::to_string).unwrap_or_default(),
        ];
        row.extend(shard.load.iter().flat_map(load));
        row
    });
    let mut parts = vec![print::table(&head, rows.collect())];
    parts.extend(list.notes.iter().map(|note| print::printable(note)));
    parts.join("\n\n")
}

/// The columns of [`load`].
pub(super) const LOAD_HEAD: [&str; 4] = ["TASKS", "FINISHED", "BYTES", "FINISHED/S"];

/// The cells of an estimated load.
pub(super) fn load(load: &LoadView) -> [String; 4] {
    let LoadView { tasks, finished, bytes, finished_per_second } = load;
    [tasks.to_string(), finished.to_string(), bytes.to_string(), format!("{finished_per_second:.1}")]
}

fn picture(list: &MoveList, with_ended: bool, now: UnixMicros) -> String {
    let rows: Vec<Vec<String>> = list.lines().iter().map(|(shards, it)| move_row(shards, it)).collect();
    let moving = if rows.is_empty() {
        "no shard moves".to_owned()
    } else {
        print::table(&["SHARDS", "FROM", "TO", "STEP", "ROWS", "DONE", "LEFT", "NODE", "PROBLEM"], rows)
    };
    if !with_ended || list.ended.is_empty() {
        return moving;
    }
    let rows = list.ended.iter().map(|it| ended_row(it, now)).collect();
    let ended = print::table(&["SHARD", "FROM", "TO", "OUTCOME", "ROWS", "CUT", "ENDED"], rows);
    format!("{moving}\n\n{ended}")
}

fn move_row(shards: &ShardSet, it: &MoveView) -> Vec<String> {
    let step = if it.called_off_at.is_some() { "called off" } else { it.step.text() };
    vec![
        shards.to_string(),
        it.from.to_string(),
        it.to.to_string(),
        step.to_owned(),
        it.rows_copied.to_string(),
        it.percent.map(|percent| format!("{percent} %")).unwrap_or_default(),
        it.left_ms.map(span).unwrap_or_default(),
        it.node.as_ref().map(ToString::to_string).unwrap_or_default(),
        it.problem.clone().unwrap_or_default(),
    ]
}

fn ended_row(it: &EndedMoveView, now: UnixMicros) -> Vec<String> {
    vec![
        it.shard.number().to_string(),
        it.from.to_string(),
        it.to.to_string(),
        it.outcome.words().to_owned(),
        it.rows_copied.to_string(),
        it.cut_ms.map(|cut_ms| format!("{cut_ms} ms")).unwrap_or_default(),
        moment::distance(it.ended_at, now),
    ]
}

fn span(length_ms: i64) -> String {
    moment::span(std::time::Duration::from_millis(u64::try_from(length_ms).unwrap_or(0)))
}

fn balance(answer: &RebalanceAnswer) -> String {
    let row = |database: &common::wire::shard::BalanceView| {
        vec![
            database.name.to_string(),
            database.standing.text().to_owned(),
            format!("{} -> {}", database.shards_before, database.shards_after),
            format!("{:.0} % -> {:.0} %", database.load_percent_before, database.load_percent_after),
        ]
    };
    let databases = print::table(&["DATABASE", "IS", "SHARDS", "LOAD"], answer.databases.iter().map(row).collect());
    let moves = if answer.moves.is_empty() {
        format!("no shard has to move: no database is more than {} % above its share", answer.tolerance_percent)
    } else {
        let row = |group: &MoveGroup| vec![group.shards.to_string(), group.from.to_string(), group.to.to_string()];
        print::table(&["SHARDS", "FROM", "TO"], answer.moves.iter().map(row).collect())
    };
    let dry =
        if answer.dry_run && !answer.moves.is_empty() { "\n\nnothing was changed: this was a dry run" } else { "" };
    format!("{databases}\n\n{moves}{dry}")
}

/// Whether the move of this shard has not reached its target yet.
pub(super) fn is_on_its_way(it: &MoveView, shards: &ShardSet) -> bool {
    let shard: ShardId = it.shard;
    shards.contains(shard) && it.step != MovePhase::Cleaning
}

#[cfg(test)]
mod tests;
