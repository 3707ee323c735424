//! Exports all tasks that match a filter, one a line, over all databases.
//!
//! The export is no snapshot: a task that changes meanwhile appears as it is when its turn comes. Live tasks
//! come before finished ones, so a task that finishes meanwhile appears at least once. A dead task that is retried
//! meanwhile may be missing: it goes back to the live tasks, which the export has passed. No second walk finds it for
//! certain, because it may have failed again and be due at any time.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use common::{
    task::TaskState,
    wire::{
        ExportEnd, ExportedTask, Problem, TaskFilter,
        bulk::{Place, STEP},
        view::Body,
    },
};
use futures::{Stream, StreamExt};
use serde_json::value::RawValue;

use super::Desk;
use crate::{
    internal::{self, Origin},
    store::{
        Database, Error, Store,
        bulk::{FoundTask, Walk},
        export::WholeTask,
    },
};

/// The longest search without a match before the answer begins or goes on all the same.
const LOOK_ON: Duration = Duration::from_secs(1);

/// What the answer says while the search goes on. An HTTP server sends no empty piece, and clients and proxies give up
/// a silent answer. A blank may stand before each value of JSON, so each line stays one.
const STILL_THERE: &[u8] = b" ";

/// The bytes that are read at a time, give or take one task. An export takes twice as much memory: one chunk waits for
/// the client while the next is made.
const READ_BYTES: u64 = 4 << 20;

/// An export under way.
struct Export {
    filter: TaskFilter,
    /// The walks still to come, the present one first.
    walks: VecDeque<(Arc<Database>, Walk)>,
    place: Option<Place>,
    /// Whether the present walk has come to its end.
    walked: bool,
    /// Tasks that were found and are not read yet.
    found: VecDeque<FoundTask>,
    /// The most tasks that are read at a time, as many as there are until a read runs out of its time.
    at_once: usize,
    store: Store,
    /// The map of the shards with which the export began.
    map: u32,
    exported: u64,
    ended: bool,
}

impl Desk {
    /// Returns lines of JSON in chunks of many lines; the last line counts them. While the search for the next line
    /// takes long, a chunk is a blank. A failure before the first chunk is the answer; a later problem ends the lines
    /// early.
    pub(crate) async fn export(
        &self,
        filter: TaskFilter,
    ) -> Result<impl Stream<Item = Result<Vec<u8>, Problem>> + use<>, Problem> {
        self.require_queue_or_all(filter.queue.as_ref())?;
        self.require_data("an export has payloads")?;
        let databases = self.parts().store.databases();
        let of_database = |database: &Arc<Database>| {
            walks(filter.state).iter().map(|walk| (Arc::clone(database), *walk)).collect::<Vec<_>>()
        };
        let walks = databases.iter().flat_map(of_database).collect();
        let store = self.parts().store.clone();
        let mut export = Export {
            filter,
            walks,
            place: None,
            walked: false,
            found: VecDeque::new(),
            at_once: usize::MAX,
            map: store.map_fingerprint(),
            store,
            exported: 0,
            ended: false,
        };
        let first = export.next().await?;
        let rest = futures::stream::try_unfold(export, |mut export| async move {
            Ok(export.next().await?.map(|chunk| (chunk, export)))
        });
        Ok(futures::stream::iter(first.map(Ok)).chain(rest))
    }
}

/// The tables that tasks in `state` are in.
fn walks(state: Option<TaskState>) -> &'static [Walk] {
    const LIVE: Walk = Walk::Live { moved: None };
    match state {
        None => &[LIVE, Walk::Finished],
        Some(TaskState::Succeeded) => &[Walk::Finished],
        Some(state) if state.is_final() => &[Walk::Failed { before: None }],
        Some(_) => &[LIVE],
    }
}

