//! `duetime list`: lists the tasks that a filter matches.

use common::{
    time::UnixMicros,
    wire::{TaskView, list::MAX_LIMIT},
};
use serde::Deserialize;

use super::{
    client::{Request, Response},
    error::Error,
    filter::Filter,
    invocation::Invocation,
    moment,
    pages::Pages,
    print,
};
use crate::clock;

/// Which tasks to list, and how many of them.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: Filter,
    /// At most this many; with --all, this many a page.
    #[arg(long, value_name = "TASKS", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_LIMIT)))]
    limit: Option<u32>,
    /// Continue where an earlier list ended.
    #[arg(long)]
    cursor: Option<String>,
    /// Every task, page after page.
    #[arg(long)]
    all: bool,
}

impl Args {
    fn query(&self, cursor: Option<&str>) -> Vec<(&'static str, String)> {
        let limit = if self.all { self.limit.or(Some(MAX_LIMIT)) } else { self.limit };
        let mut query = self.filter.query();
        query.extend(limit.map(|limit| ("limit", limit.to_string())));
        query.extend(cursor.map(|cursor| ("cursor", cursor.to_owned())));
        query
    }
}

pub(super) async fn list(invocation: &Invocation<Args>) -> Result<(), Error> {
    let args = &invocation.args;
    let request = |cursor: Option<&str>| Request::get(&["v1", "tasks"]).query(args.query(cursor));
    let pages = Pages { name: "tasks", all: args.all, cursor: args.cursor.as_deref() };
    pages.print(&invocation.client()?, invocation.form(), request, rows).await
}

fn rows(page: &Response) -> Result<String, Error> {
    #[derive(Deserialize)]
    struct Tasks {
        tasks: Vec<TaskView>,
    }
    Ok(table(&page.read::<Tasks>()?.tasks, clock::now()))
}

fn table(tasks: &[TaskView], now: UnixMicros) -> String {
    let row = |task: &TaskView| {
        vec![
            task.id.to_string(),
            task.queue.to_string(),
            task.state.to_string(),
            moment::shown(task.due_at, now),
            format!("{}/{}", task.attempt, task.max_attempts),
            task.priority.to_string(),
        ]
    };
    print::table(&["ID", "QUEUE", "STATE", "DUE", "ATTEMPT", "PRIORITY"], tasks.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Listed {
        #[command(flatten)]
        args: Args,
    }

    fn query(words: &[&str]) -> Result<Vec<(&'static str, String)>, clap::Error> {
        Listed::try_parse_from([&["list"], words].concat()).map(|listed| listed.args.query(None))
    }

    #[test]
    fn only_what_is_asked_for_is_in_the_query() {
        assert_eq!(query(&[]).expect("understood"), []);
        let words = ["--queue", "mails", "--state", "dead", "--due-after", "1700000000000", "--limit", "7"];
        assert_eq!(
            query(&words).expect("understood"),
            [
                ("queue", "mails".to_owned()),
                ("state", "dead".to_owned()),
                ("due_after", "2023-11-14T22:13:20.000000Z".to_owned()),
                ("limit", "7".to_owned()),
            ]
        );
        assert_eq!(
            query(&["--key", "order-7", "--error", "no route"]).expect("understood"),
            [("key", "order-7".to_owned()), ("error", "no route".to_owned())]
        );
        assert_eq!(query(&["--all"]).expect("understood"), [("limit", "1000".to_owned())]);
    }

    #[test]
    fn what_no_list_can_answer_is_a_mistake_of_the_caller() {
        for words in [["--state", "asleep"], ["--limit", "0"], ["--limit", "1001"], ["--due-after", "soon"]] {
            assert_eq!(query(&words).expect_err("refused").exit_code(), 2, "{words:?}");
        }
    }
}
