//! `duetime database accept-loss`.

use clap::Args;
use common::wire::AcceptedLoss;

use crate::cli::{
    client::{Request, path_part},
    error::Error,
    invocation::Invocation,
};

/// One database.
#[derive(Debug, Args)]
pub struct One {
    /// Name of the database, as its `[[database]]` has it.
    #[arg(value_parser = path_part)]
    database: String,
}

pub(super) async fn accept(invocation: &Invocation<One>) -> Result<(), Error> {
    let request = Request::post(&["v1", "databases", &invocation.args.database, "accept-loss"]);
    let answer = invocation.client()?.send(&request).await?;
    invocation.print(&answer, |answer| Ok(shown(&answer.read()?)))
}

fn shown(accepted: &AcceptedLoss) -> String {
    let AcceptedLoss { database, missing_bytes, system_identifier, timeline, .. } = accepted;
    format!(
        "database {database}: the nodes use the server with system identifier {system_identifier} at timeline {timeline}; \
         up to {missing_bytes} bytes of the log are lost"
    )
}
