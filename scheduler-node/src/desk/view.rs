//! A task as it is kept, turned into how it is shown.

use common::{
    queue::QueueBook,
    wire::{TaskView, view::Body},
};
use serde_json::value::RawValue;

use crate::store::rows::TaskRecord;

/// The queue's policy fills in what the task leaves open.
pub(super) fn view(task: TaskRecord, book: &QueueBook) -> TaskView {
    let max_attempts = task.max_attempts.unwrap_or_else(|| book.get(&task.queue).policy.max_attempts);
    let body = match task.payload {
        Some(bytes) => Body::of(bytes, &task.content_type),
        None => Body { payload: None, payload_base64: None },
    };
    TaskView {
        id: task.id,
        queue: task.queue,
        state: task.state,
        due_at: task.due_at,
        created_at: task.created_at,
        attempt: task.attempt,
        max_attempts,
        priority: task.priority,
        shard: task.id.shard(),
        version: task.key.is_some().then_some(task.version),
        key: task.key,
        partition_key: task.partition_key,
        payload: body.payload,
        payload_base64: body.payload_base64,
        content_type: task.content_type,
        headers: task.headers,
        expires_at: task.expires_at,
        delivered_at: task.delivered_at,
        finished_at: task.finished_at,
        // It was checked when it came in; should it not be JSON all the same, the rest is shown.
        result: task.result.and_then(|text| RawValue::from_string(text).ok()),
        status_code: task.status_code,
        status_msg: task.status_msg,
        progress: task.progress,
        worker: task.worker,
        attempts: task.history,
        depends_on: Vec::new(),
        stopping: task.stopping,
        duplicate: false,
    }
}
