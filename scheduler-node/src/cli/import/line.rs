//! One line of the input: a task as `export` wrote it, or as an earlier import refused it.

use common::wire::{ExportEnd, ExportedTask, Problem};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::dependencies::Dependencies;

/// What to do with a line.
#[derive(Debug)]
pub(super) enum Line {
    /// Submit the task; holds the request.
    Task(String),
    /// Skip a finished task.
    Finished,
    Refused(Box<Problem>),
    End(ExportEnd),
    Blank,
}

/// Which tasks to submit again, and how.
#[derive(Debug)]
pub(super) struct Choice {
    key_from_id: bool,
    all_states: bool,
    refused_before: bool,
    /// Those of the tasks that were chosen.
    dependencies: Dependencies,
}

/// A line that an earlier import refused.
#[derive(Deserialize)]
struct RefusedBefore<'a> {
    #[serde(borrow)]
    task: &'a RawValue,
    #[serde(rename = "error")]
    _error: serde::de::IgnoredAny,
}

impl Choice {
    pub(super) fn new(key_from_id: bool, all_states: bool) -> Self {
        Self { key_from_id, all_states, refused_before: false, dependencies: Dependencies::default() }
    }

    /// Whether the input had lines that an earlier import refused.
    pub(super) fn was_refused_before(&self) -> bool {
        self.refused_before
    }

    pub(super) fn dependencies(&self) -> &Dependencies {
        &self.dependencies
    }

    pub(super) fn of(&mut self, text: &str) -> Line {
        let text = text.trim_ascii();
        if text.is_empty() {
            return Line::Blank;
        }
        if let Ok(end) = serde_json::from_str(text) {
            return Line::End(end);
        }
        let task = inner(text).map_or(text, RawValue::get);
        if task.len() < text.len() {
            self.refused_before = true;
        }
        match serde_json::from_str(task) {
            Ok(task) => self.request(&task),
            Err(error) => Line::Refused(Box::new(Problem::malformed(format!("it is not an exported task: {error}")))),
        }
    }

    fn request(&mut self, task: &ExportedTask) -> Line {
        if task.state.is_final() && !self.all_states {
            return Line::Finished;
        }
        if task.envelope.is_some() {
            let detail =
                "a message of a delay exchange cannot be submitted as a task; publish it to its exchange again";
            return Line::Refused(Box::new(Problem::invalid_field("envelope", detail)));
        }
        self.dependencies.note(task);
        match serde_json::to_string(&task.resubmission(self.key_from_id)) {
            Ok(request) => Line::Task(request),
            Err(error) => Line::Refused(Box::new(Problem::malformed(error.to_string()))),
        }
    }
}

/// The line that keeps a refused task: byte for byte, or as a JSON string when it is not JSON.
pub(super) fn refused(line: u64, error: &Problem, text: &str) -> serde_json::Result<String> {
    #[derive(Serialize)]
    struct Refused<'a> {
        line: u64,
        error: &'a Problem,
        task: &'a RawValue,
    }
    let as_text = serde_json::value::to_raw_value(text.trim_ascii())?;
    serde_json::to_string(&Refused { line, error, task: inner(text).unwrap_or(&as_text) })
}

/// The task in a line of either kind; `None` when the line is not JSON.
fn inner(text: &str) -> Option<&RawValue> {
    match serde_json::from_str::<RefusedBefore<'_>>(text) {
        Ok(before) => Some(before.task),
        Err(_) => serde_json::from_str(text.trim_ascii()).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: &str = concat!(
        r#"{"id":"00000000-0000-0000-0000-00000abc0005","queue":"q","state":"scheduled","due_at":"2033-05-18T03:33:20Z","#,
        r#""created_at":"1970-01-01T00:00:00Z","attempt":0,"priority":3,"payload": {"b": 1.0},"content_type":"application/json"}"#
    );

    fn request(line: &Line) -> &str {
        let Line::Task(request) = line else { panic!("{line:?}") };
        request
    }

    #[test]
    fn a_task_is_submitted_again_as_it_was_and_with_its_id_as_key_where_wanted() {
        let line = Choice::new(false, false).of(TASK);
        assert!(request(&line).contains(r#""payload":{"b": 1.0}"#) && !request(&line).contains("\"key\""), "{line:?}");
        let line = Choice::new(true, false).of(TASK);
        assert!(request(&line).contains(r#""key":"00000000-0000-0000-0000-00000abc0005""#), "{line:?}");
    }

    #[test]
    fn finished_tasks_are_passed_over_unless_all_are_wanted() {
        let dead = TASK.replace("scheduled", "dead");
        assert!(matches!(Choice::new(false, false).of(&dead), Line::Finished));
        request(&Choice::new(false, true).of(&dead));
        request(&Choice::new(false, false).of(&TASK.replace("scheduled", "delivered")));
    }

    #[test]
    fn what_was_refused_before_is_tried_as_it_was() {
        let mut choice = Choice::new(false, false);
        let kept = refused(7, &Problem::too_many("no"), &format!("{TASK}\n")).expect("JSON");
        assert!(kept.contains(TASK), "byte for byte: {kept}");
        assert_eq!(
            refused(8, &Problem::too_many("no"), &kept).expect("JSON"),
            kept.replace("\"line\":7", "\"line\":8")
        );
        let line = choice.of(&kept);
        assert_eq!(request(&line), request(&Choice::new(false, false).of(TASK)));
        assert!(choice.was_refused_before());
    }

    #[test]
    fn what_cannot_be_submitted_is_refused_with_the_reason() {
        let mut choice = Choice::new(false, false);
        let envelope = TASK.replacen('{', r#"{"envelope":{"exchange":"e","routing_key":"k","properties":{}},"#, 1);
        for (text, why) in
            [(envelope.as_str(), "delay exchange"), ("{", "not an exported task"), ("7", "not an exported task")]
        {
            let Line::Refused(problem) = choice.of(text) else { panic!("{text}") };
            assert!(problem.detail.contains(why), "{problem}");
        }
        assert!(matches!(choice.of(" \n"), Line::Blank));
        assert!(matches!(choice.of("{\"exported\":7}\n"), Line::End(ExportEnd { exported: 7 })));
    }
}
