//! `duetime queue`: policies and live counts, pause and resume.

use clap::{Args, Subcommand};
use common::{
    queue,
    wire::{
        QueueView,
        queue::{Counts, QueueList},
    },
};
use reqwest::Method;
use serde_json::{Map, Value};

use super::{
    client::{Failure, Request, Response, path_part},
    distinct::require_distinct,
    error::Error,
    invocation::Invocation,
    moment,
    output::{Form, say},
    pages::PageArgs,
    print,
};
use crate::clock;

/// The subcommands that act on queues.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List queues by name, with the number of tasks in each state.
    #[command(after_help = "Example:\n  duetime queue list")]
    List(Invocation<PageArgs>),
    /// Show a queue's policy and counts.
    #[command(after_help = "Example:\n  duetime queue get mails")]
    Get(Invocation<One>),
    /// Change fields of a queue's policy and show the difference; the other fields stay.
    #[command(after_help = "Examples:\n  duetime queue set mails settle=result max_attempts=5\n  \
                            duetime queue set mails retry='{\"kind\":\"fixed\",\"delay_ms\":1000}' timeout_ms=null")]
    Set(Invocation<Set>),
    /// Forget a queue that has no unfinished task and no schedule.
    #[command(after_help = "Example:\n  duetime queue delete mails")]
    Delete(Invocation<One>),
    /// Stop dispatch; tasks that come due wait as `ready`.
    #[command(after_help = "Example:\n  duetime queue pause mails")]
    Pause(Invocation<One>),
    /// Start dispatch again.
    #[command(after_help = "Example:\n  duetime queue resume mails")]
    Resume(Invocation<One>),
}

/// One queue.
#[derive(Debug, Args)]
pub struct One {
    #[arg(value_parser = name)]
    name: String,
}

/// The changes to a queue's policy.
#[derive(Debug, Args)]
pub struct Set {
    #[command(flatten)]
    queue: One,
    /// Field and its new value: JSON, or a bare word taken as text; `null` restores the default.
    #[arg(required = true, value_name = "FIELD=VALUE", value_parser = change)]
    changes: Vec<(String, Value)>,
}

fn name(text: &str) -> Result<String, String> {
    queue::check_name(text).map_err(|error| error.to_string())?;
    path_part(text)
}

fn change(text: &str) -> Result<(String, Value), String> {
    let (field, value) = text.split_once('=').ok_or("write it FIELD=VALUE")?;
    Ok((field.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| Value::from(value))))
}

pub(super) async fn queue(command: &Command) -> Result<(), Error> {
    match command {
        Command::List(invocation) => {
            PageArgs::print(invocation, "queues", |page| Ok(table(&page.read::<QueueList>()?.queues))).await
        }
        Command::Get(invocation) => {
            let answer = invocation.client()?.send(&Request::get(&["v1", "queues", &invocation.args.name])).await?;
            invocation.print(&answer, shown)
        }
        Command::Set(invocation) => set(invocation).await,
        Command::Delete(invocation) => {
            let name = &invocation.args.name;
            invocation.client()?.send(&Request::new(Method::DELETE, &["v1", "queues", name])).await?;
            // The API's answer has no body, so JSON output prints nothing either.
            if invocation.form() == Form::Text {
                say(format_args!("{name}  deleted"));
            }
            Ok(())
        }
        Command::Pause(invocation) => turn(invocation, "pause").await,
        Command::Resume(invocation) => turn(invocation, "resume").await,
    }
}

async fn turn(invocation: &Invocation<One>, verb: &str) -> Result<(), Error> {
    let answer = invocation.client()?.send(&Request::post(&["v1", "queues", &invocation.args.name, verb])).await?;
    invocation.print(&answer, |answer| {
        let queue: QueueView = answer.read()?;
        Ok(format!("{}  {}", queue.name, if queue.paused { "paused" } else { "dispatching" }))
    })
}

/// Reads the policy, applies the changes and writes it back, because the API sets a policy as a whole. A write of the
/// same queue in between is overwritten.
async fn set(invocation: &Invocation<Set>) -> Result<(), Error> {
    let args = &invocation.args;
    require_distinct("field", &args.changes)?;
    let client = invocation.client()?;
    let path = ["v1", "queues", args.queue.name.as_str()];
    let before = match client.send(&Request::get(&path)).await {
        Ok(answer) => fields(&answer.read()?),
        Err(failure) if is_not_found(&failure) => Map::new(),
        Err(failure) => return Err(failure.into()),
    };
    let body = Value::from(merged(before.clone(), &args.changes)).to_string();
    let answer = client.send(&Request::new(Method::PUT, &path).body(body)).await?;
    invocation.print(&answer, |answer| Ok(difference(&before, &fields(&answer.read()?))))
}

fn is_not_found(failure: &Failure) -> bool {
    let problem = failure.problem().and_then(|text| serde_json::from_str::<Value>(text).ok());
    problem.is_some_and(|problem| problem["status"] == 404)
}

/// The settable fields of a queue, as the API shows it.
fn fields(view: &Value) -> Map<String, Value> {
    let mut fields = view["policy"].as_object().cloned().unwrap_or_default();
    fields.insert("paused".to_owned(), view["paused"].clone());
    fields
}

/// Applies the changes; `null` is the API's word for the default. Without `paused` the API leaves it as it is stored. A
/// queue whose policy cannot be read is shown as paused, and a valid policy must not keep it so.
fn merged(mut fields: Map<String, Value>, changes: &[(String, Value)]) -> Map<String, Value> {
    fields.remove("paused");
    fields.extend(changes.iter().cloned());
    fields
}

