//! One action on all tasks that a filter finds, a limited number for each request.

mod cursor;

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IntoDeserializer, value::StringDeserializer},
};

use crate::{
    field::FieldError,
    ids::QueueName,
    json, queue,
    task::{
        TaskState,
        bulk::{BulkAction, SkipReason, Target},
    },
    time::{Present, UnixMicros},
    wire::{
        Problem,
        check::{check_key, due},
        list::moment,
        read,
    },
};

pub use self::cursor::{BulkCursor, Edge, Place, Position};

/// The most tasks that one request may find: about as many as an action covers in the time that an answer may take.
pub(crate) const MAX_LIMIT: u32 = 100_000;
/// The most tasks that one statement writes: some 10 ms. A claim may have to wait that long for one of them. A node
/// does not know the outcome of a step whose connection broke.
pub const STEP: usize = 500;
/// The most tasks of a request that names no limit.
pub const DEFAULT_LIMIT: u32 = 10_000;
/// The longest shift: a hundred years. A longer one is a mistake.
const LONGEST_SHIFT_MS: i64 = 3_155_760_000_000;

/// A filter of tasks. A task must match every given field; an empty filter matches all tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TaskFilter {
    pub queue: Option<QueueName>,
    pub state: Option<TaskState>,
    pub key: Option<String>,
    pub partition_key: Option<String>,
    /// The earliest due time, inclusive.
    #[serde(deserialize_with = "moment")]
    pub due_after: Option<UnixMicros>,
    /// The latest due time, exclusive.
    #[serde(deserialize_with = "moment")]
    pub due_before: Option<UnixMicros>,
    /// A part of the error text of the last failed attempt.
    pub error: Option<String>,
}

impl TaskFilter {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses a filter that cannot match anything; the problem names the field.
    pub fn validate(&self) -> Result<(), Problem> {
        if let Some(name) = &self.queue {
            queue::check_name(name.as_str())?;
        }
        for (field, text) in [("key", &self.key), ("partition_key", &self.partition_key), ("error", &self.error)] {
            if let Some(text) = text {
                check_key(field, text)?;
            }
        }
        Ok(())
    }
}

/// The kinds of bulk actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Cancel,
    Retry,
    Run,
    Move,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::Run => "run",
            Self::Move => "move",
        })
    }
}

/// A bulk request as it arrives.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    pub action: Action,
    #[serde(default, deserialize_with = "json::object_or_default")]
    pub filter: TaskFilter,
    /// Confirms that an empty filter is meant to match every task.
    #[serde(default, deserialize_with = "json::or_default")]
    pub all: bool,
    /// Counts the tasks, and changes nothing.
    #[serde(default, deserialize_with = "json::or_default")]
    pub dry_run: bool,
    #[serde(default, deserialize_with = "json::whole")]
    pub limit: Option<u32>,
    /// Continues where the previous answer ended; all other fields must be as in that request.
    pub cursor: Option<String>,
    pub due_at: Option<UnixMicros>,
    #[serde(default, deserialize_with = "json::whole")]
    pub delay_ms: Option<i64>,
    #[serde(default, deserialize_with = "json::whole")]
    pub shift_ms: Option<i64>,
}

/// A checked bulk request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidBulk {
    pub action: Action,
    pub act: BulkAction,
    pub filter: TaskFilter,
    pub dry_run: bool,
    /// The most tasks that it may find.
    pub limit: usize,
    /// The moment of the first request of the series.
    pub began_at: UnixMicros,
    pub cursor: Option<BulkCursor>,
}

impl BulkRequest {
    pub fn parse(raw: &str) -> Result<Self, Problem> {
        read::object(raw)
    }

    pub fn validate(self, now: UnixMicros) -> Result<ValidBulk, Problem> {
        self.filter.validate().map_err(|problem| match problem.field.clone() {
            Some(field) => Problem { field: Some(format!("filter.{field}").into()), ..problem },
            None => problem,
        })?;
        if self.filter.is_empty() && !self.all {
            let detail = "an empty `filter` matches every task; set `\"all\": true` to confirm that";
            return Err(Problem::invalid_field("filter", detail));
        }
        if let Some(state) = self.filter.state.filter(|state| !fits(self.action, *state)) {
            let detail = format!("`{}` does not apply to tasks that are {state}", self.action);
            return Err(Problem::invalid_field("filter.state", detail));
        }
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        FieldError::within("limit", limit, 1, MAX_LIMIT)?;
        let cursor = self.cursor()?;
        let began_at = cursor.as_ref().map_or(now, |cursor| cursor.began_at);
        let act = self.act(began_at)?;
        let mut filter = self.filter;
        if self.action == Action::Retry {
            // Cancelled and expired tasks are no failures of the request.
            filter.state = Some(TaskState::Dead);
        }
        Ok(ValidBulk {
            action: self.action,
            act,
            filter,
            dry_run: self.dry_run,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            began_at,
            cursor,
        })
    }

