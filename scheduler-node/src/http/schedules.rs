//! Schedules: set, show, pause, run by hand.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use common::{
    ids::ScheduleName,
    schedule,
    wire::{Problem, ScheduleList, ScheduleRequest, ScheduleView},
};

use super::{
    Api, PathPart, Scoped, audit,
    extract::{BodyAlone, NoInput},
    query,
    refusal::Refusal,
};

pub(super) async fn list(scoped: Scoped, uri: Uri) -> Result<Json<ScheduleList>, Refusal> {
    Ok(Json(scoped.desk.schedule_list(query::name_page(&uri, schedule::check_name)?).await?))
}

pub(super) async fn show(scoped: Scoped, PathPart(name): PathPart, uri: Uri) -> Result<Response, Refusal> {
    Ok(audit::schedule(scoped.desk.schedule_get(schedule_name(&name)?, query::next(&uri)?).await?))
}

pub(super) async fn put(
    scoped: Scoped,
    State(api): State<Api>,
    PathPart(name): PathPart,
    BodyAlone(body): BodyAlone,
) -> Result<Response, Refusal> {
    let text = body.text(api.limits.single_bytes).await?;
    let name = schedule_name(&name)?;
    let put = scoped.desk.schedule_put(name, ScheduleRequest::parse(text.as_str())?).await?;
    let status = if put.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(put.view)).into_response())
}

pub(super) async fn delete(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<StatusCode, Refusal> {
    scoped.desk.schedule_delete(schedule_name(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<Json<ScheduleView>, Refusal> {
    Ok(Json(scoped.desk.schedule_pause(schedule_name(&name)?, true).await?))
}

pub(super) async fn resume(
    scoped: Scoped,
    PathPart(name): PathPart,
    _: NoInput,
) -> Result<Json<ScheduleView>, Refusal> {
    Ok(Json(scoped.desk.schedule_pause(schedule_name(&name)?, false).await?))
}

pub(super) async fn run(scoped: Scoped, PathPart(name): PathPart, _: NoInput) -> Result<Response, Refusal> {
    let task = scoped.desk.schedule_run(schedule_name(&name)?).await?;
    let place = format!("/v1/tasks/{}", task.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], Json(task)).into_response())
}

fn schedule_name(name: &str) -> Result<ScheduleName, Problem> {
    schedule::check_name(name)?;
    Ok(ScheduleName::new(name))
}
