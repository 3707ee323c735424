//! The list of schedules: when each fires, in words, and its state.

use askama::Template;
use axum::{
    http::{StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use common::{
    access::Permission,
    ids::{QueueName, ScheduleName},
    schedule::{Overlap, When as Calendar, check_name},
    time::UnixMicros,
    wire::{NamePage, ScheduleView},
};

use super::{
    browser::parameter,
    format::{When, span, when},
    frame::{Frame, PageProblem, show},
    visitor::Visitor,
};

/// Schedules on one page.
const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "schedules.html")]
struct SchedulesPage {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<String>,
    may_act: bool,
}

struct Row {
    name: ScheduleName,
    queue: QueueName,
    rule: Rule,
    paused: bool,
    next: Option<When>,
    last: Option<When>,
}

/// The rule of a schedule, as written and in words.
pub(super) struct Rule {
    pub(super) written: String,
    pub(super) words: String,
    pub(super) overlap: &'static str,
}

impl Rule {
    pub(super) fn of(view: &ScheduleView) -> Self {
        let (written, words) = match &view.rules.when {
            Calendar::Every { every_ms } => {
                let every = std::time::Duration::from_millis(u64::try_from(*every_ms).unwrap_or(0));
                (format!("every {every_ms} ms"), format!("Every {}, counted from 1970.", span(every)))
            }
            Calendar::Cron { cron, time_zone } => {
                let words = view.rules.when.calendar().ok().and_then(|calendar| calendar.words());
                (format!("{cron} {time_zone}"), words.unwrap_or_default())
            }
        };
        let overlap = match view.rules.overlap {
            Overlap::Skip => "skip",
            Overlap::BufferOne => "buffer one",
            Overlap::Allow => "allow",
        };
        Self { written, words, overlap }
    }
}

/// `?open=` leads to the page of a schedule by its name, whether it exists or not.
pub(super) async fn list(visitor: Visitor, uri: Uri) -> Result<Response, PageProblem> {
    if let Some(open) = parameter(&uri, "open") {
        check_name(&open).map_err(|error| PageProblem::at(&visitor, error.into()))?;
        return Ok(Redirect::to(&format!("/console/schedules/{open}")).into_response());
    }
    let page = NamePage { limit: Some(PAGE), cursor: parameter(&uri, "cursor") };
    let listed = visitor.desk.schedule_list(page).await.map_err(|problem| PageProblem::at(&visitor, problem))?;
    let now = visitor.desk.now();
    let page = SchedulesPage {
        frame: Frame::new("Schedules", &visitor),
        rows: listed.schedules.iter().map(|view| row(view, now)).collect(),
        // A schedule's name needs no escaping in a URL.
        next: listed.next_cursor.map(|cursor| format!("/console/schedules?cursor={cursor}")),
        may_act: visitor.may(Permission::Operate),
    };
    Ok(show(StatusCode::OK, &page))
}

fn row(view: &ScheduleView, now: UnixMicros) -> Row {
    Row {
        name: view.name.clone(),
        queue: view.rules.queue.clone(),
        rule: Rule::of(view),
        paused: view.paused,
        next: view.next_fire_times.first().map(|at| when(*at, now)),
        last: view.last_fire_at.map(|at| when(at, now)),
    }
}
