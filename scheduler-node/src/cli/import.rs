//! `duetime import`: submits exported tasks again, several batches at a time. Each line gets its own answer.

mod chunk;
mod dependencies;
mod import_counts;
mod line;
mod rest;

use std::{cell::Cell, path::PathBuf};

use common::wire::{ExportEnd, Problem};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use self::{
    chunk::Chunk,
    import_counts::{ImportCounts, Outcome},
    line::{Choice, Line},
    rest::Rest,
};
use super::{
    client::{Client, Failure, Request},
    error::Error,
    invocation::Invocation,
    output::{Form, complain, warn},
    progress,
    signals::{end_at_once, end_on_signal},
};

/// Chunks in flight at one time: the command reads the next ones while a node commits one.
const IN_FLIGHT: usize = 4;
/// Longer than any exported task: payload and result of 1 MiB each in base64, the history, and the JSON around them.
const LINE_BYTES: usize = 16 << 20;

/// Which exported tasks to submit again, and how.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// File that `duetime export` wrote; `-` for standard input.
    file: PathBuf,
    /// Give each task without a key its old id as its key, so that importing it twice makes one task.
    #[arg(long)]
    key_from_id: bool,
    /// Submit finished tasks too, as new ones.
    #[arg(long)]
    all_states: bool,
    /// File for the refused lines, each with the reason; it can be imported in turn.
    #[arg(long, value_name = "FILE")]
    refused: Option<PathBuf>,
    /// Start at this line: where an earlier import broke off.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    from_line: u64,
}

/// The input, read line by line.
struct Source<R> {
    lines: R,
    choice: Choice,
    from_line: u64,
    number: u64,
    tasks: u64,
    end: Option<ExportEnd>,
    over: bool,
    /// The reason why the next line cannot be read. The lines before it go first.
    broken: Option<Error>,
}

impl<R: AsyncBufRead + Unpin> Source<R> {
    /// Reads the next chunk; `None` at the end of the input.
    async fn chunk(&mut self) -> Result<Option<Chunk>, Error> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        let mut chunk = Chunk::default();
        while !self.over && !chunk.is_full() {
            let (text, line) = match self.line().await {
                Ok(Some(Ok(text))) => {
                    let line = self.choice.of(&text);
                    (text, line)
                }
                Ok(Some(Err(bytes))) => {
                    let problem = Problem::malformed("it is not UTF-8".to_owned());
                    (String::from_utf8_lossy(&bytes).into_owned(), Line::Refused(Box::new(problem)))
                }
                Ok(None) => {
                    self.over = true;
                    self.check_end();
                    break;
                }
                Err(error) => {
                    self.broken = Some(error);
                    break;
                }
            };
            match line {
                Line::End(end) => self.end = Some(end),
                Line::Blank => {}
                _ => self.tasks += 1,
            }
            if self.number >= self.from_line {
                chunk.add(self.number, text, line);
            }
        }
        let is_empty = chunk.lines.is_empty() && chunk.refused.is_empty() && chunk.skipped == 0;
        Ok((!is_empty || !self.over).then_some(chunk))
    }

    /// Reads the next line. The inner error: its bytes are not UTF-8.
    async fn line(&mut self) -> Result<Option<Result<String, Vec<u8>>>, Error> {
        let refuse = |number: u64, why: String| {
            Error::Usage(format!("line {number} cannot be read: {why}; all lines before are imported or refused"))
        };
        let mut bytes = Vec::new();
        let mut bounded = (&mut self.lines).take(LINE_BYTES as u64);
        let read = bounded.read_until(b'\n', &mut bytes).await;
        if read.map_err(|error| refuse(self.number + 1, error.to_string()))? == 0 {
            return Ok(None);
        }
        self.number += 1;
        if bytes.len() >= LINE_BYTES {
            return Err(refuse(self.number, format!("it is longer than any exported task ({LINE_BYTES} bytes)")));
        }
        Ok(Some(String::from_utf8(bytes).map_err(std::string::FromUtf8Error::into_bytes)))
    }

    /// Warns when the file is not a whole export, or its tasks wait for others. Its lines are imported all the same.
    fn check_end(&self) {
        if let Some(text) = self.choice.dependencies().warning() {
            warn(text);
        }
        match self.end {
            Some(end) if end.exported == self.tasks => {}
            Some(end) => complain(format_args!("{} tasks were exported, the file has {}", end.exported, self.tasks)),
            // A file of refused lines has no end mark.
            None if self.choice.was_refused_before() => {}
            None => complain("the file has no last line with the number of tasks: the export was cut off"),
        }
    }
}

