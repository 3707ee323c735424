//! The history of a node: one line for each step of a task or of an ownership, as this node sees it.
//!
//! It is for a checker that compares a run with the models of Duetime's protocols. Without a file, a step costs one
//! look at an `Option`. With one, a step puts a line into a bounded channel, and a thread writes it. A full or slow
//! disk costs lines, never time: a line without room is lost and counted, and the file says how many.

mod line;
mod lost;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    fs::OpenOptions,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
};

use common::ids::{Epoch, NodeId, ShardId};
use prometheus::Registry;

use self::lost::Lost;
pub use self::{
    line::{Line, Step},
    writer::Writer,
};
use crate::clock;

/// The most lines that wait for the disk, about 100 bytes each: some seconds of a busy node.
const WAITING: usize = 65_536;

/// Records the steps of a node. Clones share one file.
#[derive(Clone, Debug, Default)]
pub struct History(Option<Arc<Recorder>>);

#[derive(Debug)]
struct Recorder {
    lines: SyncSender<Line>,
    lost: Lost,
}

/// The history file cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot open the history file {path}")]
    Open { path: String, source: io::Error },
    #[error("cannot count lost lines of the history")]
    Metric(#[from] prometheus::Error),
}

impl History {
    /// Opens a file for the steps of this start of `me`. The file's first line names the node. Without a `path`,
    /// nothing is recorded.
    pub fn open(path: Option<&Path>, me: &NodeId, registry: &Registry) -> Result<(Self, Option<Writer>), Error> {
        let lost = Lost::register(registry)?;
        let Some(path) = path else { return Ok((Self::default(), None)) };
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(|source| Error::Open { path: path.display().to_string(), source })?;
        let (sender, lines) = sync_channel(WAITING);
        let writer = Writer::start(file, me, lines, lost.clone());
        Ok((Self(Some(Arc::new(Recorder { lines: sender, lost }))), Some(writer)))
    }

    /// Whether steps are recorded. Ask before building lines in a loop.
    pub const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records a step that has happened. Never waits.
    pub fn record(&self, step: Step) {
        let Some(recorder) = &self.0 else { return };
        if recorder.lines.try_send(Line { at: clock::now(), step }).is_err() {
            recorder.lost.add(1);
        }
    }

    /// Records the same kind of step for many tasks.
    pub fn record_all(&self, steps: impl IntoIterator<Item = Step>) {
        if self.is_on() {
            steps.into_iter().for_each(|step| self.record(step));
        }
    }

    /// Records that this node holds shards under these epochs.
    pub fn acquired(&self, taken: &[(ShardId, Epoch)]) {
        self.record_all(taken.iter().map(|&(shard, epoch)| Step::ShardAcquired { shard, epoch }));
    }
}
