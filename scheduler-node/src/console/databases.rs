//! The page of the databases: their shards, the moves between them, and the forms that ask for moves.

use askama::Template;
use axum::{
    http::{StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use common::{
    access::Permission,
    ids::DatabaseName,
    shard::{ShardSet, Standing},
    time::UnixMicros,
    wire::{
        Problem,
        shard::{DatabaseView, EndedMoveView, LoadView, MoveRequest, MoveView, RebalanceAnswer, RebalanceRequest},
    },
};

use super::{
    browser::parameter,
    extract::PostedForm,
    format::{When, span, when},
    frame::{Frame, PageProblem, show},
    visitor::Visitor,
};
use crate::http::AuditDetails;

/// The ended moves that the page shows; the API has more.
const ENDED_SHOWN: usize = 20;

#[derive(Template)]
#[template(path = "databases.html")]
struct DatabasesPage {
    frame: Frame,
    notes: Vec<String>,
    rows: Vec<DatabaseView>,
    moves: Vec<MoveRow>,
    ended: Vec<EndedRow>,
    /// The moves that a rebalance would make, if the visitor asked for them.
    plan: Option<RebalanceAnswer>,
    /// Whether the rows have estimates of their load.
    loaded: bool,
    /// Whether the visitor may move shards and drain databases.
    may_act: bool,
}

struct MoveRow {
    shards: ShardSet,
    from: DatabaseName,
    to: DatabaseName,
    step: &'static str,
    rows: i64,
    percent: String,
    left: String,
    node: String,
    problem: String,
    can_call_off: bool,
}

struct EndedRow {
    it: EndedMoveView,
    cut: String,
    at: When,
}

/// With `?load=yes` the load of each database is estimated; with `?plan=yes` a rebalance is planned.
pub(super) async fn databases(visitor: Visitor, uri: Uri) -> Result<Response, PageProblem> {
    let at = |problem| PageProblem::at(&visitor, problem);
    let asked = |name| parameter(&uri, name).as_deref() == Some("yes");
    let may_act = visitor.may(Permission::Operate) && visitor.desk.require_all_queues().is_ok();
    let loaded = asked("load");
    let list = visitor.desk.database_list(loaded).await.map_err(at)?;
    let moves = visitor.desk.move_list().await.map_err(at)?;
    let plan = if may_act && asked("plan") {
        let request = RebalanceRequest { dry_run: Some(true), ..RebalanceRequest::default() };
        Some(visitor.desk.shards_rebalance(request, &visitor.caller.name).await.map_err(at)?)
    } else {
        None
    };
    let now = visitor.desk.now();
    let page = DatabasesPage {
        frame: Frame::new("Databases", &visitor),
        notes: list.notes,
        rows: list.databases,
        moves: moves.lines().into_iter().map(|(shards, it)| move_row(shards, it)).collect(),
        ended: moves.ended.into_iter().take(ENDED_SHOWN).map(|it| ended_row(it, now)).collect(),
        plan,
        loaded,
        may_act,
    };
    Ok(show(StatusCode::OK, &page))
}

pub(super) async fn act(posted: PostedForm) -> Result<Response, PageProblem> {
    let (visitor, by) = (&posted.visitor, &posted.visitor.caller.name);
    let (desk, field) = (&visitor.desk, |name| posted.field(name).unwrap_or_default());
    let of_database = |view: DatabaseView| AuditDetails { target: view.name.to_string(), detail: None };
    let (target, done) = match field("action") {
        "move" => (field("shards"), shift(&posted).await),
        "call_off" => (field("shards"), call_off(&posted).await),
        "rebalance" => {
            let done = desk.shards_rebalance(RebalanceRequest::default(), by).await;
            ("all", done.map(|answer| AuditDetails::of_rebalance(&answer)))
        }
        "drain" => (field("database"), desk.database_drain(field("database"), by).await.map(of_database)),
        "undrain" => (field("database"), desk.database_undrain(field("database"), by).await.map(of_database)),
        "remove" => (field("database"), desk.database_remove(field("database"), by).await.map(of_database)),
        _ => {
            let detail = "choose an action: move, call_off, rebalance, drain, undrain or remove";
            ("", Err(Problem::invalid_field("action", detail)))
        }
    };
    match &done {
        Ok(AuditDetails { target, detail }) => posted.record(target, Ok(detail.as_deref().unwrap_or("done"))),
        Err(problem) => posted.record(target, Err(problem)),
    }
    done.map_err(|problem| PageProblem::at(visitor, problem))?;
    Ok(Redirect::to("/console/databases").into_response())
}

async fn shift(posted: &PostedForm) -> Result<AuditDetails, Problem> {
    let to = DatabaseName::new(posted.field("to").unwrap_or_default());
    let request = MoveRequest { shards: shards(posted)?, to };
    let answer = posted.visitor.desk.shards_move(request, &posted.visitor.caller.name).await?;
    Ok(AuditDetails::of_move(&answer))
}

async fn call_off(posted: &PostedForm) -> Result<AuditDetails, Problem> {
    let answer = posted.visitor.desk.shards_call_off(shards(posted)?, &posted.visitor.caller.name).await?;
    Ok(AuditDetails { target: answer.called_off.to_string(), detail: None })
}

fn shards(posted: &PostedForm) -> Result<ShardSet, Problem> {
    let text = posted.field("shards").unwrap_or_default().trim();
    text.parse().map_err(|error: common::shard::set::NotASet| Problem::invalid_field("shards", error.to_string()))
}

fn move_row(shards: ShardSet, it: &MoveView) -> MoveRow {
    let left = |left_ms: i64| span(std::time::Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)));
    MoveRow {
        shards,
        from: it.from.clone(),
        to: it.to.clone(),
        step: if it.called_off_at.is_some() { "called off" } else { it.step.text() },
        rows: it.rows_copied,
        percent: it.percent.map(|percent| format!("{percent} %")).unwrap_or_default(),
        left: it.left_ms.map(left).unwrap_or_default(),
        node: it.node.as_ref().map(ToString::to_string).unwrap_or_default(),
        problem: it.problem.clone().unwrap_or_default(),
        can_call_off: it.step.is_before_the_cut() && it.called_off_at.is_none(),
    }
}

fn ended_row(it: EndedMoveView, now: UnixMicros) -> EndedRow {
    EndedRow { cut: it.cut_ms.map(|cut_ms| format!("{cut_ms} ms")).unwrap_or_default(), at: when(it.ended_at, now), it }
}

fn rate(load: &LoadView) -> String {
    format!("{:.1}", load.finished_per_second)
}

fn percent(part: &f64) -> String {
    format!("{part:.0} %")
}
