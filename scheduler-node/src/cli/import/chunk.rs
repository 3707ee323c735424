//! Exported tasks that share one request.

use common::wire::{Problem, batch::MAX_TASKS};

use super::{line::Line, rest::Span};

/// Half of what a node holds of all batches at one time, divided by the chunks in flight.
const CHUNK_BYTES: usize = 8 << 20;
/// A tenth of a node's limit for one request, so that several may be in flight.
const CHUNK_TASKS: usize = MAX_TASKS / 10;

/// Tasks that share one request, with the number and the text of each line.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// All its lines, also those without a task.
    pub(super) span: Option<Span>,
    pub(super) body: String,
    pub(super) lines: Vec<(u64, String)>,
    /// Lines that the command refuses without asking a node.
    pub(super) refused: Vec<(u64, String, Problem)>,
    pub(super) skipped: u64,
}

impl Chunk {
    pub(super) fn is_full(&self) -> bool {
        self.lines.len() + self.refused.len() >= CHUNK_TASKS || self.body.len() >= CHUNK_BYTES
    }

    pub(super) fn add(&mut self, number: u64, text: String, line: Line) {
        let first = self.span.map_or(number, |span| span.first);
        self.span = Some(Span { first, last: number });
        match line {
            Line::Task(request) => {
                self.body.push(if self.lines.is_empty() { '[' } else { ',' });
                self.body.push_str(&request);
                self.lines.push((number, text));
            }
            Line::Finished => self.skipped += 1,
            Line::Refused(problem) => self.refused.push((number, text, *problem)),
            Line::End(_) | Line::Blank => {}
        }
    }
}
