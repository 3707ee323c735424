//! Commands on one task, or on several by id: get, cancel, move, run, retry, result.

mod sheet;

use clap::{Args, ValueEnum};
use common::{
    ids::TaskId,
    time::UnixMicros,
    wire::{CancelAnswer, TaskView},
};
use reqwest::Method;
use serde::Serialize;
use serde_json::{json, value::RawValue};
use serde_with::skip_serializing_none;

pub(super) use self::sheet::sheet;
use super::{
    client::{Client, Request, Response, path_part},
    error::Error,
    invocation::Invocation,
    moment,
    output::{Form, complain, say},
    print::Listing,
};
use crate::clock;

/// One task.
#[derive(Debug, Args)]
pub struct One {
    /// The task's id, from the answer to its submission.
    #[arg(required_unless_present = "key", conflicts_with = "key")]
    id: Option<TaskId>,
    #[command(flatten)]
    key: ByKey,
}

/// One task or more, each with its own answer.
#[derive(Debug, Args)]
pub struct TaskIds {
    /// Ids of the tasks.
    #[arg(required_unless_present = "key", conflicts_with = "key", value_name = "ID")]
    ids: Vec<TaskId>,
    #[command(flatten)]
    key: ByKey,
}

/// Names the newest task with a business key, instead of one by its id.
#[derive(Debug, Args)]
struct ByKey {
    /// Queue of a task that is named by its key.
    #[arg(long, value_name = "NAME", requires = "key", value_parser = path_part)]
    queue: Option<String>,
    /// The task's business key, instead of its id.
    #[arg(long, value_name = "KEY", requires = "queue", value_parser = path_key)]
    key: Option<String>,
    /// The partition key beside the business key, if the task has one.
    #[arg(long, value_name = "KEY", requires = "key")]
    partition_key: Option<String>,
}

/// Parses a business key that a path can name.
fn path_key(text: &str) -> Result<String, String> {
    path_part(text).map_err(|_| {
        "no request can name an empty key, `.` or `..`; name the task by its id, which `duetime list --queue NAME --key KEY` tells"
            .to_owned()
    })
}

impl ByKey {
    fn request(&self) -> Request<'_> {
        let (queue, key) = (self.queue.as_deref().unwrap_or_default(), self.key.as_deref().unwrap_or_default());
        let partition = self.partition_key.iter().map(|key| ("partition_key", key.clone())).collect();
        Request::get(&["v1", "queues", queue, "keys", key]).query(partition)
    }

    /// Looks up the id of the task that has the key now.
    async fn find(&self, client: &Client) -> Result<TaskId, Error> {
        let answer = client.send(&self.request()).await?;
        let task = answer.read::<TaskView>()?;
        // A proxy that changes paths would have the command act on another task.
        let partition_key = task.partition_key.as_deref().unwrap_or_default();
        if self.queue.as_deref() != Some(task.queue.as_str())
            || self.key != task.key
            || self.partition_key.as_deref().unwrap_or_default() != partition_key
        {
            let (queue, key) = (task.queue.as_str(), task.key.as_deref().unwrap_or_default());
            let found = format!("queue {queue:?}, key {key:?}, partition key {partition_key:?}");
            return Err(answer.of_other_task(found).into());
        }
        Ok(task.id)
    }
}

impl One {
    async fn id(&self, client: &Client) -> Result<String, Error> {
        let id = match self.id {
            Some(id) => id,
            None => self.key.find(client).await?,
        };
        Ok(id.to_string())
    }
}

/// The new due time of a task.
#[derive(Debug, Args)]
pub struct Move {
    #[command(flatten)]
    task: One,
    #[command(flatten)]
    due: Due,
}

/// A due time: a delay from now, or a moment.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub(super) struct Due {
    /// This long from now: 30s, 5m, 2h, 1day.
    #[arg(long, value_name = "TIME", value_parser = moment::duration_ms)]
    pub(super) delay: Option<i64>,
    /// At this moment: RFC 3339, or Unix milliseconds.
    #[arg(long, value_name = "MOMENT", value_parser = moment::moment, allow_negative_numbers = true)]
    pub(super) at: Option<UnixMicros>,
}

