//! `duetime database`: lists, drains and removes databases, and accepts what a failover lost.

mod accept_loss;

use clap::{Args, Subcommand};
use common::{
    ids::DatabaseName,
    shard::Standing,
    wire::shard::{DatabaseList, DatabaseView, MoveList, MoveView},
};
use indicatif::ProgressBar;
use reqwest::Method;

use super::{
    client::{Client, Request, path_part},
    error::Error,
    invocation::Invocation,
    output::{Form, say},
    pages::Pages,
    print, progress,
    shard::{LOAD_HEAD, LOOK_INTERVAL, load, show},
    wait::answered,
};

/// The subcommands that act on databases.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the databases with their shards.
    #[command(after_help = "Example:\n  duetime database list --load")]
    List(Invocation<List>),
    /// Move a database's shards to the others, and no shards to it.
    #[command(after_help = "Example:\n  duetime database drain west --wait")]
    Drain(Invocation<Drain>),
    /// Let a drained database receive shards again.
    #[command(after_help = "Example:\n  duetime database undrain west")]
    Undrain(Invocation<One>),
    /// Remove a drained database that is empty.
    #[command(after_help = "Example:\n  duetime database remove west")]
    Remove(Invocation<One>),
    /// Let the nodes use a server that lacks commits which were acknowledged. What it lacks is lost for good.
    #[command(after_help = "Example:\n  duetime database accept-loss main")]
    AcceptLoss(Invocation<accept_loss::One>),
}

/// What to show of the databases.
#[derive(Debug, Args)]
pub struct List {
    /// Estimate what each database carries, from a sample.
    #[arg(long)]
    load: bool,
}

/// One database.
#[derive(Debug, Args)]
pub struct One {
    /// Name of the database in the configuration.
    #[arg(value_parser = path_part)]
    database: String,
}

/// The database to drain.
#[derive(Debug, Args)]
pub struct Drain {
    #[command(flatten)]
    one: One,
    /// Return when the database is empty, not as soon as the drain is requested.
    #[arg(long)]
    wait: bool,
}

pub(super) async fn database(command: &Command) -> Result<(), Error> {
    match command {
        Command::List(invocation) => list(invocation).await,
        Command::Drain(invocation) => drain(invocation).await,
        Command::Undrain(invocation) => {
            let path = ["v1", "databases", &invocation.args.database, "undrain"];
            let view = sent(&invocation.client()?, &Request::post(&path)).await?;
            print_one(invocation.form(), &view)
        }
        Command::Remove(invocation) => {
            let path = ["v1", "databases", &invocation.args.database];
            let view = sent(&invocation.client()?, &Request::new(Method::DELETE, &path)).await?;
            print_one(invocation.form(), &view)
        }
        Command::AcceptLoss(invocation) => accept_loss::accept(invocation).await,
    }
}

async fn sent(client: &Client, request: &Request<'_>) -> Result<DatabaseView, Error> {
    Ok(client.send(request).await?.read()?)
}

async fn list(invocation: &Invocation<List>) -> Result<(), Error> {
    let estimates = vec![("estimates", invocation.args.load.to_string())];
    let request = |_: Option<&str>| Request::get(&["v1", "databases"]).query(estimates.clone());
    let (client, pages) = (invocation.client()?, Pages::only("databases"));
    pages.print(&client, invocation.form(), request, |page| Ok(table(&page.read()?))).await
}

fn table(list: &DatabaseList) -> String {
    let loaded = list.databases.iter().any(|database| database.load.is_some());
    let head = ["DATABASE", "IS", "SHARDS", "LEAVING", "ARRIVING", "PLACE"];
    let head: Vec<&str> = head.into_iter().chain(loaded.then_some(LOAD_HEAD).into_iter().flatten()).collect();
    let row = |database: &DatabaseView| {
        let mut row = vec![
            database.name.to_string(),
            standing(database),
            database.shards.to_string(),
            database.leaving.to_string(),
            database.arriving.to_string(),
            database.place.clone(),
        ];
        row.extend(database.load.iter().flat_map(load));
        row
    };
    let mut parts = vec![print::table(&head, list.databases.iter().map(row).collect())];
    parts.extend(list.notes.iter().map(|note| print::printable(note)));
    parts.join("\n\n")
}

