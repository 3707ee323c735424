//! The faults: what each breaks, and how it is healed.

mod etcd;
mod links;
mod nodes;
mod postgres;
mod rabbit;

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use futures::future::BoxFuture;
use rand::{RngExt, rngs::StdRng};

use super::stage::{Stage, between};
use crate::sandbox::{Node, Sandbox};

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
    /// The program of the last release.
    LastRelease,
}

impl Needs {
    pub(super) fn is_large(self) -> bool {
        self == Self::Large
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
}

/// All kinds.
pub(super) fn all() -> impl Iterator<Item = &'static Kind> {
    [nodes::KINDS, links::KINDS, postgres::KINDS, etcd::KINDS, rabbit::KINDS].into_iter().flatten()
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

    fn below(&mut self, count: usize) -> usize {
        self.random.random_range(0..count)
    }
}
