//! `duetime bulk`: applies one action to all tasks that a filter matches. It sends request after request until no
//! task is left.

use std::io::{self, BufRead, IsTerminal, Write};

use clap::ValueEnum;
use common::{
    time::UnixMicros,
    wire::{
        BulkAnswer, BulkCursor,
        bulk::{DEFAULT_LIMIT, STEP},
    },
};
use indicatif::HumanCount;
use serde::Serialize;
use serde_with::skip_serializing_none;
use tokio_util::sync::CancellationToken;

use super::{
    client::{Client, Request, sentence},
    error::Error,
    filter::Filter,
    invocation::Invocation,
    moment,
    output::{Form, complain, say},
    progress,
    signals::end_on_signal,
    task::Due,
};
use crate::causes::explained;

/// The action and the filter of its tasks.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(value_enum)]
    action: Action,
    #[command(flatten)]
    filter: Filter,
    /// Every task; required when there is no filter.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    due: Due,
    /// move: by how much to shift each due time; negative is earlier: -5m.
    #[arg(long, value_name = "TIME", value_parser = shift_ms, allow_hyphen_values = true, conflicts_with = "Due")]
    shift: Option<i64>,
    /// Count the tasks, and change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(long)]
    yes: bool,
    /// Continue where an earlier run broke off, with the same options as then.
    #[arg(long)]
    cursor: Option<String>,
}

/// The actions, as the command line and the request spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Action {
    /// Cancel tasks that no node has claimed.
    Cancel,
    /// Give dead tasks new attempts.
    Retry,
    /// Make tasks due now.
    Run,
    /// Move tasks to another due time: --delay, --at or --shift.
    Move,
}

fn shift_ms(text: &str) -> Result<i64, String> {
    match text.strip_prefix('-') {
        Some(earlier) => moment::duration_ms(earlier).map(|by_ms| -by_ms),
        None => moment::duration_ms(text),
    }
}

/// The body of a bulk request.
#[skip_serializing_none]
#[derive(Serialize)]
struct Body<'a> {
    action: Action,
    filter: &'a Filter,
    all: bool,
    dry_run: bool,
    delay_ms: Option<i64>,
    due_at: Option<UnixMicros>,
    shift_ms: Option<i64>,
    cursor: Option<String>,
}

/// Why the work stopped before its end.
#[derive(Debug)]
struct Broken {
    why: String,
    doubt: Doubt,
}

/// The tasks from the cursor on that may be changed already.
#[derive(Debug)]
enum Doubt {
    None,
    /// Those of one step, if the reason says that its outcome is unknown.
    Step,
    /// Those of the last request, which has no answer.
    Request,
}

impl Broken {
    /// A signal came after the last request had its answer.
    fn by_signal() -> Self {
        Self { why: "stopped by a signal".to_owned(), doubt: Doubt::None }
    }

    /// The node broke off within the last request. It may not know the outcome of its last step.
    const fn within(why: String) -> Self {
        Self { why, doubt: Doubt::Step }
    }

    /// The last request has no answer that could be read.
    fn of(error: &Error) -> Self {
        let had_no_effect = matches!(error, Error::Call(failure) if failure.had_no_effect());
        Self { why: explained(error), doubt: if had_no_effect { Doubt::None } else { Doubt::Request } }
    }

    /// The reason, and how to go on. A shift is the only action that tasks notice when it is done twice.
    fn told(&self, sum: &BulkAnswer, is_shift: bool) -> String {
        let why = &self.why;
        let Some(cursor) = &sum.next_cursor else { return why.clone() };
        match self.doubt {
            Doubt::Request if is_shift => format!(
                "{why}; up to {} tasks may be shifted already, and --cursor {cursor} would shift them again: look at \
                 their due times first",
                HumanCount(u64::from(DEFAULT_LIMIT))
            ),
            Doubt::Step if is_shift => format!(
                "{why}; continue with --cursor {cursor}. Where an outcome is unknown, it would shift up to {STEP} tasks \
                 again: look at the next due times first"
            ),
            _ => format!("{why}; continue with --cursor {cursor}"),
        }
    }
}

