//! `duetime audit`: lists who did what.

use common::{
    time::UnixMicros,
    wire::{
        AuditList,
        audit::AuditEventView,
        list::{DEFAULT_LIMIT, MAX_LIMIT},
    },
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    client::{Request, Response},
    error::Error,
    invocation::Invocation,
    moment,
    output::{Form, complain, say},
    print::{self, Listing},
};
use crate::clock;

/// Which deeds to list. All filters given must match.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name of a token, or `anonymous`.
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// `task.cancel`, `queue.pause`, `refused`.
    #[arg(long)]
    what: Option<String>,
    /// The id or name of the deed's target.
    #[arg(long)]
    target: Option<String>,
    /// At this moment or later: RFC 3339, or Unix milliseconds.
    #[arg(long, value_name = "MOMENT", value_parser = moment::moment)]
    after: Option<UnixMicros>,
    /// Before this moment.
    #[arg(long, value_name = "MOMENT", value_parser = moment::moment)]
    before: Option<UnixMicros>,
    /// At most this many, 100 by default; with --all, this many a page.
    #[arg(long, value_name = "DEEDS", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_LIMIT)))]
    limit: Option<u32>,
    /// Continue where an earlier page ended.
    #[arg(long)]
    cursor: Option<String>,
    /// Every deed, page after page.
    #[arg(long)]
    all: bool,
}

impl Args {
    fn query(&self, cursor: Option<&str>) -> Vec<(&'static str, String)> {
        let limit = self.limit.unwrap_or(if self.all { MAX_LIMIT } else { DEFAULT_LIMIT });
        let moment = |at: Option<UnixMicros>| at.map(|at| at.to_string());
        [
            ("who", self.who.clone()),
            ("what", self.what.clone()),
            ("target", self.target.clone()),
            ("after", moment(self.after)),
            ("before", moment(self.before)),
            ("limit", Some(limit.to_string())),
            ("cursor", cursor.map(str::to_owned)),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

/// A page, with its deeds as unparsed JSON.
#[derive(Deserialize)]
struct Page {
    deeds: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

pub(super) async fn audit(invocation: &Invocation<Args>) -> Result<(), Error> {
    let (client, args) = (invocation.client()?, &invocation.args);
    let request = |cursor: Option<&str>| Request::get(&["v1", "audit"]).query(args.query(cursor));
    let first = client.send(&request(args.cursor.as_deref())).await?;
    if !args.all && invocation.form() == Form::Json {
        say(&first.text);
        return Ok(());
    }
    let mut page: Page = first.read()?;
    let mut listing = Listing::open(invocation.form(), "deeds");
    let (mut answer, mut with_head) = (first, true);
    loop {
        match invocation.form() {
            // A later page without a match adds no line.
            Form::Text if page.deeds.is_empty() && !with_head => {}
            Form::Text => say(rows(&answer, with_head)?),
            Form::Json | Form::Jsonl => page.deeds.iter().for_each(|deed| listing.add(deed.get())),
        }
        let Some(cursor) = page.next_cursor else { break };
        if !args.all {
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

fn rows(page: &Response, with_head: bool) -> Result<String, Error> {
    let table = table(&page.read::<AuditList>()?.deeds, clock::now());
    Ok(if with_head { table } else { table.lines().skip(1).collect::<Vec<_>>().join("\n") })
}

fn table(deeds: &[AuditEventView], now: UnixMicros) -> String {
    let row = |deed: &AuditEventView| {
        vec![
            moment::shown(deed.at, now),
            deed.who.clone(),
            deed.who_id.map(|id| id.to_string()).unwrap_or_default(),
            deed.what.clone(),
            deed.target.clone(),
            deed.status.to_string(),
            deed.address.clone().unwrap_or_default(),
            deed.detail.clone().unwrap_or_default(),
        ]
    };
    print::table(&["AT", "WHO", "ID", "WHAT", "TARGET", "STATUS", "FROM", "DETAIL"], deeds.iter().map(row).collect())
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

    #[test]
    fn all_deeds_come_in_the_largest_pages_unless_the_caller_says_otherwise() {
        let query = |words: &[&str]| {
            Listed::try_parse_from([&["audit"], words].concat()).expect("understood").args.query(Some("c"))
        };
        let page = |limit: &str| vec![("limit", limit.to_owned()), ("cursor", "c".to_owned())];
        assert_eq!(query(&[]), page("100"));
        assert_eq!(query(&["--all"]), page("1000"));
        assert_eq!(query(&["--all", "--limit", "7"]), page("7"));
    }
}
