//! The time in which something is measured: what the nodes and the machine do meanwhile.

use std::time::Instant;

use anyhow::Result;
use integration_tests::{client::Client, sandbox::Sandbox};

use super::{Options, machine::Watch, report::Report, scrape::Scrape};

/// A measurement that goes on.
#[derive(Debug)]
pub(super) struct Window {
    clients: Vec<Client>,
    watch: Watch,
    before: Scrape,
    began: Instant,
}

/// A measurement that has ended.
#[derive(Debug)]
pub(super) struct Measured {
    pub seconds: f64,
    /// The growth of the nodes' counters.
    pub nodes: Scrape,
    /// It goes on, and has counted until now.
    pub watch: Watch,
}

impl Window {
    pub(super) async fn open(cluster: &Sandbox) -> Result<Self> {
        let (clients, watch) = (cluster.clients(), Watch::start(cluster));
        let before = Scrape::of(&clients).await?;
        Ok(Self { clients, watch, before, began: Instant::now() })
    }

    pub(super) async fn close(self) -> Result<Measured> {
        let seconds = self.began.elapsed().as_secs_f64();
        let nodes = Scrape::of(&self.clients).await?.since(&self.before);
        Ok(Measured { seconds, nodes, watch: self.watch })
    }
}

impl Measured {
    /// Tells what the machine did, and with `--details` what the nodes did.
    pub(super) fn tell(self, part: &str, options: &Options, report: &mut Report) -> Result<()> {
        self.watch.end(part, report)?;
        if options.details {
            self.nodes.details(part, self.seconds, report);
        }
        Ok(())
    }
}
