//! The report that follows from an HTTP answer or from the end of a command.

use std::time::Duration;

use chrono::DateTime;
use serde_json::value::{RawValue, to_raw_value};

use crate::{
    task::report::{ReportStatus, keepable},
    time::UnixMicros,
};

/// The longest pause that a target may ask for. A longer one is taken for a mistake: the queue's policy has its own
/// limits.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);
/// The most bytes of a target's output that are kept. As JSON text, control characters take six times as many bytes,
/// which a report still holds.
pub const MAX_OUTPUT_BYTES: usize = 32 << 10;

/// The two exit codes of `sysexits.h` with a meaning of their own. Every other code is a failed attempt.
const EX_DATAERR: i32 = 65;
const EX_OK: i32 = 0;

/// The result of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOutcome {
    pub status: ReportStatus,
    pub retry_in_ms: Option<i64>,
    /// The target itself works: the next call may succeed.
    pub is_healthy: bool,
}

impl CallOutcome {
    /// The target was not reached, or did not answer in time.
    pub const UNREACHED: Self = Self { status: ReportStatus::Failed, retry_in_ms: None, is_healthy: false };
}

/// Judges an HTTP answer. Redirects are not followed, so they are failures as well.
pub fn of_status(status: u16, retry_after: Option<&str>, now: UnixMicros) -> CallOutcome {
    match status {
        200..=299 => CallOutcome { status: ReportStatus::Succeeded, retry_in_ms: None, is_healthy: true },
        // 410 Gone: the target will not come back.
        410 => CallOutcome { status: ReportStatus::Discard, retry_in_ms: None, is_healthy: true },
        _ => CallOutcome {
            status: ReportStatus::Failed,
            retry_in_ms: retry_after.and_then(|text| retry_in_ms(text, now)),
            is_healthy: status < 500 && status != 429,
        },
    }
}

/// Judges the end of a command. Without a code, a signal ended it.
pub fn of_exit(code: Option<i32>) -> CallOutcome {
    let status = match code {
        Some(EX_OK) => ReportStatus::Succeeded,
        Some(EX_DATAERR) => ReportStatus::Discard,
        _ => ReportStatus::Failed,
    };
    CallOutcome { status, retry_in_ms: None, is_healthy: true }
}

/// Reads `Retry-After`: seconds, or a date. `None` when it is neither, and when it asks for no wait: the report would
/// override the back-off with nothing, and use up all attempts at once.
fn retry_in_ms(text: &str, now: UnixMicros) -> Option<i64> {
    let text = text.trim();
    let wait = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => UnixMicros::from(DateTime::parse_from_rfc2822(text).ok()?.to_utc()).since(now),
    };
    i64::try_from(wait.min(MAX_RETRY_AFTER).as_millis()).ok().filter(|wait_ms| *wait_ms > 0)
}

/// Turns a target's output into the result of a task: JSON unchanged, anything else as text, cut where it is too
/// long.
pub fn result(output: &[u8]) -> Option<Box<RawValue>> {
    if output.trim_ascii().is_empty() {
        return None;
    }
    let json = || keepable(serde_json::from_slice::<Box<RawValue>>(output).ok()?).ok();
    let whole = if output.len() <= MAX_OUTPUT_BYTES { json() } else { None };
    whole.or_else(|| to_raw_value(&text(output, MAX_OUTPUT_BYTES)).ok())
}

/// The beginning of a target's output, for a person to read.
pub fn text(output: &[u8], most_bytes: usize) -> String {
    String::from_utf8_lossy(&output[..output.len().min(most_bytes)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::report::ResultBody;

    const NOW: UnixMicros = UnixMicros::new(1_445_412_420_000_000); // Wed, 21 Oct 2015 07:27:00 GMT

    #[test]
    fn each_status_has_its_meaning() {
        use ReportStatus::{Discard, Failed, Succeeded};
        for (status, report, is_healthy) in [
            (200, Succeeded, true),
            (204, Succeeded, true),
            (302, Failed, true),
            (400, Failed, true),
            (404, Failed, true),
            (410, Discard, true),
            (429, Failed, false),
            (500, Failed, false),
            (503, Failed, false),
        ] {
            assert_eq!(
                of_status(status, None, NOW),
                CallOutcome { status: report, retry_in_ms: None, is_healthy },
                "{status}"
            );
        }
    }

    #[test]
    fn a_pause_that_is_asked_for_is_kept_within_a_day() {
        for (text, wait) in [
            ("7", Some(7_000)),
            (" 5 ", Some(5_000)),
            ("0", None),
            ("Wed, 21 Oct 2015 07:28:00 GMT", Some(60_000)),
            ("Wed, 21 Oct 2015 07:20:00 GMT", None),
            ("18446744073709551615", Some(86_400_000)),
            ("-1", None),
            ("soon", None),
        ] {
            assert_eq!(of_status(503, Some(text), NOW).retry_in_ms, wait, "{text}");
        }
        assert_eq!(of_status(200, Some("7"), NOW).retry_in_ms, None);
    }

    #[test]
    fn each_exit_code_has_its_meaning() {
        use ReportStatus::{Discard, Failed, Succeeded};
        for (code, report) in
            [(Some(0), Succeeded), (Some(65), Discard), (Some(75), Failed), (Some(1), Failed), (None, Failed)]
        {
            assert_eq!(of_exit(code).status, report, "{code:?}");
        }
    }

    #[test]
    fn what_a_target_said_can_always_be_kept() {
        let long = "\u{1}".repeat(2 * MAX_OUTPUT_BYTES);
        let deep = "[".repeat(500) + &"]".repeat(500);
        for (output, result_is) in [
            (&b" {\"a\": 1.0} \n"[..], Some("{\"a\": 1.0}")),
            (b"", None),
            (b" \n", None),
            (b"done", Some("\"done\"")),
            (b"\xff", Some("\"\u{fffd}\"")),
            (br#""\ud800""#, Some(r#""\"\\ud800\"""#)),
        ] {
            assert_eq!(result(output).as_deref().map(RawValue::get), result_is);
        }
        for output in [long.as_bytes(), deep.as_bytes(), b"\0", br#""\u0000""#] {
            let result = result(output).expect("something was said");
            ResultBody::parse(&format!(r#"{{"status":"succeeded","result":{result}}}"#)).expect("a node takes it");
        }
    }
}