fn difference(before: &Map<String, Value>, after: &Map<String, Value>) -> String {
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let lines: Vec<String> = names
        .into_iter()
        .filter(|name| before.get(*name) != after.get(*name))
        .map(|name| {
            let shown =
                |fields: &Map<String, Value>| fields.get(name).map_or_else(|| "-".to_owned(), ToString::to_string);
            print::printable(&format!("{name}: {} -> {}", shown(before), shown(after)))
        })
        .collect();
    if lines.is_empty() { "nothing changes".to_owned() } else { lines.join("\n") }
}

fn table(queues: &[QueueView]) -> String {
    let row = |queue: &QueueView| {
        let Counts { waiting, scheduled, ready, dispatching, delivered, running, at_least } = queue.counts;
        let mut row = vec![queue.name.to_string(), if queue.paused { "paused" } else { "dispatching" }.to_owned()];
        let or_more = if at_least { "+" } else { "" };
        row.extend(
            [waiting, scheduled, ready, dispatching, delivered, running].map(|count| format!("{count}{or_more}")),
        );
        row
    };
    let head = ["QUEUE", "IS", "WAITING", "SCHEDULED", "READY", "DISPATCHING", "DELIVERED", "RUNNING"];
    print::table(&head, queues.iter().map(row).collect())
}

fn shown(answer: &Response) -> Result<String, Error> {
    let queue: QueueView = answer.read()?;
    let view: Value = answer.read()?;
    let now = clock::now();
    let policy =
        view["policy"].as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), Some(value.to_string())));
    let at = |moment: Option<common::time::UnixMicros>| moment.map(|moment| moment::shown(moment, now));
    let fields = policy.chain([("created", at(queue.created_at)), ("updated", at(queue.updated_at))]).collect();
    Ok(format!("{}\n\n{}", table(std::slice::from_ref(&queue)), print::sheet(fields)))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use common::{
        ids::QueueName,
        queue::{Queue, QueuePolicy},
        wire::QueueRequest,
    };
    use serde_json::json;

    use super::*;

    fn view() -> Value {
        let queue = Queue::with_defaults(QueueName::new("mails"));
        serde_json::to_value(QueueView::of(&queue, Counts { ready: 7, at_least: true, ..Counts::default() }))
            .expect("JSON")
    }

    #[test]
    fn a_value_is_json_or_a_word() {
        assert_eq!(change("settle=result"), Ok(("settle".to_owned(), json!("result"))));
        assert_eq!(change("retry={\"kind\":\"immediate\"}"), Ok(("retry".to_owned(), json!({"kind": "immediate"}))));
        assert_eq!(change("exchange=\"5\""), Ok(("exchange".to_owned(), json!("5"))));
        assert_eq!(change("timeout_ms=null"), Ok(("timeout_ms".to_owned(), Value::Null)));
        assert!(change("settle").is_err());
        assert!(name("..").is_err() && name("a b").is_err() && name("a.b").is_ok());
    }

    #[tokio::test]
    async fn a_field_that_is_given_twice_is_a_mistake_of_the_caller() {
        #[derive(Parser)]
        struct Asked {
            #[command(flatten)]
            set: Invocation<Set>,
        }
        let asked = Asked::try_parse_from(["set", "mails", "settle=result", "settle=reject"]).expect("understood");
        assert_eq!(set(&asked.set).await.expect_err("refused").exit_code(), 2);
    }

    #[test]
    fn fields_that_are_not_named_stay_as_they_are() {
        let mut queue = view();
        queue["policy"]["max_attempts"] = json!(3);
        queue["policy"]["timeout_ms"] = json!(5);
        let changes = [("settle".to_owned(), json!("result")), ("timeout_ms".to_owned(), Value::Null)];
        let body = Value::from(merged(fields(&queue), &changes)).to_string();
        let policy = QueueRequest::parse(&body).and_then(QueueRequest::into_policy).expect("accepted");
        assert_eq!(policy.max_attempts, 3);
        assert_eq!(policy.timeout_ms, QueuePolicy::default().timeout_ms);
        assert_eq!(policy.settle, common::queue::Settle::Result);
    }

    #[test]
    fn a_queue_that_is_shown_as_paused_is_paused_only_by_name() {
        let mut queue = view();
        queue["paused"] = json!(true);
        let paused = |changes: &[(String, Value)]| merged(fields(&queue), changes).remove("paused");
        assert_eq!(paused(&[("max_attempts".to_owned(), json!(3))]), None);
        assert_eq!(paused(&[("paused".to_owned(), json!(false))]), Some(json!(false)));
    }

    #[test]
    fn a_difference_shows_only_what_changed() {
        let (before, mut after) = (fields(&view()), fields(&view()));
        assert_eq!(difference(&before, &after), "nothing changes");
        after.insert("settle".to_owned(), json!("result"));
        after.insert("exchange".to_owned(), json!("x"));
        assert_eq!(difference(&before, &after), "exchange: - -> \"x\"\nsettle: \"reject\" -> \"result\"");
    }

    #[test]
    fn counts_that_stopped_early_say_so() {
        let queue: QueueView = serde_json::from_value(view()).expect("a queue");
        let shown = table(&[queue]);
        assert!(shown.contains("mails  dispatching") && shown.contains("7+"), "{shown}");
    }
}
