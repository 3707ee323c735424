//! The message of a Celery task, protocol 2: what an unmodified worker takes.
//!
//! Celery's own protocol also has headers that are lists or empty (`timelimit`, `eta`, `parent_id`); they mean the same when they
//! are left out, and not every client reads them.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Shaped;
use crate::{
    field::FieldError,
    task::Delivery,
    wire::{
        amqp::{Header, HeaderValue},
        check::JSON,
    },
};

/// Of `argsrepr` and `kwargsrepr`, which are there for logs: as much as Celery's own clients write.
const REPR_CHARS: usize = 1_024;
/// What a module path and a name come to, with room.
const MAX_NAME_BYTES: usize = 255;
/// Who to call afterwards is Duetime's to know.
const EMBED: &str = r#"{"callbacks":null,"errbacks":null,"chain":null,"chord":null}"#;

/// The payload: which task to call, and with what.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call<'a> {
    task: String,
    #[serde(borrow, default)]
    args: Option<&'a RawValue>,
    #[serde(borrow, default)]
    kwargs: Option<&'a RawValue>,
}

impl<'a> Call<'a> {
    fn read(payload: &'a [u8]) -> Result<Self, FieldError> {
        let other = |what: &dyn std::fmt::Display| {
            let wanted =
                r#"a queue with `format` = `celery` takes `{"task": "module.name", "args": [], "kwargs": {}}`"#;
            FieldError::new("payload", format!("{wanted}; the payload is something else: {what}"))
        };
        // A list of three would be read as well.
        if !payload.trim_ascii_start().starts_with(b"{") {
            return Err(other(&"no object"));
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
    // Celery counts what came after the first attempt.
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
