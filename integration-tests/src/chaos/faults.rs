//! The faults: what each breaks, and how it is healed.

mod clocks;
mod etcd;
mod links;
mod nodes;
mod postgres;
mod rabbit;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Result;
use futures::future::BoxFuture;
use rand::{RngExt, rngs::StdRng};

use super::stage::{Stage, between};
use crate::sandbox::{Node, Sandbox, last_release, may_mount, may_set_clocks};

/// The longest wait for a node that has been started, or for its end.
const NODE_WITHIN: Duration = Duration::from_secs(60);

/// What a fault breaks. Two faults at the same time break different parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// One node, or its links. Two faults may break two nodes.
    Node,
    /// The first database.
    Home,
    /// The second database.
    Second,
    /// The clock of the second database. Played alone: beside another fault it is not known exactly what may be early.
    Clock,
    Etcd,
    Rabbit,
    /// Nothing that another fault needs.
    None,
}

/// What a fault needs of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// Two databases, a standby, or several members of a store.
    Large,
    /// The same, and a file system for the second database.
    Room,
    /// libfaketime.
    NodeClock,
    /// The same, and two databases.
    DatabaseClock,
    /// The program of the last release.
    LastRelease,
}

impl Needs {
    pub(super) fn is_large(self) -> bool {
        matches!(self, Self::Large | Self::Room | Self::DatabaseClock)
    }

    /// What this machine lacks, so that the fault cannot be played.
    pub(super) fn lack(self) -> Option<&'static str> {
        let (is_there, lack) = match self {
            Self::Nothing | Self::Large => return None,
            Self::Room => (may_mount(), "this machine does not permit mounts"),
            Self::NodeClock | Self::DatabaseClock => (may_set_clocks(), "this machine has no libfaketime"),
            Self::LastRelease => {
                (last_release().is_ok_and(|release| release.program.is_some()), "the last release has not been built")
            }
        };
        (!is_there).then_some(lack)
    }
}

/// One kind of fault.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Its row of the fault matrix.
    pub(super) row: &'static str,
    pub(super) says: &'static str,
    pub(super) part: Part,
    pub(super) needs: Needs,
    /// Breaks, waits and heals.
    pub(super) play: fn(Scene) -> BoxFuture<'static, Result<()>>,
}

/// One fault that is played.
pub(super) struct Scene {
    pub(super) stage: Arc<Stage>,
    pub(super) random: StdRng,
    /// The node that is broken, when one is.
    pub(super) node: usize,
    /// Faults of a short run are short.
    pub(super) is_short: bool,
    /// Why the fault had no effect, if it had none.
    pub(super) void: Arc<OnceLock<&'static str>>,
}

/// All kinds.
pub(super) fn all() -> impl Iterator<Item = &'static Kind> {
    [nodes::KINDS, links::KINDS, postgres::KINDS, etcd::KINDS, rabbit::KINDS, clocks::KINDS].into_iter().flatten()
}

impl Scene {
    fn sandbox(&self) -> &Sandbox {
        &self.stage.sandbox
    }

    fn victim(&self) -> &Node {
        self.sandbox().node(self.node)
    }

    /// Lets the fault last.
    async fn hold(&mut self) {
        let (least_ms, most_ms) = if self.is_short { (800, 3_000) } else { (2_000, 12_000) };
        tokio::time::sleep(between(&mut self.random, least_ms, most_ms)).await;
    }

    /// Notes that the fault had no effect, as when another one stood in its way. The first reason stays.
    fn note_void(&self, why: &'static str) {
        self.void.set(why).ok();
    }

    fn below(&mut self, count: usize) -> usize {
        self.random.random_range(0..count)
    }
}
