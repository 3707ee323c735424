//! The message of a Celery task, protocol 2, for an unmodified worker.
//!
//! Celery's protocol also has headers that are lists or empty (`timelimit`, `eta`, `parent_id`). A missing header
//! means the same, and not every client reads such headers.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Shaped;
use crate::{
    field::FieldError,
    task::Delivery,
    wire::{
        amqp::{Header, HeaderValue},
        check::JSON,
        problem::short_detail,
    },
};

/// The longest `argsrepr` and `kwargsrepr`, which are for logs: as long as Celery's own clients write.
const REPR_CHARS: usize = 1_024;
/// The longest task name: a module path and a name, with room.
const MAX_NAME_BYTES: usize = 255;
/// No Celery callbacks: Duetime itself decides what follows a task.
const EMBED: &str = r#"{"callbacks":null,"errbacks":null,"chain":null,"chord":null}"#;

/// The payload: the task to call, and its arguments.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call<'a> {
    task: String,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    #[serde(borrow)]
    kwargs: Option<&'a RawValue>,
}

impl<'a> Call<'a> {
    fn read(payload: &'a [u8]) -> Result<Self, FieldError> {
        let other = |what: &dyn std::fmt::Display| {
            let wanted =
                r#"a queue with `format` = `celery` takes `{"task": "module.name", "args": [], "kwargs": {}}`"#;
            FieldError::new("payload", short_detail(format!("{wanted}; the payload does not match: {what}")))
        };
        // Serde would read the struct from a list of three values as well.
        if !payload.trim_ascii_start().starts_with(b"{") {
            return Err(other(&"not an object"));
        }
        let call: Self = serde_json::from_slice(payload).map_err(|error| other(&error))?;
        if call.task.is_empty() || call.task.len() > MAX_NAME_BYTES || call.task.chars().any(char::is_control) {
            let detail = format!("`payload.task` must be 1 to {MAX_NAME_BYTES} bytes without control characters");
            return Err(FieldError::new("payload.task", detail));
        }
        if !call.args().starts_with('[') {
            return Err(FieldError::new("payload.args", "`payload.args` must be a list"));
        }
        if !call.kwargs().starts_with('{') {
            return Err(FieldError::new("payload.kwargs", "`payload.kwargs` must be an object"));
        }
        Ok(call)
    }

    fn args(&self) -> &str {
        self.args.map_or("[]", RawValue::get)
    }

    fn kwargs(&self) -> &str {
        self.kwargs.map_or("{}", RawValue::get)
    }
}

pub(super) fn check(payload: &[u8]) -> Result<(), FieldError> {
    Call::read(payload).map(drop)
}

pub(super) fn shape(delivery: &Delivery) -> Result<Shaped, FieldError> {
    let call = Call::read(&delivery.content.payload)?;
    let body = format!("[{},{},{EMBED}]", call.args(), call.kwargs());
    let id = delivery.id.to_string();
    let text = |name: &'static str, value: &str| -> Header { (name.into(), HeaderValue::LongString(value.to_owned())) };
    // Celery counts the attempts after the first one.
    let retries = i64::from(delivery.attempt.number()) - 1;
    let headers = vec![
        text("lang", "py"),
        text("task", &call.task),
        text("id", &id),
        text("root_id", &id),
        ("retries".into(), HeaderValue::I64(retries)),
        text("argsrepr", repr(call.args())),
        text("kwargsrepr", repr(call.kwargs())),
        text("origin", "duetime"),
    ];
    Ok(Shaped { body: body.into_bytes(), content_type: JSON, content_encoding: "utf-8", headers })
}

fn repr(json: &str) -> &str {
    json.char_indices().nth(REPR_CHARS).map_or(json, |(end, _)| &json[..end])
}