/// A database's state in a few words.
fn standing(database: &DatabaseView) -> String {
    let first = if database.first { ", first" } else { "" };
    let away = if database.up || database.standing == Standing::Removed { "" } else { ", cannot be reached" };
    format!("{}{first}{away}", database.standing.text())
}

async fn drain(invocation: &Invocation<Drain>) -> Result<(), Error> {
    let (client, args) = (invocation.client()?, &invocation.args);
    let path = ["v1", "databases", &args.one.database, "drain"];
    let mut view = sent(&client, &Request::post(&path)).await?;
    if args.wait {
        let progress = progress::of_moves();
        let emptied = emptied(&client, &path, view, &progress).await;
        progress.finish_and_clear();
        view = emptied?;
    }
    print_one(invocation.form(), &view)
}

/// Waits until no shard is in the database and no move concerns it, and returns its last report.
async fn emptied(
    client: &Client,
    drain: &[&str],
    mut view: DatabaseView,
    progress: &ProgressBar,
) -> Result<DatabaseView, Error> {
    loop {
        let moves = Request::get(&["v1", "shards", "moves"]);
        let list: MoveList = answered(client, &moves, LOOK_INTERVAL).await?;
        let concern: Vec<&MoveView> = list.moves.iter().filter(|it| concerns(it, &view.name)).collect();
        if view.standing != Standing::Draining {
            return Err(Error::Refused(format!("{} does not drain any more: an operator undrained it", view.name)));
        }
        if concern.is_empty() && view.shards.is_empty() {
            return Ok(view);
        }
        show(&concern, progress);
        tokio::time::sleep(LOOK_INTERVAL).await;
        view = looked(client, &view.name).await?;
        // A move that was called off leaves its shard behind.
        if view.standing == Standing::Draining && view.shards.count() > view.leaving.count() {
            view = answered(client, &Request::post(drain), LOOK_INTERVAL).await?;
        }
    }
}

async fn looked(client: &Client, name: &DatabaseName) -> Result<DatabaseView, Error> {
    let list: DatabaseList = answered(client, &Request::get(&["v1", "databases"]), LOOK_INTERVAL).await?;
    let gone = || Error::Refused(format!("{name} is not in the configuration of the node any more"));
    list.databases.into_iter().find(|view| view.name == *name).ok_or_else(gone)
}

fn concerns(it: &MoveView, name: &DatabaseName) -> bool {
    it.from == *name || it.to == *name
}

fn print_one(form: Form, view: &DatabaseView) -> Result<(), Error> {
    match form {
        Form::Text => say(shown(view)),
        Form::Json | Form::Jsonl => say(serde_json::to_string(view).map_err(Error::Unwritable)?),
    }
    Ok(())
}

fn shown(view: &DatabaseView) -> String {
    let count = view.shards.count();
    let shards = if count == 1 { "shard" } else { "shards" };
    format!("{}  {}, {count} {shards}", view.name, view.standing.text())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::wait::tests::client_of;

    fn view(standing: &str, shards: &str, up: bool) -> DatabaseView {
        let view = json!({
            "name": "west", "place": "postgres://db:5432/west", "first": false, "standing": standing, "up": up,
            "shards": shards, "leaving": "", "arriving": "0-3",
        });
        serde_json::from_value(view).expect("a database")
    }

    #[test]
    fn a_database_is_shown_with_its_standing_and_its_shards() {
        assert_eq!(shown(&view("draining", "7", true)), "west  draining, 1 shard");
        assert_eq!(shown(&view("removed", "", false)), "west  removed, 0 shards");
        let list = DatabaseList { databases: vec![view("serving", "4-9", false)], notes: vec!["a note".to_owned()] };
        let shown = table(&list);
        for words in ["serving, cannot be reached", "4-9", "0-3", "postgres://db:5432/west", "a note"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert!(!standing(&view("removed", "", false)).contains("reached"));
    }

    #[tokio::test]
    async fn a_wait_for_an_empty_database_outlasts_a_node_that_restarts() {
        let (moves, empty) = (json!({ "moves": [], "ended": [] }), view("draining", "", true));
        let databases = json!({ "databases": [empty] });
        let answers = vec![None, Some((200, moves.clone())), None, Some((200, databases)), Some((200, moves))];
        let client = client_of(answers).await;
        let path = ["v1", "databases", "west", "drain"];
        let emptied = emptied(&client, &path, view("draining", "7", true), &ProgressBar::hidden()).await;
        assert!(emptied.expect("it is empty").shards.is_empty());
    }
}
