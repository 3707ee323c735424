//! `stack down`: stops everything that `up` started, in reverse order, with time for a clean end.

use std::{path::Path, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::Args;
use integration_tests::sandbox::Signal;

use crate::{place::Place, say::say};

const NODE_WITHIN: Duration = Duration::from_secs(30);
const STORE_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Remove all data too.
    #[arg(long)]
    purge: bool,
}

pub(crate) async fn run(base: &Path, options: &Options) -> Result<ExitCode> {
    let place = Place::new(base)?;
    let stopped = stop(&place).await?;
    say(format_args!("{stopped} processes stopped"));
    if options.purge {
        place.purge();
        say("data removed");
    }
    Ok(ExitCode::SUCCESS)
}

/// Stops the processes that still run; returns how many those were.
pub(crate) async fn stop(place: &Place) -> Result<usize> {
    let running = place.running()?;
    let alive = running.nodes.iter().chain(&running.stores).filter(|process| process.is_running()).count();
    // All nodes at the same time: each tries to hand over its shards until the last other node is gone.
    let ends = running.nodes.iter().map(|node| node.end(Signal::Term, NODE_WITHIN));
    for end in futures::future::join_all(ends).await {
        end?;
    }
    for store in running.stores.iter().rev() {
        // INT makes PostgreSQL stop without waiting for its clients.
        let signal = if store.name == "postgresql" { Signal::Int } else { Signal::Term };
        store.end(signal, STORE_WITHIN).await?;
    }
    place.forget();
    place.remove_histories();
    Ok(alive)
}
