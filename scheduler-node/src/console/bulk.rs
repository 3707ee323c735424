//! One action on many tasks: those selected on a page, or all that its filter matches. The first answer to the form
//! is the number of tasks; nothing is done before the person has confirmed it. When one request is not enough, the
//! person continues with the next.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use askama::Template;
use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use common::{
    ids::TaskId,
    task::{
        bulk::{BulkAction, BulkCandidate, SkipReason, Target},
        state::CancelOutcome,
    },
    time::UnixMicros,
    wire::{
        BulkRequest, Problem,
        bulk::{Action, STEP},
    },
};
use serde_json::{Value, json};

use super::{
    extract::PostedForm,
    format::count,
    frame::{Frame, PageProblem, show},
    task_query::{PAGE, TaskQuery, label, utc},
};
use crate::{
    desk::{ANSWER_WITHIN, Desk, reason_left},
    http::AuditDetails,
};

/// Minutes to milliseconds.
const MINUTE_MS: i64 = 60_000;

#[derive(Template)]
#[template(path = "bulk.html")]
struct BulkPage {
    frame: Frame,
    stage: Stage,
    action: Action,
    /// The tasks that it applies to, in words.
    on: Vec<String>,
    /// The hidden fields of the next form.
    hidden: Vec<(String, String)>,
    outcome: ShownOutcome,
    /// A shift is the only action that tasks notice when it is done twice. A reload of the answer sends its form again.
    is_shift: bool,
    /// The most tasks that another request may shift a second time.
    may_shift_twice: Option<usize>,
    back: String,
}

/// The step that the page is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A move needs a due time.
    Where,
    /// Nothing is done yet.
    Confirm,
    /// Tasks may be left.
    GoOn,
    Done,
}

/// The counts as the page shows them.
#[derive(Default)]
struct ShownOutcome {
    matched: String,
    done: String,
    no_further_attempts: u64,
    left: Vec<(String, u64)>,
    interrupted: Option<String>,
}

/// The action and its tasks, the same in every step.
struct BulkForm {
    action: Action,
    target: Option<Target>,
    /// `None`: all tasks that the filter matches.
    selected: Option<Vec<TaskId>>,
    task_query: TaskQuery,
}

/// Counts of the tasks examined so far, by outcome.
#[derive(Default)]
struct BulkCounts {
    matched: u64,
    done: u64,
    no_further_attempts: u64,
    left: BTreeMap<SkipReason, u64>,
    /// Selected tasks that are not there, or not for this visitor.
    missing: u64,
    /// The place from which the next request goes on through all that match.
    cursor: Option<String>,
    /// The selected tasks that the next request goes on with.
    unreached: Vec<TaskId>,
    interrupted: Option<Problem>,
}

impl BulkCounts {
    fn leave(&mut self, why: SkipReason) {
        *self.left.entry(why).or_default() += 1;
    }

    /// Whether another request goes on with the rest.
    fn goes_on(&self) -> bool {
        self.cursor.is_some() || !self.unreached.is_empty()
    }
}

pub(super) async fn bulk(posted: PostedForm) -> Response {
    match answer(&posted).await {
        Ok(page) => show(StatusCode::OK, &page),
        Err(problem) => {
            posted.record("tasks", Err(&problem));
            PageProblem::at(&posted.visitor, problem).into_response()
        }
    }
}

async fn answer(posted: &PostedForm) -> Result<BulkPage, Problem> {
    let desk = &posted.visitor.desk;
    let form = BulkForm::read(posted, desk.now())?;
    let Some(act) = form.act() else {
        return Ok(page(posted, &form, Stage::Where, &BulkCounts::default()));
    };
    let confirmed = posted.field("confirmed") == Some("yes");
    let counts = match &form.selected {
        Some(ids) => apply_to_selected(desk, act, ids, confirmed).await?,
        None => apply_to_matching(desk, &form, posted.field("at"), confirmed).await?,
    };
    if !confirmed {
        return Ok(page(posted, &form, Stage::Confirm, &counts));
    }
    let AuditDetails { target, detail } =
        AuditDetails::of_bulk(counts.matched, counts.done, &form.as_request(&counts.unreached).to_string());
    posted.record(&target, Ok(detail.as_deref().unwrap_or("done")));
    let stage = if counts.goes_on() { Stage::GoOn } else { Stage::Done };
    Ok(page(posted, &form, stage, &counts))
}

impl BulkForm {
    fn read(posted: &PostedForm, now: UnixMicros) -> Result<Self, Problem> {
        let action = match posted.field("action") {
            Some("cancel") => Action::Cancel,
            Some("run") => Action::Run,
            Some("retry") => Action::Retry,
            Some("move") => Action::Move,
            _ => return Err(Problem::invalid_field("action", "choose an action: cancel, run, retry or move")),
        };
        let selected = match posted.field("scope") {
            Some("all") => None,
            _ => Some(ids(posted)?),
        };
        let task_query = TaskQuery::of_pairs(posted.fields().iter().map(|(name, value)| (name, value)));
        let target = target(posted.field("to"), posted.field("by_min"), now)?.filter(|_| action == Action::Move);
        Ok(Self { action, target, selected, task_query })
    }

