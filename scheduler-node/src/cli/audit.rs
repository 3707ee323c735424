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
    output::complain,
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
    #[arg(long, value_name = "DEEDS", default_value_t = DEFAULT_LIMIT, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_LIMIT)))]
    limit: u32,
    /// Continue where an earlier page ended.
    #[arg(long)]
    cursor: Option<String>,
}

impl Args {
    fn query(&self) -> Vec<(&'static str, String)> {
        let moment = |at: Option<UnixMicros>| at.map(|at| at.to_string());
        [
            ("who", self.who.clone()),
            ("what", self.what.clone()),
            ("target", self.target.clone()),
            ("after", moment(self.after)),
            ("before", moment(self.before)),
            ("limit", Some(self.limit.to_string())),
            ("cursor", self.cursor.clone()),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }
}

pub(super) async fn audit(invocation: &Invocation<Args>) -> Result<(), Error> {
    let answer = invocation.client()?.send(&Request::get(&["v1", "audit"]).query(invocation.args.query())).await?;
    invocation.print(&answer, page)
}

fn page(answer: &Response) -> Result<String, Error> {
    let list: AuditList = answer.read()?;
    if let Some(cursor) = &list.next_cursor {
        complain(format_args!("there are more: --cursor {cursor}"));
    }
    Ok(table(&list.deeds, clock::now()))
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
