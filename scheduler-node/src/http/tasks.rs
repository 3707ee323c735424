//! Tasks: submit, show, list, change, cancel, run, retry, report.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use common::{
    ids::Attempt,
    task::{
        report::ResultBody,
        trace::{HEADER_TRACEPARENT, HEADER_TRACESTATE, Upstream},
    },
    wire::{CancelAnswer, ChangeRequest, Problem, TaskRequest, TaskView},
};

use super::{
    Api, PathPart, Reservation, Scoped, audit,
    extract::{BodyAlone, NoInput, NoQuery},
    query,
    refusal::Refusal,
};
use crate::{
    internal::{self, Origin},
    supervise::spawn_child,
};

pub(super) async fn submit(
    scoped: Scoped,
    State(api): State<Api>,
    BodyAlone(body): BodyAlone,
) -> Result<Response, Refusal> {
    let upstream = upstream(&body.headers);
    let text = body.text(api.limits.single_bytes).await?;
    let mut task = TaskRequest::parse(text.as_str())?;
    task.upstream = upstream;
    let view = stored(text.into_reserved(), async move { scoped.desk.submit(task).await }).await??;
    let status = if view.duplicate { StatusCode::OK } else { StatusCode::CREATED };
    let place = format!("/v1/tasks/{}", view.id);
    let headers = [(header::LOCATION, place)];
    Ok(if view.duplicate {
        // Another caller may have submitted it, so the answer counts as a read of its data.
        (status, headers, audit::task(view)).into_response()
    } else {
        (status, headers, Json(view)).into_response()
    })
}

/// Stores the tasks of a request to the end, also when its client hangs up: the submitter keeps them until they are
/// stored. Until then they take about as much memory as is `reserved`.
pub(super) async fn stored<T: Send + 'static>(
    reserved: Reservation,
    storing: impl Future<Output = T> + Send + 'static,
) -> Result<T, Problem> {
    let child = spawn_child(async move {
        let _reserved = reserved;
        storing.await
    });
    child.await.map_err(|error| {
        let detail = "the submission failed halfway and may have taken effect; check before you send it again";
        internal::problem(Origin::Request, Some(&error), detail)
    })
}

pub(super) async fn list(scoped: Scoped, uri: Uri) -> Result<Response, Refusal> {
    Ok(audit::tasks(scoped.desk.list(query::filter(&uri)?).await?, &uri))
}

pub(super) async fn show(scoped: Scoped, PathPart(id): PathPart, _: NoQuery) -> Result<Response, Refusal> {
    Ok(audit::task(scoped.desk.get(scoped.desk.id(&id)?).await?))
}

pub(super) async fn change(
    scoped: Scoped,
    State(api): State<Api>,
    PathPart(id): PathPart,
    BodyAlone(body): BodyAlone,
) -> Result<Json<TaskView>, Refusal> {
    let text = body.text(api.limits.single_bytes).await?;
    let id = scoped.desk.id(&id)?;
    Ok(Json(scoped.desk.change(id, ChangeRequest::parse(text.as_str())?).await?))
}

pub(super) async fn stop(scoped: Scoped, PathPart(id): PathPart, _: NoInput) -> Result<Json<CancelAnswer>, Refusal> {
    Ok(Json(scoped.desk.stop(scoped.desk.id(&id)?).await?))
}

pub(super) async fn cancel(scoped: Scoped, PathPart(id): PathPart, _: NoInput) -> Result<Json<CancelAnswer>, Refusal> {
    Ok(Json(scoped.desk.cancel(scoped.desk.id(&id)?).await?))
}

pub(super) async fn run(scoped: Scoped, PathPart(id): PathPart, _: NoInput) -> Result<Json<TaskView>, Refusal> {
    Ok(Json(scoped.desk.run(scoped.desk.id(&id)?).await?))
}

pub(super) async fn retry(scoped: Scoped, PathPart(id): PathPart, _: NoInput) -> Result<Json<TaskView>, Refusal> {
    Ok(Json(scoped.desk.retry(scoped.desk.id(&id)?).await?))
}

pub(super) async fn report(
    scoped: Scoped,
    State(api): State<Api>,
    PathPart(id): PathPart,
    BodyAlone(body): BodyAlone,
) -> Result<Json<TaskView>, Refusal> {
    let upstream = upstream(&body.headers);
    let text = body.text(api.limits.single_bytes).await?;
    let id = scoped.desk.id(&id)?;
    let (attempt, mut report) = read_report(text.as_str())?;
    report.trace = upstream.map(|upstream| upstream.context);
    let task = scoped.desk.report(id, attempt, report).await?;
    // The consumer has the data from the message; a heartbeat should not count as a read of a payload.
    Ok(Json(task.without_data()))
}

/// The client's span, from its W3C Trace Context headers.
pub(super) fn upstream(headers: &HeaderMap) -> Option<Upstream> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    Upstream::of(text(HEADER_TRACEPARENT), text(HEADER_TRACESTATE))
}

/// Parses a report. Over HTTP its body names the attempt.
fn read_report(text: &str) -> Result<(Attempt, ResultBody), Problem> {
    let report = ResultBody::parse_request(text)?;
    match report.attempt {
        Some(attempt) if attempt > 0 => Ok((Attempt::new(attempt), report)),
        Some(_) => Err(Problem::invalid_field("attempt", "`attempt` counts from 1")),
        None => Err(Problem::invalid_field(
            "attempt",
            "`attempt` is missing: give the number from the message's header `duetime-attempt`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::poll;
    use tokio::sync::oneshot;

    use super::*;
    use crate::http::memory::BodyMemory;

    #[tokio::test]
    async fn tasks_keep_their_memory_until_they_are_stored_though_the_client_hangs_up() {
        let memory = Arc::new(BodyMemory::new(1 << 20));
        let mut reserved = Reservation::none(&memory, "ops".into());
        reserved.grow_to(1_000).await.expect("room");
        let (store, storing) = oneshot::channel::<()>();
        let mut request = Box::pin(stored(reserved, storing));
        assert!(poll!(&mut request).is_pending());
        drop(request);
        tokio::task::yield_now().await;
        assert_eq!(memory.reserved_bytes(), 1_000);
        store.send(()).expect("it waits");
        while memory.reserved_bytes() > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn json_that_is_none_is_refused_with_its_place() {
        let problem = TaskRequest::parse("{\n  \"queue\": mail\n}").expect_err("refused");
        assert_eq!(problem.status, 400);
        assert!(problem.detail.contains("line 2 column"), "{problem}");
    }

    #[test]
    fn a_report_over_http_says_which_attempt_it_is_about() {
        let (attempt, _) = read_report(r#"{"attempt":2,"status":"succeeded"}"#).expect("a report");
        assert_eq!(attempt, Attempt::new(2));
        for text in [
            r#"{"status":"succeeded"}"#,
            r#"{"status":"succeeded","attempt":0}"#,
            r#"{"status":"succeeded","attempt":"1"}"#,
        ] {
            let problem = read_report(text).expect_err("refused");
            assert_eq!((problem.status, problem.field.as_deref()), (422, Some("attempt")), "{text}: {problem:?}");
        }
    }
}