/// A report on an attempt.
#[derive(Debug, Args)]
pub struct Report {
    #[command(flatten)]
    task: One,
    /// Number of the attempt, from the message's header `duetime-attempt`.
    #[arg(long, value_name = "NUMBER")]
    attempt: i32,
    /// Status of the attempt.
    #[arg(long, value_enum)]
    status: Status,
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    status_code: Option<i64>,
    #[arg(long, value_name = "TEXT")]
    status_msg: Option<String>,
    /// The result itself, as JSON.
    #[arg(long, value_name = "JSON", value_parser = json_text)]
    result: Option<Box<RawValue>>,
    /// Try again after this long, whatever the queue's policy says.
    #[arg(long, value_name = "TIME", value_parser = moment::duration_ms)]
    retry_in: Option<i64>,
    /// Progress, in per cent.
    #[arg(long, value_name = "PERCENT")]
    progress: Option<i16>,
    /// Name of the worker.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
}

/// The statuses, as the command line and the request spell them.
#[derive(Clone, Copy, Debug, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
enum Status {
    Succeeded,
    /// Try again, if attempts are left.
    Failed,
    /// Still working: extends the deadline.
    Running,
    /// Not worth another attempt.
    Discard,
}

/// Parses JSON and keeps it byte for byte.
pub(super) fn json_text(text: &str) -> Result<Box<RawValue>, String> {
    RawValue::from_string(text.to_owned()).map_err(|error| format!("not JSON: {error}; write a string with its quotes"))
}

pub(super) async fn get(invocation: &Invocation<One>) -> Result<(), Error> {
    let One { id, key } = &invocation.args;
    let id = id.map(|id| id.to_string());
    let request = id.as_deref().map_or_else(|| key.request(), |id| Request::get(&["v1", "tasks", id]));
    invocation.print(&invocation.client()?.send(&request).await?, shown)
}

pub(super) async fn cancel(invocation: &Invocation<TaskIds>) -> Result<(), Error> {
    each(invocation, |id| Request::new(Method::DELETE, &["v1", "tasks", id]), cancelled).await
}

pub(super) async fn stop(invocation: &Invocation<TaskIds>) -> Result<(), Error> {
    each(invocation, |id| Request::post(&["v1", "tasks", id, "stop"]), cancelled).await
}

pub(super) async fn run(invocation: &Invocation<TaskIds>) -> Result<(), Error> {
    each(invocation, |id| Request::post(&["v1", "tasks", id, "run"]), moved).await
}

pub(super) async fn retry(invocation: &Invocation<TaskIds>) -> Result<(), Error> {
    each(invocation, |id| Request::post(&["v1", "tasks", id, "retry"]), moved).await
}

pub(super) async fn shift(invocation: &Invocation<Move>) -> Result<(), Error> {
    let Move { task, due } = &invocation.args;
    let change = match (due.delay, due.at) {
        (Some(delay_ms), _) => json!({ "delay_ms": delay_ms }),
        (None, Some(due_at)) => json!({ "due_at": due_at }),
        (None, None) => {
            return Err(Error::Usage("give the new due time: --delay 30m, or --at 2030-01-31T09:00:00Z".into()));
        }
    };
    let client = invocation.client()?;
    let id = task.id(&client).await?;
    let request = Request::new(Method::PATCH, &["v1", "tasks", &id]).body(change.to_string());
    invocation.print(&client.send(&request).await?, moved)
}

pub(super) async fn report(invocation: &Invocation<Report>) -> Result<(), Error> {
    let client = invocation.client()?;
    let id = invocation.args.task.id(&client).await?;
    let body = serde_json::to_string(&Body::of(&invocation.args)).map_err(Error::Unwritable)?;
    let request = Request::post(&["v1", "tasks", &id, "result"]).body(body);
    invocation.print(&client.send(&request).await?, moved)
}

/// The body of a report.
#[skip_serializing_none]
#[derive(Serialize)]
struct Body<'a> {
    attempt: i32,
    status: Status,
    status_code: Option<i64>,
    status_msg: Option<&'a str>,
    result: Option<&'a RawValue>,
    retry_in_ms: Option<i64>,
    progress: Option<i16>,
    worker: Option<&'a str>,
}

impl<'a> Body<'a> {
    fn of(report: &'a Report) -> Self {
        Self {
            attempt: report.attempt,
            status: report.status,
            status_code: report.status_code,
            status_msg: report.status_msg.as_deref(),
            result: report.result.as_deref(),
            retry_in_ms: report.retry_in,
            progress: report.progress,
            worker: report.worker.as_deref(),
        }
    }
}

