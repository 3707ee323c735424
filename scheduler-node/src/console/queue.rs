//! The page of one queue: its counts, the form of its policy, pause and deletion.

use std::time::Duration;

use askama::Template;
use axum::{
    extract::Path,
    http::{StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use common::{
    access::Permission,
    ids::QueueName,
    queue::check_name,
    wire::{Problem, QueueRequest, QueueView},
};
use serde_json::Value;

use super::{
    browser::parameter,
    extract::PostedForm,
    form::{self, Field, Kind, Spec, spec},
    format::{When, count, span, when},
    frame::{Frame, PageProblem, show},
    queues::ShownCounts,
    visitor::Visitor,
};
use crate::{
    desk::NodeFigures,
    internal::{self, Origin},
};

/// All fields of a policy, apart from the retry.
const POLICY: [Spec; 24] = [
    spec(
        "settle",
        Kind::OneOf(&["confirm", "reject", "result"]),
        "reject",
        "how a task finishes: by the broker's confirm, by a deadline without a rejection, or by the consumer's report",
    ),
    spec("max_attempts", Kind::Whole, "25", "most attempts; after them a task is dead"),
    spec("timeout_ms", Kind::Whole, "1800000", "how long a delivered attempt may go without a report"),
    spec("placement", Kind::OneOf(&["spread", "single"]), "spread", "tasks on all shards, or on one"),
    spec("max_running", Kind::Whole, "no limit", "most tasks started without an outcome; needs single and result"),
    spec("rate_per_second", Kind::Number, "no limit", "most tasks started a second; exact with single"),
    spec("ordered", Kind::Flag, "", "runs tasks of one partition key one after another, by due time; needs result"),
    spec(
        "priority_weights",
        Kind::List,
        "80 % highest, 20 % lowest",
        "1 to 5 weights, priority 1 first: how often each is chosen while tasks wait for room",
    ),
    spec("retry_priority_drop", Kind::Flag, "", "lowers the priority of a retry by one"),
    spec("max_length", Kind::Whole, "10000", "of the RabbitMQ queue, in messages; more wait in the database"),
    spec("format", Kind::OneOf(&["raw", "celery", "cloudevents"]), "raw", "format of the message"),
    // RabbitMQ's names may begin and end with blanks.
    spec("exchange", Kind::ExactText, "duetime", "exchange to publish to instead; then Duetime declares nothing"),
    spec(
        "routing_key",
        Kind::ExactText,
        "the queue's name",
        "routing key of the messages; counts only with an exchange",
    ),
    spec(
        "unroutable",
        Kind::OneOf(&["wait", "drop", "set_aside"]),
        "wait",
        "what to do with a message that the exchange cannot route; set_aside: its task is dead",
    ),
    spec("use_existing", Kind::Flag, "", "uses a RabbitMQ queue of this name that Duetime did not declare"),
    spec(
        "receipt",
        Kind::OneOf(&["optional", "required"]),
        "optional",
        "whether a report must bring back the receipt of its delivery",
    ),
    spec("dedup_window_ms", Kind::Whole, "86400000", "how long a finished task keeps its key"),
    spec("keep_succeeded_ms", Kind::Whole, "86400000", "retention of all finished tasks but dead ones"),
    spec("keep_dead_ms", Kind::Whole, "1209600000", "retention of dead tasks"),
    spec("failure_alert_threshold", Kind::Whole, "none", "tasks that may die in 15 minutes before an alert fires"),
    spec("max_pending", Kind::Whole, "no limit", "most unfinished tasks; further submissions are refused"),
    spec("max_pending_bytes", Kind::Whole, "no limit", "most bytes of the payloads and headers of unfinished tasks"),
    spec("max_schedules", Kind::Whole, "no limit", "most schedules that create tasks of the queue"),
    spec(
        "max_submits_per_second",
        Kind::Whole,
        "no limit",
        "most submissions a second over HTTP and AMQP, on each node",
    ),
];

pub(super) fn specs() -> Vec<Spec> {
    POLICY.into_iter().chain(form::retry("polynomial")).collect()
}

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: Frame,
    name: QueueName,
    /// `None`: the queue does not exist yet.
    there: Option<ExistingQueue>,
    fields: Vec<Field>,
    /// The stored state that the form changes.
    seen: String,
    /// A mistake that concerns no single field.
    wrong: Option<String>,
    may_act: bool,
}

struct ExistingQueue {
    paused: bool,
    counts: ShownCounts,
    updated: Option<When>,
    flow: Flow,
}

/// The queue's throughput, as this node counts it.
struct Flow {
    node: String,
    up: String,
    finished: String,
    /// A minute, since the earlier view that the URL carries.
    since: Option<String>,
    again: String,
}

#[derive(Template)]
#[template(path = "queue_delete.html")]
struct DeletePage {
    frame: Frame,
    name: QueueName,
}

pub(super) async fn queue(visitor: Visitor, Path(name): Path<String>, uri: Uri) -> Result<Response, PageProblem> {
    let as_page = |problem| PageProblem::at(&visitor, problem);
    let name = queue_name(&name).map_err(as_page)?;
    let there = look(&visitor, &name).await.map_err(as_page)?;
    let status = if there.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let json = there.as_ref().map(policy_of).transpose().map_err(as_page)?;
    let fields = form::shown(&specs(), &json.unwrap_or_default());
    Ok(show(status, &page(&visitor, name, there, fields, &uri)))
}

/// The queue; `None` for one that does not exist and that the visitor may create.
async fn look(visitor: &Visitor, name: &QueueName) -> Result<Option<QueueView>, Problem> {
    match visitor.desk.queue_get(name.clone()).await {
        Ok(queue) => Ok(Some(queue)),
        Err(problem) if problem.status == 404 && visitor.may(Permission::Operate) => Ok(None),
        Err(problem) => Err(problem),
    }
}

fn policy_of(queue: &QueueView) -> Result<Value, Problem> {
    serde_json::to_value(&queue.policy)
        .map_err(|error| internal::problem(Origin::Request, Some(&error), "the policy cannot be shown"))
}

fn page(visitor: &Visitor, name: QueueName, there: Option<QueueView>, fields: Vec<Field>, uri: &Uri) -> QueuePage {
    let now = visitor.desk.now();
    let seen = form::seen_value(there.as_ref().and_then(|queue| queue.updated_at));
    let there = there.map(|queue| ExistingQueue {
        paused: queue.paused,
        counts: ShownCounts::of(&queue.counts),
        updated: queue.updated_at.map(|moment| when(moment, now)),
        flow: flow(&visitor.desk.node_figures(), &name, uri),
    });
    let frame = Frame::new(format!("Queue {name}"), visitor);
    QueuePage { frame, name, there, fields, seen, wrong: None, may_act: visitor.may(Permission::Operate) }
}

/// The earlier view's figures are in the URL, because no node stores them.
fn flow(figures: &NodeFigures, name: &QueueName, uri: &Uri) -> Flow {
    let finished = figures.finished_of(name).unwrap_or(0);
    let number = |field: &str| parameter(uri, field).and_then(|text| text.parse::<u64>().ok());
    let incarnation = figures.node.incarnation.to_string();
    let same_node = parameter(uri, "node").is_some_and(|node| node == incarnation);
    let before = number("up_us").zip(number("finished")).filter(|_| same_node);
    let since = before.and_then(|(up_us, before)| {
        let passed = figures.up.checked_sub(Duration::from_micros(up_us))?;
        let minutes = passed.as_secs_f64() / 60.0;
        let done = finished.checked_sub(before)?;
        (minutes > 0.0).then(|| format!("{:.1} a minute in the last {}", done as f64 / minutes, span(passed)))
    });
    let again = form_urlencoded::Serializer::new(String::new())
        .append_pair("node", &incarnation)
        .append_pair("up_us", &figures.up.as_micros().to_string())
        .append_pair("finished", &finished.to_string())
        .finish();
    Flow {
        node: figures.node.name.to_string(),
        up: span(figures.up),
        finished: count(i64::try_from(finished).unwrap_or(i64::MAX), false),
        since,
        again: format!("/console/queues/{name}?{again}"),
    }
}

pub(super) async fn act(Path(name): Path<String>, uri: Uri, posted: PostedForm) -> Result<Response, PageProblem> {
    let visitor = &posted.visitor;
    let as_page = |problem| PageProblem::at(visitor, problem);
    let name = queue_name(&name).map_err(as_page)?;
    let action = posted.field("action").unwrap_or_default();
    let done = match action {
        "set" => set(&name, &posted).await,
        "pause" | "resume" => visitor.desk.queue_pause(name.clone(), action == "pause").await.map(drop),
        "delete" => visitor.desk.queue_delete(name.clone()).await,
        _ => Err(Problem::invalid_field("action", "choose an action: set, pause, resume or delete")),
    };
    posted.record(name.as_str(), done.as_ref().map(|()| "done"));
    match done {
        Ok(()) if action == "delete" => Ok(Redirect::to("/console/queues").into_response()),
        Ok(()) => Ok(Redirect::to(&format!("/console/queues/{name}")).into_response()),
        Err(problem) if action == "set" && problem.status < 500 => {
            let there = look(visitor, &name).await.map_err(as_page)?;
            let mut fields = form::filled(&specs(), &posted);
            let wrong = form::blame(&mut fields, &problem);
            let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
            let page = page(visitor, name, there, fields, &uri);
            let seen = form::seen_again(&posted, &problem, page.seen);
            Ok(show(status, &QueuePage { wrong, seen, ..page }))
        }
        Err(problem) => Err(as_page(problem)),
    }
}

async fn set(name: &QueueName, posted: &PostedForm) -> Result<(), Problem> {
    let body = Value::Object(form::read(&specs(), posted)?);
    let request = QueueRequest::parse(&body.to_string())?;
    posted.visitor.desk.queue_put_seen(name.clone(), request, form::seen(posted)?).await.map(drop)
}

pub(super) async fn delete_page(visitor: Visitor, Path(name): Path<String>) -> Result<Response, PageProblem> {
    let name = queue_name(&name).map_err(|problem| PageProblem::at(&visitor, problem))?;
    Ok(show(StatusCode::OK, &DeletePage { frame: Frame::new(format!("Delete {name}"), &visitor), name }))
}

fn queue_name(name: &str) -> Result<QueueName, Problem> {
    check_name(name)?;
    Ok(QueueName::new(name))
}