    /// `None`: a move that does not say where to.
    fn act(&self) -> Option<BulkAction> {
        Some(match self.action {
            Action::Cancel => BulkAction::Cancel,
            Action::Run => BulkAction::Run,
            Action::Retry => BulkAction::Retry,
            Action::Move => BulkAction::Move(self.target?),
        })
    }

    /// The form as the API's request, for the audit log. Selected ids stand in place of the filter, with blanks between
    /// them: so those of a full page fit into a note.
    fn as_request(&self, unreached: &[TaskId]) -> Value {
        let mut request = json!({ "action": self.action });
        match self.target {
            Some(Target::At(moment)) => request["due_at"] = json!(moment),
            Some(Target::By { shift_ms }) => request["shift_ms"] = json!(shift_ms),
            None => {}
        }
        let field = |(name, value): &(&'static str, String)| {
            let value = if name.starts_with("due_") { utc(value) } else { value.clone() };
            ((*name).to_owned(), Value::String(value))
        };
        match &self.selected {
            Some(ids) => {
                let reached = &ids[..ids.len() - unreached.len()];
                request["ids"] = reached.iter().map(TaskId::to_string).collect::<Vec<_>>().join(" ").into();
            }
            None if self.task_query.fields().is_empty() => request["all"] = true.into(),
            None => request["filter"] = Value::Object(self.task_query.fields().iter().map(field).collect()),
        }
        request
    }

    fn on(&self) -> Vec<String> {
        if let Some(ids) = &self.selected {
            return vec![format!("{} selected", ids.len())];
        }
        let fields = self.task_query.fields().iter();
        let words: Vec<String> = fields.map(|(name, value)| format!("{}: {value}", label(name))).collect();
        if words.is_empty() { vec!["all tasks".to_owned()] } else { words }
    }
}

fn ids(posted: &PostedForm) -> Result<Vec<TaskId>, Problem> {
    let ids: Result<Vec<TaskId>, _> = posted.values("id").map(str::parse).collect();
    let ids = ids.map_err(|_| Problem::invalid_field("id", "this is not the id of a task"))?;
    if ids.is_empty() {
        return Err(Problem::invalid_field("id", "no tasks are selected: select some, or choose all that match"));
    }
    if ids.len() > PAGE as usize {
        return Err(Problem::invalid_field(
            "id",
            format!("at most {PAGE} tasks can be selected; choose all that match"),
        ));
    }
    Ok(ids)
}

/// The target of a move: a moment in UTC, or a shift by this many minutes.
pub(super) fn target(to: Option<&str>, by_min: Option<&str>, now: UnixMicros) -> Result<Option<Target>, Problem> {
    match (to, by_min) {
        (None, None) => Ok(None),
        (Some(to), None) => {
            let read = serde_json::from_value::<UnixMicros>(Value::String(utc(to)));
            let moment =
                read.map_err(|_| Problem::invalid_field("to", "write the time as 2030-01-31 08:00, in UTC"))?;
            Ok(Some(Target::At(moment.max(now))))
        }
        (None, Some(by_min)) => {
            let minutes: Option<i64> = by_min.parse().ok().filter(|minutes| *minutes != 0);
            let shift_ms = minutes.and_then(|minutes| minutes.checked_mul(MINUTE_MS));
            let wrong =
                || Problem::invalid_field("by_min", "write a whole number of minutes, with a minus to move back");
            Ok(Some(Target::By { shift_ms: shift_ms.ok_or_else(wrong)? }))
        }
        (Some(_), Some(_)) => {
            Err(Problem::invalid_field("by_min", "give either a time or a number of minutes, not both"))
        }
    }
}

/// Applies the action to all tasks that the filter matches, as far as one request gets.
async fn apply_to_matching(
    desk: &Desk,
    form: &BulkForm,
    at: Option<&str>,
    confirmed: bool,
) -> Result<BulkCounts, Problem> {
    let filter = form.task_query.task_filter()?;
    let (due_at, shift_ms) = match form.target {
        Some(Target::At(moment)) => (Some(moment), None),
        Some(Target::By { shift_ms }) => (None, Some(shift_ms)),
        None => (None, None),
    };
    let answer = desk
        .bulk(BulkRequest {
            action: form.action,
            all: filter.is_empty(),
            filter,
            dry_run: !confirmed,
            limit: None,
            cursor: at.filter(|_| confirmed).map(str::to_owned),
            due_at,
            delay_ms: None,
            shift_ms,
        })
        .await?;
    Ok(BulkCounts {
        matched: answer.matched,
        done: answer.done,
        no_further_attempts: answer.no_further_attempts,
        left: answer.refused,
        cursor: answer.next_cursor.map(|cursor| cursor.to_string()),
        interrupted: answer.interrupted,
        ..BulkCounts::default()
    })
}

