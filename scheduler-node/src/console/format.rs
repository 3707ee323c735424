//! Numbers and moments as a person reads them.

use std::time::Duration;

use chrono::SecondsFormat;
use common::{ids::TaskId, time::UnixMicros};

use crate::desk::Census;

/// A moment, exact and relative to now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct When {
    /// For machines.
    pub(super) exact: String,
    /// UTC.
    pub(super) plain: String,
    pub(super) relative: String,
}

pub(super) fn when(moment: UnixMicros, now: UnixMicros) -> When {
    let utc = moment.to_utc();
    let (earlier, later) = (now.since(moment), moment.since(now));
    let relative = match (earlier.as_secs(), later.as_secs()) {
        (0, 0) => "now".to_owned(),
        (0, _) => format!("in {}", span(later)),
        _ => format!("{} ago", span(earlier)),
    };
    When {
        exact: utc.to_rfc3339_opts(SecondsFormat::Micros, true),
        plain: utc.format("%Y-%m-%d %H:%M:%S").to_string(),
        relative,
    }
}

/// A duration in its two largest units.
pub(super) fn span(length: Duration) -> String {
    const UNITS: [(u64, &str); 5] = [(31_557_600, "y"), (86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let seconds = length.as_secs();
    if seconds == 0 {
        return if length.is_zero() { "0 s".to_owned() } else { format!("{} ms", length.as_millis().max(1)) };
    }
    let first = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(UNITS.len() - 1);
    let (unit, name) = UNITS[first];
    let rest = UNITS.get(first + 1).map(|(next, name)| (seconds % unit / next, name)).filter(|(rest, _)| *rest > 0);
    match rest {
        Some((rest, next)) => format!("{} {name} {rest} {next}", seconds / unit),
        None => format!("{} {name}", seconds / unit),
    }
}

/// A count of tasks, marked with `≈` if it is an estimate.
pub(super) fn about(number: i64, census: &Census) -> String {
    let text = count(number, census.counts.at_least);
    if census.estimated { format!("≈ {text}") } else { text }
}

/// With a comma between thousands; `+` means: or more.
pub(super) fn count(number: i64, at_least: bool) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if at_least {
        text.push('+');
    }
    text
}

/// The end of an id. Its beginning is the creation time, which many ids share.
pub(super) fn short(id: TaskId) -> String {
    let text = id.to_string();
    format!("…{}", &text[24..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_two_units_at_most() {
        for (millis, text) in [
            (0, "0 s"),
            (3, "3 ms"),
            (59_999, "59 s"),
            (60_000, "1 min"),
            (3_725_000, "1 h 2 min"),
            (86_400_000, "1 d"),
            (400 * 86_400_000, "1 y 34 d"),
        ] {
            assert_eq!(span(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn moments_lie_before_or_after_now() {
        let now = UnixMicros::new(1_700_000_000_000_000);
        assert_eq!(when(now, now).relative, "now");
        assert_eq!(when(now.shifted(90_000), now).relative, "in 1 min 30 s");
        let past = when(now.shifted(-5_000), now);
        assert_eq!((past.relative.as_str(), past.plain.as_str()), ("5 s ago", "2023-11-14 22:13:15"));
        assert_eq!(when(UnixMicros::LAST, UnixMicros::FIRST).plain, "9999-12-31 23:59:59");
    }

    #[test]
    fn thousands_are_parted() {
        assert_eq!(
            ["0", "999", "1,000+", "12,345,678"],
            [count(0, false), count(999, false), count(1_000, true), count(12_345_678, false)]
                .each_ref()
                .map(String::as_str)
        );
    }
}