impl Export {
    /// The next lines, or a blank before the next one. `None`: the export is complete.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Problem> {
        let started = Instant::now();
        loop {
            if started.elapsed() > LOOK_ON {
                return Ok(Some(STILL_THERE.to_vec()));
            }
            let Some((database, walk)) = self.walks.front().cloned() else { return self.end() };
            if self.found.is_empty() && std::mem::take(&mut self.walked) {
                self.walks.pop_front();
                continue;
            }
            if self.found.is_empty() {
                self.look(&database, walk).await?;
            }
            let some = self.take();
            if some.is_empty() {
                continue;
            }
            let read = database.export_read(walk, &some).await;
            if read.as_ref().is_err_and(Error::is_out_of_time) && some.len() > 1 {
                self.put_back(some);
                continue;
            }
            let tasks = read?;
            // Slowly: a read that is too large again costs the time of a statement.
            self.at_once = self.at_once.saturating_add(self.at_once.div_ceil(16));
            if !tasks.is_empty() {
                return self.lines(tasks).map(Some);
            }
        }
    }

    async fn look(&mut self, database: &Database, walk: Walk) -> Result<(), Problem> {
        let step = database.bulk_look(walk, &self.filter, self.place.as_ref(), STEP).await?;
        self.walked = step.next.is_none();
        (self.found, self.place) = (step.found.into(), step.next);
        Ok(())
    }

    fn take(&mut self) -> Vec<FoundTask> {
        let mut bytes = 0;
        let mut some = Vec::new();
        while some.len() < self.at_once
            && let Some(found) = self.found.pop_front_if(|found| some.is_empty() || bytes + found.bytes <= READ_BYTES)
        {
            bytes += found.bytes;
            some.push(found);
        }
        some
    }

    /// Puts tasks back whose read ran out of its time, so that half as many are read next. Each waiting task may have
    /// 100 names to look up, and each look-up probes all partitions of the archive.
    fn put_back(&mut self, some: Vec<FoundTask>) {
        self.at_once = some.len() / 2;
        some.into_iter().rev().for_each(|found| self.found.push_front(found));
    }

    fn lines(&mut self, tasks: Vec<WholeTask>) -> Result<Vec<u8>, Problem> {
        let mut lines = Vec::new();
        for task in tasks {
            self.exported += 1;
            add(&mut lines, &exported(task))?;
        }
        // Growing by doubling leaves up to half of the buffer empty.
        lines.shrink_to_fit();
        Ok(lines)
    }

    fn end(&mut self) -> Result<Option<Vec<u8>>, Problem> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(None);
        }
        // Its tasks may be missing, or come twice.
        if self.store.map_fingerprint() != self.map {
            return Err(Problem::unavailable("a shard has moved to another database during the export; export again"));
        }
        let mut line = Vec::new();
        add(&mut line, &ExportEnd { exported: self.exported })?;
        Ok(Some(line))
    }
}

fn add(lines: &mut Vec<u8>, line: &impl serde::Serialize) -> Result<(), Problem> {
    let unwritable =
        |error: serde_json::Error| internal::problem(Origin::Request, Some(&error), "a task cannot be written as JSON");
    serde_json::to_writer(&mut *lines, line).map_err(unwritable)?;
    lines.push(b'\n');
    Ok(())
}

fn exported(task: WholeTask) -> ExportedTask {
    let WholeTask { record, timeout_ms, retry, envelope, depends_on } = task;
    let body = Body::in_one_line(record.payload.unwrap_or_default(), &record.content_type);
    // Outside of its strings, which have none, JSON means the same with a blank for each line break.
    let result = record.result.map(|text| text.replace(['\n', '\r'], " "));
    ExportedTask {
        id: record.id,
        queue: record.queue,
        state: record.state,
        due_at: record.due_at,
        created_at: record.created_at,
        attempt: record.attempt,
        priority: record.priority,
        version: record.key.is_some().then_some(record.version),
        key: record.key,
        partition_key: record.partition_key,
        payload: body.payload,
        payload_base64: body.payload_base64,
        content_type: record.content_type,
        headers: record.headers,
        expires_at: record.expires_at,
        max_attempts: record.max_attempts,
        timeout_ms,
        retry,
        envelope,
        depends_on,
        delivered_at: record.delivered_at,
        finished_at: record.finished_at,
        result: result.and_then(|text| RawValue::from_string(text).ok()),
        status_code: record.status_code,
        status_msg: record.status_msg,
        progress: record.progress,
        worker: record.worker,
        attempts: record.history,
    }
}
