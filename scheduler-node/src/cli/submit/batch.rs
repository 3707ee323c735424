//! Submits many tasks, one JSON object a line, in batches. Each line gets its own answer.

use std::{fmt, path::Path};

use common::wire::{Problem, batch::MAX_TASKS};
use indicatif::{HumanCount, ProgressBar};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio_util::sync::CancellationToken;

use crate::cli::{
    client::{Client, Failure, Request, sentence},
    error::Error,
    output::{Form, complain, say},
    print::Listing,
    progress,
    signals::{end_at_once, end_on_signal},
};

/// Half of a node's limit for one request, so that one more line never exceeds it.
const BATCH_BYTES: usize = 32 << 20;
/// Longer than any task: 1 MiB in base64 and the JSON around it.
const LINE_BYTES: usize = 4 << 20;
/// This many refusals are reported with their reasons. Of the rest only the numbers of the lines are told, consecutive
/// ones as a range: a mistake that all lines of a large file share would hide everything else.
const MAX_REPORTED: usize = 100;

/// Lines that share one request, each with its number, because blank lines are skipped.
#[derive(Debug, Default)]
struct Batch {
    body: String,
    lines: Vec<u64>,
}

impl Batch {
    fn add(&mut self, number: u64, json: &str) {
        self.body.push(if self.lines.is_empty() { '[' } else { ',' });
        self.body.push_str(json);
        self.lines.push(number);
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= MAX_TASKS || self.body.len() >= BATCH_BYTES
    }
}

#[derive(Deserialize)]
struct Results {
    results: Vec<Box<RawValue>>,
}

/// The relevant part of the answer to one task: accepted when there is no error.
#[derive(Deserialize)]
struct Outcome {
    error: Option<Problem>,
}

/// Consecutive lines with one outcome, of which only the numbers are told.
#[derive(Debug)]
struct LineRange {
    first: u64,
    last: u64,
    is_refused: bool,
}

impl fmt::Display for LineRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, is_refused } = self;
        let outcome = if *is_refused { "refused" } else { "failed or unknown" };
        if first == last { write!(f, "line {first}: {outcome}") } else { write!(f, "lines {first}-{last}: {outcome}") }
    }
}

/// The outcomes of the lines so far.
#[derive(Debug)]
struct BatchCounts {
    listing: Listing,
    /// The range that is not told yet, because it may go on.
    range: Option<LineRange>,
    accepted: usize,
    refused: usize,
    /// Tasks that a node could not serve at the moment; its problem tells whether they may have been stored.
    failed: usize,
}

impl BatchCounts {
    fn new(form: Form) -> Self {
        Self { listing: Listing::open(form, "results"), range: None, accepted: 0, refused: 0, failed: 0 }
    }

    fn accept(&mut self, json: &str) {
        self.accepted += 1;
        self.listing.add(json);
    }

    /// Returns what to tell of it now.
    fn refuse(&mut self, number: u64, problem: Problem) -> Option<String> {
        let is_refused = problem.status < 500;
        if is_refused {
            self.refused += 1
        } else {
            self.failed += 1
        }
        let told = if self.refused + self.failed <= MAX_REPORTED {
            Some(format!("line {number}: {}", sentence(&problem)))
        } else {
            self.add_to_range(number, is_refused)
        };
        let index = self.all() - 1;
        let error = serde_json::json!({ "error": problem.at(index) });
        self.listing.add(&error.to_string());
        told
    }

    /// Returns the range before, if the line begins a new one.
    fn add_to_range(&mut self, number: u64, is_refused: bool) -> Option<String> {
        if let Some(range) =
            self.range.as_mut().filter(|range| range.last + 1 == number && range.is_refused == is_refused)
        {
            range.last = number;
            return None;
        }
        let ended = self.range.replace(LineRange { first: number, last: number, is_refused });
        Some(ended.map_or_else(
            || "the lines that follow are told without their reasons; --output jsonl has every answer".to_owned(),
            |range| range.to_string(),
        ))
    }

    fn all(&self) -> usize {
        self.accepted + self.refused + self.failed
    }
}

pub(super) async fn submit(client: &Client, form: Form, file: &Path) -> Result<(), Error> {
    let refuse = |error| Error::Usage(format!("`--batch {}` cannot be read: {error}", file.display()));
    let done = if file.as_os_str() == "-" {
        send_all(form, client, BufReader::new(tokio::io::stdin()), &end_on_signal()?).await
    } else {
        let opened = tokio::fs::File::open(file).await.map_err(refuse)?;
        send_all(form, client, BufReader::new(opened), &end_on_signal()?).await
    };
    if let Err(error) = &done {
        end_at_once(error);
    }
    done
}

