//! `duetime audit`: lists who did what.

use common::{
    time::UnixMicros,
    wire::{
        AuditList,
        audit::AuditEventView,
        list::{DEFAULT_LIMIT, MAX_LIMIT},
    },
};

use super::{
    client::{Request, Response},
    error::Error,
    invocation::Invocation,
    moment,
    pages::Pages,
    print,
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

pub(super) async fn audit(invocation: &Invocation<Args>) -> Result<(), Error> {
    let args = &invocation.args;
    let request = |cursor: Option<&str>| Request::get(&["v1", "audit"]).query(args.query(cursor));
    let pages = Pages { name: "deeds", all: args.all, cursor: args.cursor.as_deref() };
    pages.print(&invocation.client()?, invocation.form(), request, rows).await
}

fn rows(page: &Response) -> Result<String, Error> {
    Ok(table(&page.read::<AuditList>()?.deeds, clock::now()))
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
