//! The page of one schedule: its fire times, its tasks, and its actions.

use askama::Template;
use axum::{
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Redirect, Response},
};
use common::{
    access::Permission,
    ids::{QueueName, ScheduleName},
    schedule::{check_name, key_of},
    time::UnixMicros,
    wire::{Problem, ScheduleRequest, ScheduleView},
};
use serde_json::{Value, value::RawValue};

use super::{
    Console,
    extract::PostedForm,
    form::{self, Field, Kind, Spec, spec},
    format::{When, when},
    frame::{Frame, PageProblem, show},
    schedules::Rule,
    visitor::Visitor,
};
use crate::{
    desk::Desk,
    internal::{self, Origin},
};

/// Past and future fire times shown, of each.
const SHOWN: usize = 5;

const CALENDAR: [Spec; 6] = [
    spec("queue", Kind::Text, "", "queue of its tasks; required"),
    spec("cron", Kind::Text, "", "minute hour day month weekday, optionally with seconds first; or @daily"),
    spec("time_zone", Kind::Text, "UTC", "time zone of cron, like Europe/Berlin"),
    spec("every_ms", Kind::Whole, "", "interval instead of cron: 1000 or more, counted from 1970"),
    spec(
        "overlap",
        Kind::OneOf(&["skip", "buffer_one", "allow"]),
        "skip",
        "what to do at a fire time while the last task is unfinished",
    ),
    spec("catch_up_ms", Kind::Whole, "60000", "fire times missed by no more than this are made up"),
];

const PAYLOAD: [Spec; 3] = [
    spec("payload", Kind::Json, "null", "payload of its tasks: JSON, up to 64 KiB"),
    spec("payload_base64", Kind::Text, "", "instead of payload: any bytes"),
    spec("content_type", Kind::Text, "application/octet-stream", "with payload_base64"),
];

const TASKS: [Spec; 6] = [
    spec("headers", Kind::Object, "none", "headers of its tasks: a JSON object of strings"),
    spec("priority", Kind::Whole, "3", "1 (highest) to 5"),
    spec("partition_key", Kind::ExactText, "", "colocates and orders its tasks"),
    spec("max_attempts", Kind::Whole, "the queue's", "most attempts; after them a task is dead"),
    spec("timeout_ms", Kind::Whole, "the queue's", "how long a delivered attempt may go without a report"),
    spec("expires_after_ms", Kind::Whole, "never", "counted from the fire time: a task not started by then expires"),
];

/// The fields of the form. A visitor who may not see the payload cannot set it either: a form without it keeps the
/// existing payload.
pub(super) fn specs(with_payload: bool) -> Vec<Spec> {
    let payload = PAYLOAD.into_iter().filter(|_| with_payload);
    CALENDAR.into_iter().chain(payload).chain(TASKS).chain(form::retry("the queue's")).collect()
}

#[derive(Template)]
#[template(path = "schedule.html")]
struct SchedulePage {
    frame: Frame,
    name: ScheduleName,
    /// `None`: the schedule does not exist yet.
    there: Option<ExistingSchedule>,
    fields: Vec<Field>,
    payload_hidden: bool,
    /// The stored state that the form changes.
    seen: String,
    /// A mistake that concerns no single field.
    wrong: Option<String>,
    may_act: bool,
}

struct ExistingSchedule {
    queue: QueueName,
    rule: Rule,
    paused: bool,
    buffered: Option<When>,
    next: Vec<FireTime>,
    last: Vec<FireTime>,
    updated: When,
}