async fn send_all(
    form: Form,
    client: &Client,
    mut lines: impl AsyncBufRead + Unpin,
    stop: &CancellationToken,
) -> Result<(), Error> {
    let mut counts = BatchCounts::new(form);
    let progress = progress::of_tasks();
    let (mut number, mut answered) = (0, 0);
    let sent = loop {
        let (batch, ended) = tokio::select! {
            biased;
            () = stop.cancelled() => break Err(stopped(answered)),
            gathered = gather(&mut lines, &mut number) => gathered,
        };
        if let Some(last) = batch.lines.last().copied() {
            if let Err(error) = send(client, batch, &mut counts, &progress).await {
                break Err(error);
            }
            answered = last;
        }
        progress.set_position(counts.all() as u64);
        match ended {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    progress.finish_and_clear();
    close(form, counts, sent)
}

/// A signal came. `answered`: the last line of the last batch, 0 without one.
fn stopped(answered: u64) -> Error {
    Error::Broken(match answered {
        0 => "stopped by a signal; no line was sent".to_owned(),
        _ => {
            format!("stopped by a signal; all lines to {answered} have their answers, and those after it were not sent")
        }
    })
}

/// Reads the next batch, and whether it is the last. With an error it is, too: the lines before the wrong one.
async fn gather(lines: &mut (impl AsyncBufRead + Unpin), number: &mut u64) -> (Batch, Result<bool, Error>) {
    let mut batch = Batch::default();
    let ended = fill(&mut batch, lines, number).await;
    (batch, ended)
}

/// Fills a batch. Returns whether the lines have ended.
async fn fill(batch: &mut Batch, lines: &mut (impl AsyncBufRead + Unpin), number: &mut u64) -> Result<bool, Error> {
    let mut line = Vec::new();
    while !batch.is_full() {
        line.clear();
        let mut bounded = (&mut *lines).take(LINE_BYTES as u64);
        let read = bounded.read_until(b'\n', &mut line).await;
        if read.map_err(|error| Error::Usage(format!("`--batch` cannot be read any further: {error}")))? == 0 {
            return Ok(true);
        }
        *number += 1;
        if line.len() >= LINE_BYTES {
            let why = format!("line {number} of `--batch` is longer than any task may be ({LINE_BYTES} bytes)");
            return Err(Error::Usage(format!("{why}; this line and all after it were not sent")));
        }
        // A line that is not JSON is sent as a JSON string. The node then refuses it in its place like any other
        // invalid task.
        match json(&line) {
            Some("") => {}
            Some(json) => batch.add(*number, json),
            None => batch.add(*number, "\"not JSON\""),
        }
    }
    Ok(false)
}

/// The one JSON value of a line; "" for a blank line.
fn json(line: &[u8]) -> Option<&str> {
    let text = str::from_utf8(line).ok()?.trim_ascii();
    (text.is_empty() || serde_json::from_str::<&RawValue>(text).is_ok()).then_some(text)
}

async fn send(client: &Client, batch: Batch, counts: &mut BatchCounts, progress: &ProgressBar) -> Result<(), Error> {
    let Batch { body, lines } = batch;
    let of_lines = || format!("lines {} to {}", lines[0], lines[lines.len() - 1]);
    let request = Request::post(&["v1", "tasks", "batch"]).body(body + "]");
    let answer = client.send(&request).await.map_err(|failure| match failure {
        Failure::Refused(_) => {
            Error::Refused(format!("{}: {failure}; the lines after these were not sent", of_lines()))
        }
        _ => Error::Broken(format!("{}: {failure}; the lines after these were not sent", of_lines())),
    })?;
    let unknown = |why: String| Error::Broken(format!("{}: {why}; their outcome is unknown", of_lines()));
    let Results { results } = answer.read().map_err(|failure| unknown(failure.to_string()))?;
    if results.len() != lines.len() {
        return Err(unknown(format!("the node sent {} answers for {} tasks", results.len(), lines.len())));
    }
    for (number, result) in lines.iter().zip(results) {
        match serde_json::from_str::<Outcome>(result.get()).map(|outcome| outcome.error) {
            Ok(Some(problem)) => {
                if let Some(told) = counts.refuse(*number, problem) {
                    progress.suspend(|| complain(told));
                }
            }
            _ => counts.accept(result.get()),
        }
    }
    Ok(())
}

fn close(form: Form, counts: BatchCounts, sent: Result<(), Error>) -> Result<(), Error> {
    let BatchCounts { listing, range, accepted, refused, failed } = counts;
    let all = accepted + refused + failed;
    if let Some(range) = range {
        complain(range);
    }
    listing.close("");
    let summary = format!(
        "{} accepted, {} refused, {} failed or unknown",
        HumanCount(accepted as u64),
        HumanCount(refused as u64),
        HumanCount(failed as u64)
    );
    match form {
        Form::Text => say(summary),
        Form::Json | Form::Jsonl => complain(summary),
    }
    match sent {
        Err(error) => Err(error),
        Ok(()) if failed > 0 => Err(Error::Broken(format!("{failed} of {all} failed, or their outcome is unknown"))),
        Ok(()) if refused > 0 => Err(Error::SomeRefused { refused, all }),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use reqwest::StatusCode;
    use serde_json::json;

    use super::*;
    use crate::cli::client::tests::client_of;

    async fn gathered(text: &[u8]) -> (Batch, bool) {
        let mut lines = text;
        let (batch, ended) = gather(&mut lines, &mut 0).await;
        (batch, ended.expect("gathered"))
    }

    #[tokio::test]
    async fn lines_keep_their_numbers_over_blank_ones_and_those_that_are_no_json() {
        let (batch, ended) = gathered(b"{\"queue\":\"a\"}\n\n  {\"queue\": \"b\"}\r\n{\n\xff\nlast").await;
        assert!(ended);
        assert_eq!(batch.lines, [1, 3, 4, 5, 6]);
        assert_eq!(batch.body, r#"[{"queue":"a"},{"queue": "b"},"not JSON","not JSON","not JSON""#);
    }

    #[test]
    fn each_line_that_is_refused_is_told_by_its_number() {
        let mut counts = BatchCounts::new(Form::Text);
        let mut told = Vec::new();
        for number in 1..=200 {
            match number {
                1..=100 | 121..=160 | 171..=179 => {
                    told.extend(counts.refuse(number, Problem::malformed("no task".to_owned())))
                }
                180 => told.extend(counts.refuse(number, Problem::unavailable("no database"))),
                _ => counts.accept("{}"),
            }
        }
        assert_eq!((counts.accepted, counts.refused, counts.failed), (50, 149, 1));
        assert!(told[99].starts_with("line 100: ") && told[100].contains("without their reasons"), "{told:?}");
        assert_eq!(told[101..], ["lines 121-160: refused", "lines 171-179: refused"]);
        assert_eq!(counts.range.expect("it may go on").to_string(), "line 180: failed or unknown");
    }

    #[tokio::test]
    async fn a_batch_is_full_at_what_a_node_takes() {
        let (batch, ended) = gathered("1\n".repeat(MAX_TASKS + 1).as_bytes()).await;
        assert_eq!((batch.lines.len(), ended), (MAX_TASKS, false));
        let long = format!("\"{}\"\n", "x".repeat(LINE_BYTES - 10)).repeat(9);
        let (batch, ended) = gathered(long.as_bytes()).await;
        assert_eq!((batch.lines.len(), ended), (9, false));
        assert!(batch.body.len() < 2 * BATCH_BYTES);
    }

    /// A client of a node that accepts all tasks, and the signal that comes before its first answer.
    async fn accepting() -> (Client, CancellationToken) {
        let stop = CancellationToken::new();
        let signal = stop.clone();
        let client = client_of("/v1/tasks/batch", move |body| {
            signal.cancel();
            let tasks: Vec<u64> = serde_json::from_str(&body).expect("a batch");
            let answer = json!({ "results": vec![json!({}); tasks.len()] });
            std::future::ready((StatusCode::OK, answer.to_string()))
        })
        .await;
        (client, stop)
    }

    #[tokio::test]
    async fn a_signal_ends_it_after_the_batch_under_way() {
        let (client, stop) = accepting().await;
        let lines = "1\n".repeat(MAX_TASKS + 1);
        let error = send_all(Form::Text, &client, lines.as_bytes(), &stop).await.expect_err("a line is left");
        let text = error.to_string();
        assert!(text.starts_with("stopped by a signal; all lines to 10000 have their answers"), "{text}");
        assert_eq!(error.exit_code(), 3);
        let (client, stop) = accepting().await;
        send_all(Form::Text, &client, b"1\n".as_slice(), &stop).await.expect("the signal comes too late");
    }

    #[tokio::test]
    async fn a_signal_ends_it_while_the_input_is_silent() {
        let (client, stop) = accepting().await;
        let (_open, silent) = tokio::io::duplex(LINE_BYTES);
        let reading = send_all(Form::Text, &client, BufReader::new(silent), &stop);
        let (sent, ()) = tokio::join!(reading, async { stop.cancel() });
        assert_eq!(sent.expect_err("stopped").to_string(), "stopped by a signal; no line was sent");
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_refused_by_its_number() {
        let text = [b"1\n".to_vec(), vec![b'x'; LINE_BYTES + 1]].concat();
        let (batch, ended) = gather(&mut text.as_slice(), &mut 0).await;
        assert_eq!(batch.lines, [1], "the lines before it are sent");
        let error = ended.expect_err("refused");
        assert!(error.to_string().contains("line 2 of"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
