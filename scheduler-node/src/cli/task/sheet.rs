//! A task as text for a person.

use common::{
    time::UnixMicros,
    wire::{AttemptView, DependencyView, TaskView},
};

use crate::cli::{moment, print};

/// Longer payloads and results are cut; `--output json` prints them whole.
const SHOWN_CHARS: usize = 2_000;

/// All fields of a task, a line each, with its attempts below.
pub(in crate::cli) fn sheet(task: &TaskView, now: UnixMicros) -> String {
    let at = |moment: UnixMicros| moment::shown(moment, now);
    let headers = |task: &TaskView| {
        let pairs: Vec<String> = task.headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
        (!pairs.is_empty()).then(|| pairs.join(", "))
    };
    let sheet = print::sheet(vec![
        ("id", Some(task.id.to_string())),
        ("queue", Some(task.queue.to_string())),
        ("state", Some(task.state.to_string())),
        ("due", Some(at(task.due_at))),
        ("created", Some(at(task.created_at))),
        ("attempt", Some(format!("{} of {}", task.attempt, task.max_attempts))),
        ("priority", Some(task.priority.to_string())),
        ("shard", Some(task.shard.to_string())),
        ("key", task.key.as_ref().map(|key| format!("{key}, version {}", task.version.unwrap_or_default()))),
        ("partition key", task.partition_key.clone()),
        ("waits for", waits_for(task)),
        ("stopping", task.stopping.then(|| "its consumer is asked to stop".to_owned())),
        ("expires", task.expires_at.map(at)),
        ("delivered", task.delivered_at.map(at)),
        ("finished", task.finished_at.map(at)),
        ("content type", Some(task.content_type.clone())),
        ("headers", headers(task)),
        ("payload", task.payload.as_ref().map(|payload| cut(payload.get()))),
        ("payload, base64", task.payload_base64.as_deref().map(cut)),
        ("status code", task.status_code.map(|code| code.to_string())),
        ("status", task.status_msg.clone()),
        ("progress", task.progress.map(|progress| format!("{progress} %"))),
        ("worker", task.worker.clone()),
        ("data", task.data_hidden.then(|| "hidden in this answer, or from this role".to_owned())),
        ("result", task.result.as_ref().map(|result| cut(result.get()))),
    ]);
    if task.attempts.is_empty() {
        return sheet;
    }
    format!("{sheet}\n\n{}", attempts(&task.attempts, now))
}

/// The dependencies, each with its state.
fn waits_for(task: &TaskView) -> Option<String> {
    let one = |other: &DependencyView| format!("{}/{} ({})", other.queue, other.key, other.state_text());
    let others: Vec<String> = task.depends_on.iter().map(one).collect();
    (!others.is_empty()).then(|| others.join(", "))
}

fn attempts(attempts: &[AttemptView], now: UnixMicros) -> String {
    let row = |attempt: &AttemptView| {
        let at = |moment: Option<UnixMicros>| moment.map(|moment| moment::shown(moment, now)).unwrap_or_default();
        vec![
            attempt.attempt.to_string(),
            at(attempt.claimed_at),
            at(attempt.ended_at),
            attempt.reason.clone().unwrap_or_default(),
            attempt.error.clone().unwrap_or_default(),
        ]
    };
    print::table(&["ATTEMPT", "CLAIMED", "ENDED", "REASON", "ERROR"], attempts.iter().map(row).collect())
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{} … ({} bytes in all, --output json shows them)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(more: &serde_json::Value) -> TaskView {
        let mut task = json!({
            "id": "0199f3a0-0000-7000-8000-000000000005", "queue": "mails", "state": "scheduled",
            "due_at": "2030-01-01T00:03:00Z", "created_at": "2030-01-01T00:00:00Z", "attempt": 1, "max_attempts": 25,
            "priority": 3, "shard": 5, "content_type": "application/json", "payload": {"to": "ann"},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            task[name] = value.clone();
        }
        serde_json::from_str(&task.to_string()).expect("a task")
    }

    const NOW: UnixMicros = UnixMicros::new(1_893_456_000_000_000);

    #[test]
    fn a_sheet_shows_what_there_is_and_nothing_else() {
        let shown = sheet(&task(&json!({})), NOW);
        for line in ["state", "2030-01-01T00:03:00.000Z (in 3 m)", "1 of 25", r#"{"to":"ann"}"#] {
            assert!(shown.contains(line), "{line} is missing:\n{shown}");
        }
        for name in ["result", "worker", "expires", "ATTEMPT"] {
            assert!(!shown.contains(name), "{name}:\n{shown}");
        }
    }

    #[test]
    fn attempts_stand_below_with_their_reasons() {
        let attempts = json!({ "attempts": [{ "attempt": 1, "reason": "rejected", "error": "no\u{1b}[31m" }] });
        let shown = sheet(&task(&attempts), NOW);
        assert!(shown.contains("ATTEMPT") && shown.contains("rejected  no\\u{1b}[31m"), "{shown}");
    }

    #[test]
    fn a_long_payload_is_cut_and_says_so() {
        let shown = cut(&"ä".repeat(SHOWN_CHARS + 1));
        assert!(shown.ends_with("(4002 bytes in all, --output json shows them)"), "{shown}");
        assert_eq!(cut("short"), "short");
    }
}
