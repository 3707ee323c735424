//! A batch of tasks: parses each by itself, and reserves the memory that the parsed tasks take.

use std::collections::BTreeMap;

use axum::{extract::State, response::Response};
use common::wire::{BatchAnswer, BatchRequest, BatchResult, Problem, TaskRequest};
use serde_json::value::RawValue;

use super::{
    Api, Reservation, Scoped, audit,
    extract::BodyAlone,
    refusal::Refusal,
    tasks::{stored, upstream},
};

/// Yields after parsing this many tasks of a batch, or this much of its text, so that parsing never delays due tasks.
const READ_AT_A_TIME: usize = 64;
const READ_BYTES_AT_A_TIME: usize = 1 << 20;

/// What a header or a dependency takes beside its text: its place in a map or list with spare room, and its
/// allocations. An estimate.
const ENTRY_BYTES: usize = 160;

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

/// Parses each task by itself: an invalid one does not fail the others. Reserves the memory of the parsed tasks too,
/// because they stay until they are stored. A small task takes many times its text.
async fn read_batch(
    text: &str,
    task_limit_bytes: usize,
    reserved: &mut Reservation,
) -> Result<Vec<Result<TaskRequest, Problem>>, Problem> {
    // The split passes over the whole text, and so did the check for UTF-8 before it. The first tasks come after it.
    tokio::task::yield_now().await;
    let batch = BatchRequest::split(text)?;
    tokio::task::yield_now().await;
    let mut taken_bytes = text.len() + batch.tasks.len() * size_of::<Result<TaskRequest, Problem>>();
    reserved.grow_to(taken_bytes).await?;
    let mut tasks = Vec::with_capacity(batch.tasks.len());
    let mut unread = batch.tasks.as_slice();
    while !unread.is_empty() {
        let (some, others) = unread.split_at(at_once(unread));
        unread = others;
        for raw in some {
            let task = read_task(raw.get(), task_limit_bytes);
            taken_bytes += task.as_ref().map_or(0, entries) * ENTRY_BYTES;
            tasks.push(task);
        }
        reserved.grow_to(taken_bytes).await?;
        tokio::task::yield_now().await;
    }
    Ok(tasks)
}

/// How many of the tasks are parsed before the next yield, at least one.
fn at_once(tasks: &[&RawValue]) -> usize {
    let mut bytes = 0;
    let is_next = |raw: &&&RawValue| {
        let has_room = bytes < READ_BYTES_AT_A_TIME;
        bytes += raw.get().len();
        has_room
    };
    tasks.iter().take(READ_AT_A_TIME).take_while(is_next).count()
}

/// The headers and dependencies of a task.
fn entries(task: &TaskRequest) -> usize {
    task.headers.as_ref().map_or(0, BTreeMap::len) + task.depends_on.as_ref().map_or(0, |others| others.first.len())
}

/// Parses a task of a batch, which may be as large as one alone: parsed, a list of little values takes many times the
/// memory of its text.
fn read_task(raw: &str, task_limit_bytes: usize) -> Result<TaskRequest, Problem> {
    if raw.len() > task_limit_bytes {
        let detail = format!("the task has {} bytes of JSON; at most {task_limit_bytes} are allowed", raw.len());
        return Err(Problem::payload_too_large(detail));
    }
    TaskRequest::parse(raw)
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, sync::Arc};

    use super::*;
    use crate::http::memory::BodyMemory;

    async fn read(text: &str, task_limit_bytes: usize) -> Result<Vec<Result<TaskRequest, Problem>>, Problem> {
        let memory = Arc::new(BodyMemory::new(1 << 20));
        read_batch(text, task_limit_bytes, &mut Reservation::none(&memory, "ops".into())).await
    }

    #[tokio::test]
    async fn a_batch_takes_memory_for_what_its_tasks_have_beside_their_text() {
        let memory = Arc::new(BodyMemory::of_sign_ins());
        let of_caller = || Reservation::none(&memory, "ops".into());
        let text = r#"[{"queue":"q","headers":{"a":"","b":""},"depends_on":["c"]},{"queue":"q"},5]"#;
        let mut reserved = of_caller();
        read_batch(text, 100, &mut reserved).await.expect("room");
        let tasks_bytes = 3 * size_of::<Result<TaskRequest, Problem>>() + 3 * ENTRY_BYTES;
        assert_eq!(memory.reserved_bytes(), text.len() + tasks_bytes);
        drop(reserved);
        // Such memory is refused at once. The caller's share is 4 MiB, and the third entry has no room in it.
        let mut others = of_caller();
        others.grow_to((4 << 20) - text.len() - tasks_bytes + 1).await.expect("room");
        assert_eq!(read_batch(text, 100, &mut of_caller()).await.expect_err("refused").status, 429);
    }

    #[tokio::test]
    async fn a_batch_is_read_in_small_parts_with_other_work_between_them() {
        let memory = Arc::new(BodyMemory::new(64 << 20));
        for (tasks, payload_bytes, parts) in [(8, 700 << 10, 4), (130, 1, 3)] {
            let task = format!(r#"{{"queue":"a","payload":"{}"}}"#, "x".repeat(payload_bytes));
            let text = format!("[{}]", vec![task; tasks].join(","));
            let mut reserved = Reservation::none(&memory, "ops".into());
            let mut reading = pin!(read_batch(&text, text.len(), &mut reserved));
            let mut polls = 0;
            let read = poll_fn(|cx| {
                polls += 1;
                reading.as_mut().poll(cx)
            });
            assert_eq!(read.await.expect("a batch").len(), tasks);
            // It yields before and after the split, and after each part.
            assert_eq!(polls, 2 + parts + 1, "{tasks} tasks");
        }
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
}