/// Sends one request for each task in turn. After a refusal it goes on with the next task; it stops when no node can
/// be reached, or one has too many requests.
async fn each(
    invocation: &Invocation<TaskIds>,
    request: impl for<'i> Fn(&'i str) -> Request<'i>,
    line: impl Fn(&Response) -> Result<String, Error>,
) -> Result<(), Error> {
    let client = invocation.client()?;
    let TaskIds { ids, key } = &invocation.args;
    let ids = if ids.is_empty() { vec![key.find(&client).await?] } else { ids.clone() };
    if let [id] = ids.as_slice() {
        return invocation.print(&client.send(&request(&id.to_string())).await?, line);
    }
    let mut listing = Listing::open(invocation.form(), "results");
    let mut refused = 0;
    let mut broken = None;
    for id in &ids {
        match client.send(&request(&id.to_string())).await {
            Ok(answer) if invocation.form() == Form::Text => say(line(&answer)?),
            Ok(answer) => listing.add(&answer.text),
            Err(failure) => {
                complain(format_args!("{id}: {failure}"));
                if let Some(problem) = failure.problem() {
                    listing.add(&format!("{{\"id\":\"{id}\",\"error\":{problem}}}"));
                }
                // A node that still has too many requests would refuse the next one as well.
                if failure.is_refusal() && !failure.may_pass() {
                    refused += 1;
                } else {
                    broken = Some((*id, failure.is_refusal()));
                    break;
                }
            }
        }
    }
    listing.close("");
    match broken {
        Some((id, is_refusal)) => {
            let told = format!("stopped at task {id}; the tasks after it were not requested");
            Err(if is_refusal { Error::Refused(told) } else { Error::Broken(told) })
        }
        None if refused > 0 => Err(Error::SomeRefused { refused, all: ids.len() }),
        None => Ok(()),
    }
}

fn shown(answer: &Response) -> Result<String, Error> {
    Ok(sheet(&answer.read::<TaskView>()?, clock::now()))
}

fn cancelled(answer: &Response) -> Result<String, Error> {
    let CancelAnswer { id, outcome } = answer.read()?;
    let outcome = serde_json::to_value(outcome).map_err(Error::Unwritable)?;
    Ok(format!("{id}  {}", outcome.as_str().unwrap_or_default()))
}

/// One line about the task as the action left it.
pub(super) fn moved(answer: &Response) -> Result<String, Error> {
    let task: TaskView = answer.read()?;
    Ok(receipt(&task, clock::now()))
}

fn receipt(task: &TaskView, now: UnixMicros) -> String {
    let TaskView { id, state, due_at, .. } = task;
    if state.is_final() {
        format!("{id}  {state}")
    } else {
        format!("{id}  {state}  due {}", moment::shown(*due_at, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::wait::tests::client_of;

    #[tokio::test]
    async fn a_task_that_has_not_the_requested_names_is_not_taken_for_it() {
        let task = json!({
            "id": "0199f3a0-0000-7000-8000-000000000005", "queue": "mails", "state": "scheduled", "key": "order7",
            "partition_key": "eu",
            "due_at": "2030-01-01T00:03:00Z", "created_at": "2030-01-01T00:00:00Z", "attempt": 1, "max_attempts": 25,
            "priority": 3, "shard": 5, "content_type": "application/json", "payload": {},
        });
        let client = client_of(vec![Some((200, task)); 5]).await;
        let named = |queue: &str, key: &str, partition_key: Option<&str>| ByKey {
            queue: Some(queue.into()),
            key: Some(key.into()),
            partition_key: partition_key.map(str::to_owned),
        };
        for other in [
            named("mails", "order\t7", Some("eu")),
            named("bills", "order7", Some("eu")),
            named("mails", "order7", Some("us")),
            named("mails", "order7", None),
        ] {
            let failure = other.find(&client).await.expect_err("it is another task").to_string();
            let found = r#"is about another task (queue "mails", key "order7", partition key "eu")"#;
            assert!(failure.contains(found) && !failure.contains("cannot be read"), "{failure}");
        }
        let id = named("mails", "order7", Some("eu")).find(&client).await.expect("a task").to_string();
        assert_eq!(id, "0199f3a0-0000-7000-8000-000000000005");
    }

    #[test]
    fn a_key_that_no_path_can_name_is_refused() {
        assert!(["", ".", ".."].iter().all(|key| path_key(key).is_err()));
        assert_eq!(path_key("order\t7"), Ok("order\t7".to_owned()));
    }
}
