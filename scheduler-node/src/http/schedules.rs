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

use super::{Api, Asked, Named, audit, body::Sent, query, refusal::Refusal};

pub(super) async fn list(asked: Asked, uri: Uri) -> Result<Json<ScheduleList>, Refusal> {
    Ok(Json(asked.desk.schedule_list(query::schedule_page(&uri)?).await?))
}

pub(super) async fn show(asked: Asked, Named(name): Named, uri: Uri) -> Result<Response, Refusal> {
    Ok(audit::schedule(asked.desk.schedule_get(named(&name)?, query::next(&uri)?).await?))
}

pub(super) async fn put(
    asked: Asked,
    State(api): State<Api>,
    Named(name): Named,
    sent: Sent,
) -> Result<Response, Refusal> {
    let name = named(&name)?;
    let text = sent.text(api.limits.single_bytes).await?;
    let put = asked.desk.schedule_put(name, ScheduleRequest::parse(text.as_str())?).await?;
    let status = if put.created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(put.view)).into_response())
}

pub(super) async fn delete(asked: Asked, Named(name): Named) -> Result<StatusCode, Refusal> {
    asked.desk.schedule_delete(named(&name)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(asked: Asked, Named(name): Named) -> Result<Json<ScheduleView>, Refusal> {
    Ok(Json(asked.desk.schedule_pause(named(&name)?, true).await?))
}

pub(super) async fn resume(asked: Asked, Named(name): Named) -> Result<Json<ScheduleView>, Refusal> {
    Ok(Json(asked.desk.schedule_pause(named(&name)?, false).await?))
}

pub(super) async fn run(asked: Asked, Named(name): Named) -> Result<Response, Refusal> {
    let task = asked.desk.schedule_run(named(&name)?).await?;
    let place = format!("/v1/tasks/{}", task.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, place)], Json(task)).into_response())
}

fn named(name: &str) -> Result<ScheduleName, Problem> {
    schedule::check_name(name)?;
    Ok(ScheduleName::new(name))
}