/// A fire time, and the task it made if that is still kept.
struct FireTime {
    at: When,
    /// In the schedule's time zone.
    local: String,
    task: Option<(String, &'static str)>,
}

#[derive(Template)]
#[template(path = "schedule_delete.html")]
struct DeletePage {
    frame: Frame,
    name: ScheduleName,
}

pub(super) async fn schedule(
    State(console): State<Console>,
    visitor: Visitor,
    Path(name): Path<String>,
) -> Result<Response, PageProblem> {
    let as_page = |problem| PageProblem::at(&visitor, problem);
    let name = schedule_name(&name).map_err(as_page)?;
    let there = look(&visitor, &name).await.map_err(as_page)?;
    if let Some(view) = there.as_ref().filter(|view| console.show_payloads && !view.data_hidden) {
        visitor.record(view.name.as_str(), Ok("shown"));
    }
    let status = if there.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    let json = there.as_ref().map(json_of).transpose().map_err(as_page)?;
    let fields = form::shown(&specs(console.show_payloads || there.is_none()), &json.unwrap_or_default());
    Ok(show(status, &page(&console, &visitor, name, there, fields).await))
}

/// The schedule; `None` for one that does not exist and that the visitor may create.
async fn look(visitor: &Visitor, name: &ScheduleName) -> Result<Option<ScheduleView>, Problem> {
    match visitor.desk.schedule_get(name.clone(), SHOWN).await {
        Ok(view) => Ok(Some(view)),
        Err(problem) if problem.status == 404 && visitor.may(Permission::Operate) => Ok(None),
        Err(problem) => Err(problem),
    }
}

/// The JSON that fills the form: the payload as its own text, and its type only if the form can set it.
fn json_of(view: &ScheduleView) -> Result<Value, Problem> {
    let unwritable =
        |error: serde_json::Error| internal::problem(Origin::Request, Some(&error), "the schedule cannot be shown");
    let mut json = serde_json::to_value(ScheduleView { payload: None, ..view.clone() }).map_err(unwritable)?;
    if let Some(payload) = &view.payload {
        json["payload"] = Value::from(payload.get());
        json["content_type"] = Value::Null;
    }
    Ok(json)
}

async fn page(
    console: &Console,
    visitor: &Visitor,
    name: ScheduleName,
    there: Option<ScheduleView>,
    fields: Vec<Field>,
) -> SchedulePage {
    let payload_hidden = there.as_ref().is_some_and(|view| view.data_hidden || !console.show_payloads);
    let seen = form::seen_value(there.as_ref().map(|view| view.updated_at));
    let there = match there {
        Some(view) => Some(shown(&visitor.desk, &view).await),
        None => None,
    };
    let frame = Frame::new(format!("Schedule {name}"), visitor);
    let may_act = visitor.may(Permission::Operate);
    SchedulePage { frame, name, there, fields, payload_hidden, seen, wrong: None, may_act }
}

async fn shown(desk: &Desk, view: &ScheduleView) -> ExistingSchedule {
    let now = desk.now();
    let calendar = view.rules.when.calendar().ok();
    let local = |at| calendar.as_ref().map(|calendar| calendar.on_the_clock(at)).unwrap_or_default();
    let fire_time = |at: UnixMicros, task| FireTime { at: when(at, now), local: local(at), task };
    let gone = calendar.as_ref().map(|calendar| calendar.last_times(now, SHOWN)).unwrap_or_default();
    let mut last = Vec::new();
    for at in gone.into_iter().filter(|at| *at >= view.created_at) {
        last.push(fire_time(at, task_of(desk, view, at).await));
    }
    ExistingSchedule {
        queue: view.rules.queue.clone(),
        rule: Rule::of(view),
        paused: view.paused,
        buffered: view.buffered_at.map(|at| when(at, now)),
        next: view.next_fire_times.iter().map(|at| fire_time(*at, None)).collect(),
        last,
        updated: when(view.updated_at, now),
    }
}

/// The task of a fire time, found by its key.
async fn task_of(desk: &Desk, view: &ScheduleView, at: UnixMicros) -> Option<(String, &'static str)> {
    let rules = &view.rules;
    let key = key_of(&view.name, at);
    let id = desk.find(rules.queue.as_str(), rules.partition_key.as_deref(), &key).await.ok()?;
    let task = desk.get(id).await.ok()?;
    Some((id.to_string(), task.state.text()))
}

pub(super) async fn act(
    State(console): State<Console>,
    Path(name): Path<String>,
    posted: PostedForm,
) -> Result<Response, PageProblem> {
    let visitor = &posted.visitor;
    let as_page = |problem| PageProblem::at(visitor, problem);
    let name = schedule_name(&name).map_err(as_page)?;
    let action = posted.field("action").unwrap_or_default();
    let here = format!("/console/schedules/{name}");
    let done = match action {
        "set" => set(&console, &name, &posted).await.map(|()| here),
        "pause" | "resume" => visitor.desk.schedule_pause(name.clone(), action == "pause").await.map(|_| here),
        "run" => visitor.desk.schedule_run(name.clone()).await.map(|task| format!("/console/tasks/{}", task.id)),
        "delete" => visitor.desk.schedule_delete(name.clone()).await.map(|()| "/console/schedules".to_owned()),
        _ => Err(Problem::invalid_field("action", "choose an action: set, pause, resume, run or delete")),
    };
    posted.record(name.as_str(), done.as_ref().map(|_| "done"));
    match done {
        Ok(next) => Ok(Redirect::to(&next).into_response()),
        Err(problem) if action == "set" && problem.status < 500 => {
            let there = look(visitor, &name).await.map_err(as_page)?;
            let mut fields = form::filled(&specs(console.show_payloads || there.is_none()), &posted);
            let wrong = form::blame(&mut fields, &problem);
            let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
            let page = page(&console, visitor, name, there, fields).await;
            let seen = form::seen_again(&posted, &problem, page.seen);
            Ok(show(status, &SchedulePage { wrong, seen, ..page }))
        }
        Err(problem) => Err(as_page(problem)),
    }
}

async fn set(console: &Console, name: &ScheduleName, posted: &PostedForm) -> Result<(), Problem> {
    let kept = if console.show_payloads { None } else { look(&posted.visitor, name).await? };
    let mut body = form::read(&specs(kept.is_none()), posted)?;
    let is_type_alone = body.contains_key("content_type") && !body.contains_key("payload_base64");
    if is_type_alone && posted.field("payload").is_none() {
        // The page shows an empty payload by its type alone.
        let stored = look(&posted.visitor, name).await?;
        if stored.is_some_and(|view| view.payload_base64.as_deref() == Some("")) {
            body.insert("payload_base64".to_owned(), Value::from(""));
        }
    }
    let mut request = ScheduleRequest::parse(&Value::Object(body).to_string())?;
    match kept {
        Some(view) => {
            request.content_type = view.payload_base64.as_ref().map(|_| view.rules.content_type);
            (request.payload, request.payload_base64) = (view.payload, view.payload_base64);
        }
        // The payload stays as written, so that no number in it loses a digit.
        None => request.payload = posted.field("payload").map(json).transpose()?,
    }
    posted.visitor.desk.schedule_put_seen(name.clone(), request, form::seen(posted)?).await.map(drop)
}

fn json(text: &str) -> Result<Box<RawValue>, Problem> {
    RawValue::from_string(text.trim().to_owned())
        .map_err(|error| Problem::invalid_field("payload", format!("`payload` must be JSON: {error}")))
}

pub(super) async fn delete_page(visitor: Visitor, Path(name): Path<String>) -> Result<Response, PageProblem> {
    let name = schedule_name(&name).map_err(|problem| PageProblem::at(&visitor, problem))?;
    Ok(show(StatusCode::OK, &DeletePage { frame: Frame::new(format!("Delete {name}"), &visitor), name }))
}

fn schedule_name(name: &str) -> Result<ScheduleName, Problem> {
    check_name(name)?;
    Ok(ScheduleName::new(name))
}
