//! The page of one task: its history, its content, and its actions.

use askama::Template;
use axum::{
    extract::{Path, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Redirect, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use common::{
    access::Permission,
    ids::TaskId,
    task::{bulk::BulkAction, state::CancelOutcome},
    time::UnixMicros,
    wire::{Problem, TaskView},
};

use super::{
    Console,
    bulk::target,
    extract::PostedForm,
    format::{When, short, when},
    frame::{Frame, PageProblem, show},
    json,
    visitor::Visitor,
};
use crate::{
    desk::Desk,
    http::{authority, is_encrypted, task_target},
};

#[derive(Template)]
#[template(path = "task.html")]
struct TaskPage {
    frame: Frame,
    id: String,
    state: &'static str,
    /// The action that was just done.
    said: Option<&'static str>,
    facts: Vec<(&'static str, String)>,
    timeline: Vec<Step>,
    depends_on: Vec<String>,
    headers: Vec<(String, String)>,
    payload: ShownContent,
    result: Option<ShownContent>,
    curl: String,
    cli: String,
    can: AllowedActions,
}

/// A past or future event of the task.
struct Step {
    at: Option<When>,
    what: String,
    note: String,
}

/// A payload or a result, cut to the part that is shown.
struct ShownContent {
    text: String,
    note: String,
}

/// Why this console shows no payload to any visitor.
const NOT_SHOWN: &str = "`console.show_payloads` is false";

/// The actions that this visitor may apply to the task.
#[derive(Default)]
struct AllowedActions {
    cancel: bool,
    change: bool,
    retry: bool,
    stop: bool,
}

#[derive(Template)]
#[template(path = "task_cancel.html")]
struct CancelPage {
    frame: Frame,
    id: String,
    queue: String,
    key: String,
    between_attempts: bool,
}

/// The messages that a page may show after a form. The URL only selects one of these.
const OUTCOMES: [(&str, &str); 6] = [
    ("cancelled", "Cancelled: nothing is delivered from here on."),
    ("no_further_attempts", "No further attempts; a copy of an earlier one may still be with the broker."),
    ("stopping", "Its consumer is asked to stop with its next heartbeat."),
    ("run", "Due now."),
    ("retry", "Scheduled again, with new attempts."),
    ("move", "Moved to another due time."),
];

pub(super) async fn task(
    State(console): State<Console>,
    visitor: Visitor,
    Path(id): Path<String>,
    parts: Parts,
) -> Result<Response, PageProblem> {
    let task = find(&visitor.desk, &id).await.map_err(|problem| PageProblem::at(&visitor, problem))?;
    let (now, show_payloads) = (visitor.desk.now(), console.show_payloads);
    if show_payloads && !task.data_hidden {
        visitor.record(&task.id.to_string(), Ok("shown"));
    }
    let said = form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes())
        .find(|(name, _)| name == "said")
        .and_then(|(_, said)| OUTCOMES.into_iter().find(|(word, _)| *word == said))
        .map(|(_, sentence)| sentence);
    let page = TaskPage {
        frame: Frame::new(format!("Task {}", short(task.id)), &visitor),
        id: task.id.to_string(),
        state: task.state.text(),
        said,
        facts: facts(&task),
        timeline: timeline(&task, now),
        depends_on: task.depends_on.iter().map(dependency).collect(),
        headers: task.headers.clone().into_iter().collect(),
        payload: match (task.data_hidden, show_payloads) {
            (true, _) => ShownContent::hidden("your role shows no payloads, headers, results or error texts"),
            (false, false) => ShownContent::hidden(NOT_SHOWN),
            (false, true) => payload(&task),
        },
        result: task.result.as_ref().map(|result| {
            if show_payloads { ShownContent::json(result.get()) } else { ShownContent::hidden(NOT_SHOWN) }
        }),
        curl: curl(&task, &parts, visitor.signed_in),
        cli: format!("duetime get {}", task.id),
        can: AllowedActions::of(&task, &visitor),
    };
    Ok(show(StatusCode::OK, &page))
}

async fn find(desk: &Desk, id: &str) -> Result<TaskView, Problem> {
    desk.get(desk.id(id)?).await
}

impl AllowedActions {
    fn of(task: &TaskView, visitor: &Visitor) -> Self {
        if !visitor.may(Permission::Change) {
            return Self::default();
        }
        Self {
            cancel: task.state.may_be_cancelled(),
            change: task.state.may_be_changed(),
            retry: task.state == common::task::TaskState::Dead,
            stop: task.state.is_in_flight() && !task.stopping,
        }
    }

    fn anything(&self) -> bool {
        self.cancel || self.change || self.retry || self.stop
    }
}

fn facts(task: &TaskView) -> Vec<(&'static str, String)> {
    let fact = |name, value: Option<String>| value.map(|value| (name, value));
    [
        fact("Queue", Some(task.queue.to_string())),
        fact("Key", task.key.clone()),
        fact("Version", task.version.map(|version| version.to_string())),
        fact("Partition key", task.partition_key.clone()),
        fact("Priority", Some(task.priority.to_string())),
        fact("Attempts", Some(format!("{} of {}", task.attempt, task.max_attempts))),
        fact("Shard", Some(task.shard.to_string())),
        fact("Progress", task.progress.map(|progress| format!("{progress} %"))),
        fact("Worker", task.worker.clone()),
        fact("Status code", task.status_code.map(|code| code.to_string())),
        fact("Status", task.status_msg.clone()),
        fact("Expires", task.expires_at.map(|at| format!("{} UTC", when(at, at).plain))),
        fact("Stopping", task.stopping.then(|| "its consumer is asked to stop".to_owned())),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn timeline(task: &TaskView, now: UnixMicros) -> Vec<Step> {
    let step = |at: Option<UnixMicros>, what: String, note: &str| Step {
        at: at.map(|at| when(at, now)),
        what,
        note: note.to_owned(),
    };
    let mut steps = vec![step(Some(task.created_at), "submitted".to_owned(), "")];
    for attempt in &task.attempts {
        let number = attempt.attempt;
        if attempt.claimed_at.is_some() {
            steps.push(step(attempt.claimed_at, format!("attempt {number} claimed"), ""));
        }
        let reason = attempt.reason.as_deref().unwrap_or("failed");
        let error = attempt.error.as_deref().unwrap_or_default();
        steps.push(step(attempt.ended_at, format!("attempt {number} ended: {reason}"), error));
    }
    let due = if task.due_at > now { "due" } else { "was due" };
    steps.push(step(Some(task.due_at), due.to_owned(), ""));
    if task.delivered_at.is_some() {
        steps.push(step(task.delivered_at, format!("attempt {} delivered", task.attempt), ""));
    }
    if task.finished_at.is_some() {
        let note = task.status_msg.as_deref().unwrap_or_default();
        steps.push(step(task.finished_at, task.state.to_string(), note));
    }
    steps
}

fn dependency(on: &common::wire::DependencyView) -> String {
    format!("{} of {}: {}", on.key, on.queue, on.state_text())
}

impl ShownContent {
    fn hidden(why: &str) -> Self {
        Self { text: String::new(), note: format!("Hidden here: {why}.") }
    }

    fn json(text: &str) -> Self {
        let bytes = text.len();
        let (text, whole) = json::shown(text);
        Self { text: json::pretty(text), note: format!("{bytes} bytes{}", cut(whole)) }
    }
}

fn payload(task: &TaskView) -> ShownContent {
    if let Some(payload) = &task.payload {
        return ShownContent::json(payload.get());
    }
    let encoded = task.payload_base64.as_deref().unwrap_or_default();
    let decoded = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let (text, form) = decoded.as_deref().map_or((encoded, "base64"), |text| (text, "text"));
    let (text, whole) = json::shown(text);
    ShownContent { text: text.to_owned(), note: format!("{}, as {form}{}", task.content_type, cut(whole)) }
}

fn cut(whole: bool) -> String {
    if whole { String::new() } else { format!("; only the first {} KiB are shown", json::SHOWN_BYTES >> 10) }
}

fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte)
}

fn curl(task: &TaskView, parts: &Parts, with_token: bool) -> String {
    let host = authority(&parts.headers, &parts.uri).filter(|host| !host.is_empty() && host.bytes().all(is_of_host));
    let scheme = if is_encrypted(parts) { "https" } else { "http" };
    let token = if with_token { "-H \"Authorization: Bearer $DUETIME_TOKEN\" " } else { "" };
    format!("curl -fsS {token}{scheme}://{}/v1/tasks/{}", host.unwrap_or("127.0.0.1:8080"), task.id)
}

/// Asks for confirmation before a task is cancelled, because a cancel cannot be undone.
pub(super) async fn cancel_page(visitor: Visitor, Path(id): Path<String>) -> Result<Response, PageProblem> {
    let as_page = |problem| PageProblem::at(&visitor, problem);
    let task = find(&visitor.desk, &id).await.map_err(as_page)?;
    if !AllowedActions::of(&task, &visitor).cancel {
        return Err(as_page(Problem::in_flight(task.state)));
    }
    let page = CancelPage {
        frame: Frame::new("Cancel a task", &visitor),
        id: task.id.to_string(),
        queue: task.queue.to_string(),
        key: task.key.clone().unwrap_or_default(),
        between_attempts: task.attempt.number() > 0,
    };
    Ok(show(StatusCode::OK, &page))
}

/// Applies one action to one task.
pub(super) async fn act(Path(id): Path<String>, posted: PostedForm) -> Response {
    let visitor = &posted.visitor;
    let done = match visitor.desk.id(&id) {
        Ok(id) => done(&visitor.desk, id, &posted).await.map(|said| (id, said)),
        Err(problem) => Err(problem),
    };
    posted.record(&task_target(&id), done.as_ref().map(|(_, said)| *said));
    match done {
        Ok((id, said)) => Redirect::to(&format!("/console/tasks/{id}?said={said}")).into_response(),
        Err(problem) => PageProblem::at(visitor, problem).into_response(),
    }
}

/// Applies the action and returns the word for its outcome.
async fn done(desk: &Desk, id: TaskId, posted: &PostedForm) -> Result<&'static str, Problem> {
    let outcome = |outcome| match outcome {
        CancelOutcome::Cancelled => "cancelled",
        CancelOutcome::NoFurtherAttempts => "no_further_attempts",
        CancelOutcome::Stopping => "stopping",
    };
    match posted.field("action") {
        Some("cancel") => Ok(outcome(desk.cancel(id).await?.outcome)),
        Some("stop") => Ok(outcome(desk.stop(id).await?.outcome)),
        Some("run") => desk.run(id).await.map(|_| "run"),
        Some("retry") => desk.retry(id).await.map(|_| "retry"),
        Some("move") => {
            let Some(target) = target(posted.field("to"), posted.field("by_min"), desk.now())? else {
                return Err(Problem::invalid_field("to", "give the new due time"));
            };
            desk.act_on(BulkAction::Move(target), id).await.map(|_| "move")
        }
        _ => Err(Problem::invalid_field("action", "choose an action: cancel, stop, run, retry or move")),
    }
}