/// Applies the action to the selected tasks, one by one, as far as one request gets. Tasks that another transaction
/// holds are left out. Another problem of a store ends it with what is done so far, because a repetition of the whole
/// would shift some tasks twice.
async fn apply_to_selected(
    desk: &Desk,
    act: BulkAction,
    ids: &[TaskId],
    confirmed: bool,
) -> Result<BulkCounts, Problem> {
    let started = Instant::now();
    let mut counts = BulkCounts { matched: ids.len() as u64, ..BulkCounts::default() };
    // Known once a task was waited for in vain.
    let mut held = BTreeSet::new();
    for (nth, id) in ids.iter().enumerate() {
        // Each request tries at least one, so that the next one has fewer left.
        if nth > 0 && started.elapsed() > ANSWER_WITHIN {
            counts.matched = nth as u64;
            counts.unreached = ids[nth..].to_vec();
            break;
        }
        if held.contains(id) {
            counts.leave(SkipReason::Held);
            continue;
        }
        let done = if confirmed { desk.act_on(act, *id).await } else { could_apply(desk, act, *id).await };
        match done {
            Ok(outcome) => {
                counts.done += 1;
                counts.no_further_attempts += u64::from(outcome == Some(CancelOutcome::NoFurtherAttempts));
            }
            Err(problem) if problem.status >= 500 => {
                held = desk.held(&problem, &ids[nth..]).await;
                if held.contains(id) {
                    counts.leave(SkipReason::Held);
                    continue;
                }
                if counts.done == 0 {
                    return Err(problem);
                }
                counts.left.insert(SkipReason::Unavailable, (ids.len() - nth) as u64);
                counts.interrupted = Some(problem);
                break;
            }
            Err(problem) if problem.status == 404 => counts.missing += 1,
            Err(problem) => counts.leave(reason_left(&problem)),
        }
    }
    Ok(counts)
}

/// Whether the action could be applied to the task in its current state.
async fn could_apply(desk: &Desk, act: BulkAction, id: TaskId) -> Result<Option<CancelOutcome>, Problem> {
    let task = desk.get(id).await?;
    let (id, state, due_at, expires_at) = (task.id, task.state, task.due_at, task.expires_at);
    match act.check(&BulkCandidate { id, state, due_at, expires_at, key_taken: false }, desk.now()) {
        Ok(()) => Ok(None),
        Err(SkipReason::WouldExpire) => Err(Problem::unprocessable("it would expire before it is due")),
        Err(_) => Err(Problem::in_flight(task.state)),
    }
}

fn page(posted: &PostedForm, form: &BulkForm, stage: Stage, counts: &BulkCounts) -> BulkPage {
    let number = |number: u64, at_least| count(i64::try_from(number).unwrap_or(i64::MAX), at_least);
    // A dry run that stopped early has counted only a part.
    let more = counts.goes_on() && stage == Stage::Confirm;
    let fate = if stage == Stage::Confirm { "they stay as they are" } else { "they stayed as they were" };
    let left = |(why, tasks): (&SkipReason, &u64)| {
        let why = match why {
            SkipReason::InFlight => format!("are in flight, or have finished: {fate}"),
            SkipReason::WouldExpire => format!("would expire before they are due: {fate}"),
            SkipReason::KeyTaken => format!("have a key that another task now has: {fate}"),
            SkipReason::PlacedAnew => format!("have a queue whose placement has changed since: {fate}"),
            SkipReason::QueueDeleted => format!("have a queue that was deleted, so create it first: {fate}"),
            SkipReason::Held => format!("are locked by another transaction: {fate}"),
            SkipReason::Unavailable => {
                "were not tried, because the database stopped answering; the first of them may have changed".to_owned()
            }
            SkipReason::Other => format!("cannot be changed for another reason: {fate}"),
        };
        (why, *tasks)
    };
    let missing = "are not there, or belong to a queue outside your rights".to_owned();
    let missing = (counts.missing > 0).then_some((missing, counts.missing));
    let outcome = ShownOutcome {
        matched: number(counts.matched, more),
        done: number(counts.done, more),
        no_further_attempts: counts.no_further_attempts,
        left: counts.left.iter().map(left).chain(missing).collect(),
        interrupted: counts.interrupted.as_ref().map(|problem| problem.detail.clone()),
    };
    // The next step asks for the same, and keeps the moment that a relative time stood for.
    let kept = posted.fields().iter().filter(|(name, _)| !["form_token", "at", "confirmed"].contains(&name.as_str()));
    let mut hidden: Vec<(String, String)> = kept.cloned().collect();
    if stage == Stage::GoOn {
        hidden.extend(counts.cursor.iter().map(|cursor| ("at".to_owned(), cursor.clone())));
        hidden.retain(|(name, _)| name != "id");
        hidden.extend(counts.unreached.iter().map(|id| ("id".to_owned(), id.to_string())));
    }
    let is_shift = matches!(form.target, Some(Target::By { .. }));
    let may_shift_twice = (is_shift && stage == Stage::GoOn && counts.interrupted.is_some()).then_some(STEP);
    let back = form.task_query.url();
    let title = format!("{} tasks", form.action);
    let frame = Frame::new(title, &posted.visitor);
    BulkPage { frame, stage, action: form.action, on: form.on(), hidden, outcome, is_shift, may_shift_twice, back }
}
