//! Tasks: submit, show, list, change, cancel, run, retry, report.

use std::collections::BTreeMap;

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
    wire::{BatchAnswer, BatchRequest, BatchResult, CancelAnswer, ChangeRequest, Problem, TaskRequest, TaskView},
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

/// Yields after parsing this many tasks of a batch, so that parsing never delays due tasks.
const READ_AT_A_TIME: usize = 64;

/// About what a header or a dependency takes beside its characters: a place in a map or list that is not full, and its
/// allocations.
const PART_BYTES: usize = 160;

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

pub(super) async fn submit_batch(
    scoped: Scoped,
    State(api): State<Api>,
    BodyAlone(body): BodyAlone,
) -> Result<Response, Refusal> {
    let upstream = upstream(&body.headers);
    let (text, mut reserved) = body.text(api.limits.batch_bytes).await?.into_parts();
    let tasks = read_batch(&text, api.limits.single_bytes, &mut reserved).await?;
    drop(text);
    let desk = scoped.desk;
    let answers = stored(reserved, async move { desk.submit_batch_for(upstream, tasks).await }).await?;
    let results = answers.into_iter().enumerate().map(|(index, answer)| match answer {
        Ok(receipt) => BatchResult::Accepted(receipt),
        Err(problem) => BatchResult::Refused { error: problem.at(index) },
    });
    Ok(audit::batch(BatchAnswer { results: results.collect() }))
}

/// Stores the tasks of a request to the end, also when its client hangs up: the submitter keeps them until they are
/// stored. Until then they take about as much memory as is `reserved`.
async fn stored<T: Send + 'static>(
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

/// Parses each task by itself: an invalid one does not fail the others. `most_bytes`: of one task. All of them are kept
/// until they are stored, so what they take beside their text is `reserved` too: little tasks take many times as much.
async fn read_batch(
    text: &str,
    most_bytes: usize,
    reserved: &mut Reservation,
) -> Result<Vec<Result<TaskRequest, Problem>>, Problem> {
    let batch = BatchRequest::split(text)?;
    let mut taken_bytes = text.len() + batch.tasks.len() * size_of::<Result<TaskRequest, Problem>>();
    reserved.grow_to(taken_bytes).await?;
    let mut tasks = Vec::with_capacity(batch.tasks.len());
    for some in batch.tasks.chunks(READ_AT_A_TIME) {
        for raw in some {
            let task = read_task(raw.get(), most_bytes);
            taken_bytes += task.as_ref().map_or(0, parts) * PART_BYTES;
            tasks.push(task);
        }
        reserved.grow_to(taken_bytes).await?;
        tokio::task::yield_now().await;
    }
    Ok(tasks)
}

/// The headers and dependencies of a task.
fn parts(task: &TaskRequest) -> usize {
    task.headers.as_ref().map_or(0, BTreeMap::len) + task.depends_on.as_ref().map_or(0, |others| others.first.len())
}

/// Parses a task of a batch, which may be as large as one alone: parsed, a list of little values takes many times the
/// memory of its text.
fn read_task(raw: &str, most_bytes: usize) -> Result<TaskRequest, Problem> {
    if raw.len() > most_bytes {
        let detail = format!("the task has {} bytes of JSON; at most {most_bytes} are allowed", raw.len());
        return Err(Problem::payload_too_large(detail));
    }
    TaskRequest::parse(raw)
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
fn upstream(headers: &HeaderMap) -> Option<Upstream> {
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

    async fn read(text: &str, most_bytes: usize) -> Result<Vec<Result<TaskRequest, Problem>>, Problem> {
        let memory = Arc::new(BodyMemory::new(1 << 20));
        read_batch(text, most_bytes, &mut Reservation::none(&memory, "ops".into())).await
    }

    #[tokio::test]
    async fn a_batch_takes_memory_for_what_its_tasks_have_beside_their_text() {
        let memory = Arc::new(BodyMemory::of_sign_ins());
        let of_caller = || Reservation::none(&memory, "ops".into());
        let text = r#"[{"queue":"q","headers":{"a":"","b":""},"depends_on":["c"]},{"queue":"q"},5]"#;
        let mut reserved = of_caller();
        read_batch(text, 100, &mut reserved).await.expect("room");
        let tasks_bytes = 3 * size_of::<Result<TaskRequest, Problem>>() + 3 * PART_BYTES;
        assert_eq!(memory.reserved_bytes(), text.len() + tasks_bytes);
        drop(reserved);
        // Such memory is refused at once. The caller's share is 4 MiB, and the third part has no room in it.
        let mut others = of_caller();
        others.grow_to((4 << 20) - text.len() - tasks_bytes + 1).await.expect("room");
        assert_eq!(read_batch(text, 100, &mut of_caller()).await.expect_err("refused").status, 429);
    }

    #[tokio::test]
    async fn a_task_of_a_batch_that_cannot_be_read_leaves_the_others() {
        for text in [
            r#"{"tasks":[{"queue":"a"},{"queue":"a","colour":1},{"queue":5},{"queue":"b","payload":{"x":1}}]}"#,
            r#"[{"queue":"a"},{"queue":"a","colour":1},{"queue":5},{"queue":"b","payload":{"x":1}}]"#,
        ] {
            let tasks = read(text, 100).await.expect("a batch");
            let fields: Vec<_> =
                tasks.iter().map(|task| task.as_ref().err().and_then(|problem| problem.field.as_deref())).collect();
            assert_eq!(fields, [None, Some("colour"), Some("queue"), None]);
        }
    }

    #[tokio::test]
    async fn what_is_no_batch_is_refused_as_a_whole() {
        for (text, status) in [("{\"tasks\":[{]}", 400), ("", 400), ("{}", 422), ("{\"task\":[]}", 422), ("5", 422)] {
            assert_eq!(read(text, 100).await.expect_err("refused").status, status, "{text}");
        }
    }

    #[tokio::test]
    async fn a_task_of_a_batch_is_no_larger_than_one_alone() {
        let task = r#"{"queue":"a"}"#;
        let tasks = read(&format!(r#"[{task},{{"queue": "a"}}]"#), task.len()).await.expect("a batch");
        let statuses: Vec<_> = tasks.iter().map(|task| task.as_ref().err().map(|problem| problem.status)).collect();
        assert_eq!(statuses, [None, Some(413)]);
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
