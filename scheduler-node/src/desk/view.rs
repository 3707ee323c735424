//! Turns a stored task into the view that its caller may see. Every view that leaves the desk passes
//! [`Desk::visible`] or [`Desk::visible_schedule`], so no route shows a payload to a role without payloads.

use common::{
    queue::QueueBook,
    wire::{Problem, ScheduleView, TaskView, view::Body},
};
use serde_json::value::RawValue;

use super::Desk;
use crate::store::rows::TaskRecord;

impl Desk {
    /// The view of a stored task that its caller may see.
    pub(super) fn view(&self, task: TaskRecord, book: &QueueBook) -> TaskView {
        self.visible(view(task, book))
    }

    pub(super) fn visible(&self, view: TaskView) -> TaskView {
        if self.shows_data { view } else { view.without_data() }
    }

    pub(super) fn visible_schedule(&self, view: ScheduleView) -> ScheduleView {
        if self.shows_data { view } else { view.without_data() }
    }

    /// Refuses an answer that consists of data to a caller whose role shows none.
    pub(super) fn require_data(&self, of: &str) -> Result<(), Problem> {
        if self.shows_data {
            return Ok(());
        }
        Err(Problem::forbidden(format!("{of}, and the role of this token shows none")))
    }

    /// Refuses a filter by error texts to a caller who may see no data: the matches would reveal the texts.
    pub(super) fn require_error_texts(&self, error: Option<&String>) -> Result<(), Problem> {
        error.map_or(Ok(()), |_| self.require_data("the filter `error` searches the error texts of consumers"))
    }
}

/// Fills in from the queue's policy what the task leaves open.
fn view(task: TaskRecord, book: &QueueBook) -> TaskView {
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
        // The result was checked on arrival. Should it not be JSON all the same, the rest of the task is shown.
        result: task.result.and_then(|text| RawValue::from_string(text).ok()),
        status_code: task.status_code,
        status_msg: task.status_msg,
        progress: task.progress,
        worker: task.worker,
        attempts: task.history,
        depends_on: Vec::new(),
        left_out: task.left_out,
        data_hidden: false,
        stopping: task.stopping,
        duplicate: false,
    }
}