pub(super) async fn import(invocation: &Invocation<Args>) -> Result<(), Error> {
    let (client, args) = (invocation.client()?, &invocation.args);
    let unreadable = |error| Error::Usage(format!("`{}` cannot be read: {error}", args.file.display()));
    let done = if args.file.as_os_str() == "-" {
        send_all(invocation.form(), &client, args, BufReader::new(tokio::io::stdin())).await
    } else {
        let opened = tokio::fs::File::open(&args.file).await.map_err(unreadable)?;
        send_all(invocation.form(), &client, args, BufReader::new(opened)).await
    };
    if let Err(error) = &done {
        end_at_once(error);
    }
    done
}

async fn send_all(form: Form, client: &Client, args: &Args, lines: impl AsyncBufRead + Unpin) -> Result<(), Error> {
    let mut counts = ImportCounts::new(args.refused.as_deref())?;
    let choice = Choice::new(args.key_from_id, args.all_states);
    let (from_line, number, tasks) = (args.from_line, 0, 0);
    let source = Source { lines, choice, from_line, number, tasks, end: None, over: false, broken: None };
    let sent = send_lines(client, source, &mut counts, &end_on_signal()?).await;
    counts.end(form, sent.err())
}

/// Sends all lines, or those up to the first answer that is missing. The answers to the chunks in flight count all the
/// same.
async fn send_lines<R: AsyncBufRead + Unpin>(
    client: &Client,
    source: Source<R>,
    counts: &mut ImportCounts,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let (mut rest, mut unreadable) = (Rest::new(source.from_line), None);
    let (is_over, enough) = (&Cell::new(false), stop.child_token());
    let chunks = futures::stream::try_unfold(source, |mut source| async move {
        let chunk = source.chunk().await?;
        is_over.set(chunk.is_none() || source.over);
        Ok::<_, Error>(chunk.map(|chunk| (chunk, source)))
    });
    let chunks = chunks.take_until(enough.cancelled());
    // Answers are handled in the order of the lines, and so is a failure to read one: `try_buffered` would tell of it
    // before the chunks in flight are answered.
    let sent = chunks.map(|chunk| async move {
        let chunk = chunk?;
        let answer = send(client, &chunk).await;
        Ok::<_, Error>((chunk, answer))
    });
    let mut answered = std::pin::pin!(sent.buffered(IN_FLIGHT));
    let progress = progress::of_tasks();
    while let Some(next) = answered.next().await {
        match next {
            Ok((chunk, answer)) => {
                if let Ok(outcomes) = &answer {
                    progress.suspend(|| counts.note(&chunk, outcomes));
                }
                if let Some(span) = chunk.span {
                    rest.note(span, answer.err());
                }
            }
            Err(error) => unreadable = Some(error),
        }
        if rest.is_broken() || counts.is_cut_off() {
            enough.cancel();
        }
        progress.set_position(counts.lines());
    }
    progress.finish_and_clear();
    match unreadable {
        _ if rest.is_broken() => Err(rest.broken("")),
        Some(error) => Err(error),
        None if is_over.get() => Ok(()),
        None if counts.is_cut_off() => Err(rest.broken("stopped because `--refused` cannot be written")),
        None => Err(rest.broken("stopped by a signal")),
    }
}

/// Sends a chunk. An error says why its answers are missing.
async fn send(client: &Client, chunk: &Chunk) -> Result<Vec<Outcome>, String> {
    #[derive(Deserialize)]
    struct Results {
        results: Vec<Box<RawValue>>,
    }
    if chunk.lines.is_empty() {
        return Ok(Vec::new());
    }
    let request = Request::post(&["v1", "tasks", "batch"]).body(format!("{}]", chunk.body));
    let why = |failure: Failure| failure.to_string();
    let Results { results } = client.send(&request).await.map_err(why)?.read().map_err(why)?;
    if results.len() != chunk.lines.len() {
        return Err(format!("the node sent {} answers for {} tasks", results.len(), chunk.lines.len()));
    }
    let read = |result: Box<RawValue>| serde_json::from_str(result.get()).unwrap_or_default();
    Ok(results.into_iter().map(read).collect())
}

#[cfg(test)]
mod tests;
