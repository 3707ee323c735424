//! Moments and durations, as people write and read them.

use std::time::Duration;

use chrono::SecondsFormat;
use common::time::UnixMicros;

/// Parses `30s`, `5m`, `1h 30m`, `2days`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30s, 5m, 2h or 1day"))
}

/// Parses a duration into whole milliseconds, the unit of requests.
pub(super) fn duration_ms(text: &str) -> Result<i64, String> {
    i64::try_from(duration(text)?.as_millis()).map_err(|_| "the duration is too long".to_owned())
}

/// Parses RFC 3339 or Unix milliseconds.
pub(super) fn moment(text: &str) -> Result<UnixMicros, String> {
    let json = match text.parse::<i64>() {
        Ok(millis) => serde_json::Value::from(millis),
        Err(_) => serde_json::Value::from(text),
    };
    serde_json::from_value(json)
        .map_err(|error| format!("{error}; write it like 2030-01-31T09:00:00Z or as Unix milliseconds"))
}

/// The moment, and its distance from `now`.
pub(super) fn shown(moment: UnixMicros, now: UnixMicros) -> String {
    let text = moment.to_utc().to_rfc3339_opts(SecondsFormat::Millis, true);
    format!("{text} ({})", distance(moment, now))
}

/// `in 3 m`, `2 h ago`.
pub(super) fn distance(moment: UnixMicros, now: UnixMicros) -> String {
    if moment > now { format!("in {}", span(moment.since(now))) } else { format!("{} ago", span(now.since(moment))) }
}

/// A duration in the largest unit of which it has about two or more, rounded; below that in milliseconds. So a delay of
/// two hours is shown as that, although some time has passed since it began.
pub(super) fn span(length: Duration) -> String {
    const UNITS: [(u128, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let ms = length.as_millis();
    match UNITS.into_iter().find(|(unit_ms, _)| ms + ms / 100 >= 2 * unit_ms) {
        Some((unit_ms, name)) => format!("{} {name}", (ms + unit_ms / 2) / unit_ms),
        None => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read_as_people_write_them() {
        assert_eq!(duration_ms("30m"), Ok(1_800_000));
        assert_eq!(duration_ms("1h 30m"), Ok(5_400_000));
        assert_eq!(duration_ms("250ms"), Ok(250));
        for text in ["", "soon", "-5m", "30", "1e3s"] {
            assert!(duration_ms(text).is_err_and(|error| error.contains("write it like")), "{text}");
        }
    }

    #[test]
    fn moments_are_read_in_both_forms() {
        assert_eq!(moment("2023-11-14T23:13:21+01:00"), Ok(UnixMicros::new(1_700_000_001_000_000)));
        assert_eq!(moment("1700000001000"), Ok(UnixMicros::new(1_700_000_001_000_000)));
        assert!(moment("tomorrow").is_err_and(|error| error.contains("2030-01-31")));
    }

    #[test]
    fn a_moment_is_shown_with_its_distance() {
        let now = UnixMicros::new(1_700_000_000_000_000);
        let at = |seconds: i64| shown(UnixMicros::new(now.micros() + seconds * 1_000_000), now);
        assert_eq!(at(180), "2023-11-14T22:16:20.000Z (in 3 m)");
        assert_eq!(at(-7_300), "2023-11-14T20:11:40.000Z (2 h ago)");
        assert_eq!(at(110), "2023-11-14T22:15:10.000Z (in 110 s)");
        assert_eq!(at(119), "2023-11-14T22:15:19.000Z (in 2 m)");
        assert_eq!(at(0), "2023-11-14T22:13:20.000Z (0 ms ago)");
        assert_eq!(span(Duration::from_secs(200_000)), "2 d");
        assert_eq!(
            [1_970, 1_799_900, 3_599_000, 7_199_400].map(|ms| span(Duration::from_millis(ms))),
            ["1970 ms", "30 m", "60 m", "2 h"]
        );
    }
}
