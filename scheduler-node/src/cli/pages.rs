//! Prints a list that nodes answer page by page.

use common::wire::list::MAX_LIMIT;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    client::{Client, Request, Response},
    error::Error,
    invocation::Invocation,
    output::{Form, complain, say},
    print::Listing,
};

/// A page, with its entries as unparsed JSON.
#[derive(Deserialize)]
struct Page {
    #[serde(
        alias = "tasks",
        alias = "deeds",
        alias = "queues",
        alias = "schedules",
        alias = "tokens",
        alias = "shards",
        alias = "databases"
    )]
    entries: Vec<Box<RawValue>>,
    /// Absent where a list has one page.
    next_cursor: Option<String>,
    /// What the node could not find out.
    #[serde(default)]
    notes: Vec<String>,
}

/// Which page of a list of names.
#[derive(Debug, clap::Args)]
pub struct PageArgs {
    /// At most this many; with --all, this many a page.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = MAX_LIMIT,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_LIMIT))
    )]
    limit: u32,
    /// Continue where an earlier page ended.
    #[arg(long)]
    cursor: Option<String>,
    /// Every entry, page after page.
    #[arg(long)]
    all: bool,
}

impl PageArgs {
    /// Prints the list that the API has under `name`. `table`: a page as text; it begins with a line of heads.
    pub(super) async fn print(
        invocation: &Invocation<Self>,
        name: &'static str,
        table: impl Fn(&Response) -> Result<String, Error>,
    ) -> Result<(), Error> {
        let Self { limit, cursor, all } = &invocation.args;
        let request = |cursor: Option<&str>| {
            let limit = [("limit", limit.to_string())];
            let query = limit.into_iter().chain(cursor.map(|cursor| ("cursor", cursor.to_owned())));
            Request::get(&["v1", name]).query(query.collect())
        };
        let pages = Pages { name, all: *all, cursor: cursor.as_deref() };
        pages.print(&invocation.client()?, invocation.form(), request, table).await
    }
}

/// Which pages to print.
pub(super) struct Pages<'a> {
    /// The name of the entries in an answer.
    pub(super) name: &'static str,
    /// Every page from the first one on, instead of that one only.
    pub(super) all: bool,
    /// Where the first page begins.
    pub(super) cursor: Option<&'a str>,
}

impl Pages<'_> {
    /// A list that has one page.
    pub(super) const fn only(name: &'static str) -> Self {
        Self { name, all: false, cursor: None }
    }

    /// Prints the pages, each by the request for its cursor. `table`: a page as text; it begins with a line of heads.
    pub(super) async fn print(
        self,
        client: &Client,
        form: Form,
        request: impl Fn(Option<&str>) -> Request<'static>,
        table: impl Fn(&Response) -> Result<String, Error>,
    ) -> Result<(), Error> {
        let first = client.send(&request(self.cursor)).await?;
        if !self.all && form == Form::Json {
            say(&first.text);
            return Ok(());
        }
        let mut page: Page = first.read()?;
        let mut listing = Listing::open(form, self.name);
        let (mut answer, mut with_head) = (first, true);
        loop {
            match form {
                // A later page without a match adds no line.
                Form::Text if page.entries.is_empty() && !with_head => {}
                Form::Text if with_head => say(table(&answer)?),
                Form::Text => say(below_head(&table(&answer)?)),
                Form::Json | Form::Jsonl => {
                    page.entries.iter().for_each(|entry| listing.add(entry.get()));
                    for note in &page.notes {
                        complain(note);
                    }
                }
            }
            let Some(cursor) = page.next_cursor else { break };
            if !self.all {
                complain(format_args!("there may be more: --all shows them, --cursor {cursor} the next ones"));
                break;
            }
            answer = client.send(&request(Some(&cursor))).await?;
            page = answer.read()?;
            with_head = false;
        }
        listing.close(",\"next_cursor\":null");
        Ok(())
    }
}

/// A table without its head, which a page before it has shown.
fn below_head(table: &str) -> String {
    table.lines().skip(1).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_of_the_api_has_its_entries_under_its_name() {
        for name in ["tasks", "deeds", "queues", "schedules", "tokens", "shards", "databases"] {
            let page: Page = serde_json::from_str(&format!(r#"{{{name:?}:[{{"n":1.0}},2]}}"#)).expect(name);
            assert_eq!(page.entries.iter().map(|entry| entry.get()).collect::<Vec<_>>(), [r#"{"n":1.0}"#, "2"]);
            assert!(page.next_cursor.is_none() && page.notes.is_empty(), "a list of one page");
        }
        let page: Page = serde_json::from_str(r#"{"queues":[],"next_cursor":"mails","notes":["no"]}"#).expect("a page");
        assert_eq!((page.next_cursor.as_deref(), page.notes.len()), (Some("mails"), 1));
    }
}
