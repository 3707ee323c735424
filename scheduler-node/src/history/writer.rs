//! The thread that writes a node's history.

use std::{
    io::{self, Write},
    sync::mpsc::{Receiver, RecvTimeoutError},
    thread::{Builder, JoinHandle},
    time::{Duration, Instant},
};

use common::ids::NodeId;
use serde_json::{Value, json};

use super::{Line, Lost};
use crate::clock;

/// How long the end of a node waits for its last lines.
const END: Duration = Duration::from_secs(2);

/// The interval between two looks for lost lines while no line comes, and for the end of the thread.
const LOOK: Duration = Duration::from_millis(20);

/// The most lines of one write: about 100 KiB.
const BATCH: usize = 1_024;

/// The thread. It ends when the last [`super::History`] is dropped.
#[derive(Debug)]
pub struct Writer {
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(file: impl Write + Send + 'static, me: &NodeId, lines: Receiver<Line>, lost: Lost) -> Self {
        let first = json!({
            "at": clock::now(), "step": "started", "node": me.name, "incarnation": me.incarnation,
            "version": env!("CARGO_PKG_VERSION"),
        });
        let counted = lost.clone();
        let run = move || Lines { file, lost, torn: false }.run(&first, &lines);
        let thread = Builder::new().name("history".to_owned()).spawn(run);
        // Without the thread every line is lost: the channel is closed.
        if let Err(error) = &thread {
            counted.add(1);
            tracing::warn!(error = error as &dyn std::error::Error, "cannot start the thread of the history");
        }
        Self { thread: thread.ok() }
    }

    /// Waits a moment for the last lines. A disk that hangs costs them.
    pub async fn end(self) {
        let Some(thread) = self.thread else { return };
        let until = Instant::now() + END;
        while !thread.is_finished() && Instant::now() < until {
            tokio::time::sleep(LOOK).await;
        }
    }
}

struct Lines<F> {
    file: F,
    lost: Lost,
    /// The last write failed, perhaps within a line.
    torn: bool,
}

impl<F: Write> Lines<F> {
    fn run(mut self, first: &Value, lines: &Receiver<Line>) {
        self.write(std::slice::from_ref(first));
        loop {
            let line = match lines.recv_timeout(LOOK) {
                Ok(line) => Some(line),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let batch: Vec<Line> = line.into_iter().chain(lines.try_iter()).take(BATCH).collect();
            if !batch.is_empty() || self.lost.is_any() {
                self.write(&batch);
            }
        }
        self.write(&[json!({ "at": clock::now(), "step": "stopped" })]);
    }

    /// Writes lines, and a gap before them if any were lost. Lines that cannot be written are lost too.
    fn write(&mut self, batch: &[impl serde::Serialize]) {
        let lost = self.lost.take();
        let written = text(lost, batch).and_then(|text| {
            // Ends a line that was torn, so that only that line cannot be read.
            let start: &[u8] = if self.torn { b"\n" } else { b"" };
            self.file.write_all(&[start, &text].concat())?;
            self.file.flush()
        });
        self.torn = written.is_err();
        if let Err(error) = written {
            // The gap is written once the disk takes lines again.
            self.lost.give_back(lost);
            self.lost.add(batch.len() as u64);
            tracing::debug!(error = &error as &dyn std::error::Error, "could not write the history");
            std::thread::park_timeout(LOOK);
        }
    }
}

fn text(lost: u64, batch: &[impl serde::Serialize]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if lost > 0 {
        serde_json::to_writer(&mut text, &json!({ "at": clock::now(), "step": "gap", "lost": lost }))?;
        text.push(b'\n');
    }
    for line in batch {
        serde_json::to_writer(&mut text, line)?;
        text.push(b'\n');
    }
    Ok(text)
}
