//! The list of tasks: filtered, paged, selected.

use std::collections::BTreeSet;

use askama::Template;
use axum::{
    http::{StatusCode, Uri},
    response::Response,
};
use common::{
    access::Permission,
    ids::QueueName,
    task::TaskState,
    time::UnixMicros,
    wire::{ListAnswer, TaskView, queue::Counts},
};

use super::{
    format::{When, about, short, when},
    frame::{Frame, PageProblem, show},
    task_query::{Input, TaskQuery, label},
    visitor::Visitor,
};
use crate::desk::{Census, Desk};

#[derive(Template)]
#[template(path = "tasks.html")]
struct TasksPage {
    frame: Frame,
    tabs: Vec<Tab>,
    chips: Vec<Chip>,
    inputs: Vec<Input>,
    rows: Vec<Row>,
    previous: Option<String>,
    next: Option<String>,
    /// The filter, as hidden fields of the form for all matching tasks.
    hidden: Vec<(&'static str, String)>,
    /// The same in the encoding of a URL.
    filter: String,
    /// The queues that a visitor of some queues may name.
    queues: BTreeSet<String>,
    /// The list has no tasks, because the visitor has to name one of their queues.
    must_choose: bool,
    may_act: bool,
}

/// A state, and the number of its tasks if it is cheap to count.
struct Tab {
    name: &'static str,
    href: String,
    count: String,
    current: bool,
}

/// A part of the filter, and a link to the page without it.
struct Chip {
    text: String,
    without: String,
}

/// One task in the list.
pub(super) struct Row {
    id: String,
    short: String,
    queue: String,
    key: String,
    state: &'static str,
    due: When,
    attempts: String,
    priority: i16,
    error: String,
}

impl Row {
    fn of(task: &TaskView, now: UnixMicros) -> Self {
        Self {
            id: task.id.to_string(),
            short: short(task.id),
            queue: task.queue.to_string(),
            key: task.key.clone().unwrap_or_default(),
            state: task.state.text(),
            due: when(task.due_at, now),
            attempts: format!("{}/{}", task.attempt, task.max_attempts),
            priority: task.priority,
            error: last_error(task).unwrap_or_else(|| without_error(task)).to_owned(),
        }
    }
}

/// The words in the place of an error that the list leaves out.
fn without_error(task: &TaskView) -> &'static str {
    let is_long = task.left_out.iter().any(|field| field == "attempts" || field == "status_msg");
    if is_long { "too long for a list: see the task" } else { "" }
}

/// The error of the last failed attempt.
pub(super) fn last_error(task: &TaskView) -> Option<&str> {
    let of_attempt = || task.attempts.last().and_then(|attempt| attempt.error.as_deref());
    task.status_msg.as_deref().or_else(of_attempt)
}

pub(super) async fn list(visitor: Visitor, uri: Uri) -> Result<Response, PageProblem> {
    let query = visitor.completed(TaskQuery::of_uri(&uri));
    let as_page = |problem| PageProblem::at(&visitor, problem);
    let filter = query.list_filter().map_err(as_page)?;
    let must_choose = visitor.must_choose_queue(&query);
    let list = async {
        if must_choose {
            Ok(ListAnswer { tasks: Vec::new(), next_cursor: None })
        } else {
            visitor.desk.list(filter).await
        }
    };
    let (listed, counts) = tokio::join!(list, counts(&visitor.desk, &query));
    let listed = listed.map_err(as_page)?;
    let now = visitor.desk.now();
    let page = TasksPage {
        frame: Frame::new("Tasks", &visitor),
        tabs: tabs(&query, counts.as_ref()),
        chips: chips(&query),
        inputs: inputs(&visitor, &query),
        rows: listed.tasks.iter().map(|task| Row::of(task, now)).collect(),
        previous: query.previous().map(|page| page.url()),
        next: listed.next_cursor.map(|cursor| query.next(cursor.to_string()).url()),
        hidden: query.fields().to_vec(),
        filter: query.encoded(),
        queues: visitor.offered_queues(),
        must_choose,
        may_act: visitor.may(Permission::Change) && !must_choose,
    };
    Ok(show(StatusCode::OK, &page))
}

/// Counts of unfinished tasks by state, of all queues or of one; `None` when the page filters by more, or counting
/// fails.
async fn counts(desk: &Desk, query: &TaskQuery) -> Option<Census> {
    if query.fields().iter().any(|(name, _)| !["queue", "state"].contains(name)) {
        return None;
    }
    match query.get("queue") {
        Some(queue) => {
            let queue = desk.queue_get(QueueName::new(queue)).await.ok()?;
            Some(Census { counts: queue.counts, estimated: false })
        }
        None => desk.census().await.ok(),
    }
}

fn of_state(counts: &Counts, state: TaskState) -> Option<i64> {
    match state {
        TaskState::Waiting => Some(counts.waiting),
        TaskState::Scheduled => Some(counts.scheduled),
        TaskState::Ready => Some(counts.ready),
        TaskState::Dispatching => Some(counts.dispatching),
        TaskState::Delivered => Some(counts.delivered),
        TaskState::Running => Some(counts.running),
        _ => None,
    }
}

fn tabs(query: &TaskQuery, census: Option<&Census>) -> Vec<Tab> {
    let all = Tab {
        name: "all",
        href: query.with("state", None).url(),
        count: String::new(),
        current: query.get("state").is_none(),
    };
    let tab = |state: TaskState| Tab {
        name: state.text(),
        href: query.with("state", Some(state.text())).url(),
        count: census.and_then(|census| Some(about(of_state(&census.counts, state)?, census))).unwrap_or_default(),
        current: query.get("state") == Some(state.text()),
    };
    std::iter::once(all).chain(TaskState::ALL.map(tab)).collect()
}

/// The state is left out, because it has its tabs.
fn chips(query: &TaskQuery) -> Vec<Chip> {
    let others = query.fields().iter().filter(|(name, _)| *name != "state");
    others
        .map(|(name, value)| Chip { text: format!("{}: {value}", label(name)), without: query.with(name, None).url() })
        .collect()
}

/// The state is left out here too.
fn inputs(visitor: &Visitor, query: &TaskQuery) -> Vec<Input> {
    visitor.filters().filter(|(name, _)| *name != "state").map(|filter| Input::of(query, *filter)).collect()
}