    fn cursor(&self) -> Result<Option<BulkCursor>, Problem> {
        let Some(text) = &self.cursor else { return Ok(None) };
        let refuse = |why: String| Err(Problem::invalid_field("cursor", why));
        match text.parse::<BulkCursor>() {
            Ok(cursor) if cursor.action != self.action => {
                refuse(format!("the cursor belongs to the action `{}`", cursor.action))
            }
            // The walk would go on in the queue of the cursor.
            Ok(cursor) if self.leaves_queue(&cursor) => refuse("the cursor belongs to another queue".to_owned()),
            Ok(cursor) => Ok(Some(cursor)),
            Err(error) => refuse(error.to_string()),
        }
    }

    /// Whether the filter names another queue than that of the cursor.
    fn leaves_queue(&self, cursor: &BulkCursor) -> bool {
        let (Some(queue), Some(place)) = (&self.filter.queue, &cursor.place) else { return false };
        place.queue != *queue
    }

    /// The action to apply. A delay counts from the first request of the series, so that all tasks move to one
    /// moment.
    fn act(&self, began_at: UnixMicros) -> Result<BulkAction, Problem> {
        let target = match (due(self.due_at, self.delay_ms, Present::exactly(began_at))?, self.shift_ms) {
            (None, None) => None,
            (Some((due_at, _)), None) => Some(Target::At(due_at)),
            (None, Some(shift_ms)) => Some(shift(shift_ms)?),
            (Some(_), Some(_)) => {
                return Err(Problem::invalid_field(
                    "shift_ms",
                    "give either `shift_ms`, or `due_at` or `delay_ms`, not both",
                ));
            }
        };
        match (self.action, target) {
            (Action::Move, Some(target)) => Ok(BulkAction::Move(target)),
            (Action::Move, None) => {
                Err(Problem::invalid_field("due_at", "give the new due time: `due_at`, `delay_ms` or `shift_ms`"))
            }
            (_, Some(_)) => {
                let given = [("due_at", self.due_at.is_some()), ("delay_ms", self.delay_ms.is_some())];
                let field = given.into_iter().find(|(_, given)| *given).map_or("shift_ms", |(field, _)| field);
                Err(Problem::invalid_field(field, format!("`{field}` applies only to the action `move`")))
            }
            (Action::Cancel, None) => Ok(BulkAction::Cancel),
            (Action::Retry, None) => Ok(BulkAction::Retry),
            (Action::Run, None) => Ok(BulkAction::Run),
        }
    }
}

fn shift(shift_ms: i64) -> Result<Target, Problem> {
    FieldError::within("shift_ms", shift_ms, -LONGEST_SHIFT_MS, LONGEST_SHIFT_MS)?;
    if shift_ms == 0 {
        return Err(Problem::invalid_field("shift_ms", "`shift_ms` must not be 0"));
    }
    Ok(Target::By { shift_ms })
}

/// Whether the action can apply to tasks in that state. Tasks in flight are found too, and counted as refused.
fn fits(action: Action, state: TaskState) -> bool {
    if action == Action::Retry { state == TaskState::Dead } else { !state.is_final() }
}

/// The result of one request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BulkAnswer {
    pub action: Action,
    pub dry_run: bool,
    pub matched: u64,
    /// The number of changed tasks; in a dry run, of tasks that could be changed.
    pub done: u64,
    /// The part of `done` that was cancelled between two attempts: a copy of an earlier attempt may still be with the
    /// broker.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub no_further_attempts: u64,
    /// The numbers of unchanged tasks, by reason.
    #[serde(deserialize_with = "by_reason")]
    pub refused: BTreeMap<SkipReason, u64>,
    /// Set when there may be more tasks. `None`: the walk is complete.
    pub next_cursor: Option<BulkCursor>,
    /// The problem that ended the request early. The cursor continues with the batch that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Problem>,
}

/// Reads the numbers by reason. Reasons of a newer version count together.
fn by_reason<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<SkipReason, u64>, D::Error> {
    let mut numbers: BTreeMap<SkipReason, u64> = BTreeMap::new();
    for (reason, number) in BTreeMap::<String, u64>::deserialize(deserializer)? {
        let reason: StringDeserializer<D::Error> = reason.into_deserializer();
        *numbers.entry(SkipReason::deserialize(reason)?).or_default() += number;
    }
    Ok(numbers)
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests;