pub(super) async fn bulk(invocation: &Invocation<Args>) -> Result<(), Error> {
    let (client, args) = (invocation.client()?, &invocation.args);
    if !args.dry_run && !args.yes && !is_meant(&client, args).await? {
        return Err(Error::Refused("nothing was changed".into()));
    }
    let (sum, broken) = to_the_end(&client, args, args.dry_run, &end_on_signal()?).await?;
    match invocation.form() {
        Form::Text => say(summary(&sum)),
        Form::Json | Form::Jsonl => say(serde_json::to_string(&sum).map_err(Error::Unwritable)?),
    }
    if let Some(broken) = broken {
        return Err(Error::Broken(broken.told(&sum, args.shift.is_some() && !args.dry_run)));
    }
    let refused = sum.refused.values().sum::<u64>();
    if refused > 0 && !args.dry_run {
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        return Err(Error::SomeRefused { refused: count(refused), all: count(sum.matched) });
    }
    Ok(())
}

/// Counts the tasks and asks the person at the terminal to confirm. A script has to pass `--yes`.
async fn is_meant(client: &Client, args: &Args) -> Result<bool, Error> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(Error::Usage(
            "cannot ask for confirmation without a terminal: use --yes, or --dry-run to count only".into(),
        ));
    }
    // A signal ends the count at once: it changes nothing.
    let (sum, broken) = to_the_end(client, args, true, &CancellationToken::new()).await?;
    if let Some(Broken { why, .. }) = broken {
        return Err(Error::Broken(why));
    }
    complain(summary(&sum));
    write!(io::stderr(), "continue? [y/N] ").map_err(Error::Terminal)?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(Error::Terminal)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// Sends request after request. Returns the sum of the answers, and the reason if it stopped before the end.
async fn to_the_end(
    client: &Client,
    args: &Args,
    dry_run: bool,
    stop: &CancellationToken,
) -> Result<(BulkAnswer, Option<Broken>), Error> {
    let progress = progress::of_tasks();
    let mut sum: Option<BulkAnswer> = None;
    let broken = loop {
        let cursor = match &sum {
            Some(sum) => sum.next_cursor.as_ref().map(BulkCursor::to_string),
            None => args.cursor.clone(),
        };
        let answer: BulkAnswer = match (send(client, args, dry_run, cursor).await, &sum) {
            (Ok(answer), _) => answer,
            (Err(error), None) => return Err(error),
            // The work done so far is reported all the same.
            (Err(error), Some(_)) => {
                if let (Error::Call(failure), Some(sum)) = (&error, &mut sum)
                    && failure.is_conflict()
                {
                    sum.next_cursor = None;
                }
                break Some(Broken::of(&error));
            }
        };
        let interrupted = answer.interrupted.as_ref().map(sentence);
        let next = add(sum, answer);
        progress.set_position(next.matched);
        let is_over = next.next_cursor.is_none();
        sum = Some(next);
        if interrupted.is_some() || is_over {
            break interrupted.map(Broken::within);
        }
        if stop.is_cancelled() {
            break Some(Broken::by_signal());
        }
    };
    progress.finish_and_clear();
    Ok((sum.expect("the first answer is there"), broken))
}

async fn send(client: &Client, args: &Args, dry_run: bool, cursor: Option<String>) -> Result<BulkAnswer, Error> {
    let body = Body {
        action: args.action,
        filter: &args.filter,
        all: args.all,
        dry_run,
        delay_ms: args.due.delay,
        due_at: args.due.at,
        shift_ms: args.shift,
        cursor,
    };
    let body = serde_json::to_string(&body).map_err(Error::Unwritable)?;
    Ok(client.send(&Request::post(&["v1", "tasks", "bulk"]).body(body)).await?.read()?)
}

fn add(sum: Option<BulkAnswer>, answer: BulkAnswer) -> BulkAnswer {
    let Some(before) = sum else { return answer };
    let mut refused = before.refused;
    for (why, count) in answer.refused {
        *refused.entry(why).or_default() += count;
    }
    BulkAnswer {
        matched: before.matched + answer.matched,
        done: before.done + answer.done,
        no_further_attempts: before.no_further_attempts + answer.no_further_attempts,
        refused,
        ..answer
    }
}

fn summary(sum: &BulkAnswer) -> String {
    let done = if sum.dry_run { "could be done" } else { "done" };
    let mut text = format!("{}: {} found, {} {done}", sum.action, HumanCount(sum.matched), HumanCount(sum.done));
    if sum.no_further_attempts > 0 {
        text += &format!(" ({} of them between two attempts)", HumanCount(sum.no_further_attempts));
    }
    for (why, count) in &sum.refused {
        let why = serde_json::to_value(why).ok();
        let why = why.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().replace('_', " ");
        text += &format!(", {} left: {why}", HumanCount(*count));
    }
    text
}

#[cfg(test)]
mod tests;
