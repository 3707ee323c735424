//! Prints a list that nodes answer page by page.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    client::{Client, Request, Response},
    error::Error,
    output::{Form, complain, say},
    print::Listing,
};

/// A page, with its entries as unparsed JSON.
#[derive(Deserialize)]
struct Page {
    #[serde(alias = "tasks", alias = "deeds")]
    entries: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
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
    /// Prints the pages, each by the request for its cursor. `rows`: a page as text, with or without a head.
    pub(super) async fn print(
        self,
        client: &Client,
        form: Form,
        request: impl Fn(Option<&str>) -> Request<'static>,
        rows: impl Fn(&Response, bool) -> Result<String, Error>,
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
                Form::Text => say(rows(&answer, with_head)?),
                Form::Json | Form::Jsonl => page.entries.iter().for_each(|entry| listing.add(entry.get())),
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
pub(super) fn below_head(table: &str) -> String {
    table.lines().skip(1).collect::<Vec<_>>().join("\n")
}
