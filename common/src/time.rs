//! Moments, in PostgreSQL's form: microseconds since 1970, UTC. `common` never reads a clock; a moment is an
//! argument.

use std::{fmt, time::Duration};

use chrono::{DateTime, Datelike, SecondsFormat, Timelike, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A moment in microseconds since 1970, UTC. In JSON: RFC 3339 with microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMicros(i64);

impl UnixMicros {
    /// The first moment of the year 0, the earliest that RFC 3339 can write. PostgreSQL can keep it too.
    pub const FIRST: Self = Self(-62_167_219_200_000_000);

    /// 9999-12-31T23:59:59Z, the latest that RFC 3339 can write, and far inside PostgreSQL's range.
    pub const LAST: Self = Self(253_402_300_799_000_000);

    pub const fn new(micros: i64) -> Self {
        Self(micros)
    }

    /// Converts Unix milliseconds. `None` when they do not fit.
    pub const fn from_millis(millis: i64) -> Option<Self> {
        match millis.checked_mul(1_000) {
            Some(micros) => Some(Self(micros)),
            None => None,
        }
    }

    pub const fn micros(self) -> i64 {
        self.0
    }

    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }

    /// This moment plus `by`, at most [`Self::LAST`].
    pub fn plus(self, by: Duration) -> Self {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(micros)).min(Self::LAST)
    }

    pub fn minus(self, by: Duration) -> Self {
        let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
        Self(self.0.saturating_sub(micros))
    }

    /// This moment shifted by so many milliseconds (a negative number is earlier), at most [`Self::LAST`].
    pub fn shifted(self, by_ms: i64) -> Self {
        Self(self.0.saturating_add(by_ms.saturating_mul(1_000))).min(Self::LAST)
    }

    /// The time since `earlier`, or zero when `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Whether RFC 3339 can write it: the years 0 to 9999.
    pub fn is_writable(&self) -> bool {
        (Self::FIRST..=Self::LAST).contains(self)
    }

    pub fn to_utc(self) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.0).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// The RFC 3339 text of a moment that [is writable](Self::is_writable). Every answer about a task has some, and
    /// chrono makes a `String` for each.
    fn text(self) -> [u8; 27] {
        let moment = self.to_utc().naive_utc();
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        for (begin, digits, mut number) in [
            (0, 4, moment.year().unsigned_abs()),
            (5, 2, moment.month()),
            (8, 2, moment.day()),
            (11, 2, moment.hour()),
            (14, 2, moment.minute()),
            (17, 2, moment.second()),
            (20, 6, moment.nanosecond() / 1_000),
        ] {
            for digit in text[begin..begin + digits].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        text
    }
}

/// The present time of a clock that is read from afar: it lies between two moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// What is due by this moment is certainly due.
    pub earliest: UnixMicros,
    /// A delay that counts from this moment is never too short.
    pub latest: UnixMicros,
}

impl Present {
    pub const fn exactly(now: UnixMicros) -> Self {
        Self { earliest: now, latest: now }
    }
}

impl From<DateTime<Utc>> for UnixMicros {
    fn from(moment: DateTime<Utc>) -> Self {
        Self(moment.timestamp_micros())
    }
}

impl fmt::Display for UnixMicros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_writable() {
            f.write_str(std::str::from_utf8(&self.text()).expect("digits and signs of ASCII"))
        } else {
            f.write_str(&self.to_utc().to_rfc3339_opts(SecondsFormat::Micros, true))
        }
    }
}

impl Serialize for UnixMicros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

const OUTSIDE: &str = "the time is before 0000-01-01T00:00:00Z or after 9999-12-31T23:59:59Z";

/// Reads RFC 3339 text or integer Unix milliseconds, the two forms requests may use.
impl<'de> Deserialize<'de> for UnixMicros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = UnixMicros;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an RFC 3339 time or integer Unix milliseconds")
            }

            fn visit_i64<E: serde::de::Error>(self, millis: i64) -> Result<UnixMicros, E> {
                UnixMicros::from_millis(millis).filter(UnixMicros::is_writable).ok_or_else(|| E::custom(OUTSIDE))
            }

            fn visit_u64<E: serde::de::Error>(self, millis: u64) -> Result<UnixMicros, E> {
                let millis = i64::try_from(millis).map_err(|_| E::custom(OUTSIDE))?;
                self.visit_i64(millis)
            }

            fn visit_f64<E: serde::de::Error>(self, millis: f64) -> Result<UnixMicros, E> {
                // JSON has one kind of number: `1900000000000.0` is whole too.
                let whole = millis.fract() == 0.0 && millis.abs() < 1e15;
                if whole { self.visit_i64(millis as i64) } else { Err(E::custom(OUTSIDE)) }
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<UnixMicros, E> {
                DateTime::parse_from_rfc3339(text)
                    .map_err(|error| E::custom(format!("`{text}` is not an RFC 3339 time: {error}")))
                    .map(|moment| UnixMicros::from(moment.to_utc()))
                    .and_then(|moment| if moment.is_writable() { Ok(moment) } else { Err(E::custom(OUTSIDE)) })
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const YEAR: i64 = 366 * 86_400 * 1_000_000;

    fn read(json: &str) -> Result<UnixMicros, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_moment_is_read_as_text_or_milliseconds_and_written_with_microseconds() {
        let moment = read("\"2023-11-14T23:13:21.000005+01:00\"").unwrap();
        assert_eq!(moment, UnixMicros::new(1_700_000_001_000_005));
        assert_eq!(serde_json::to_string(&moment).unwrap(), "\"2023-11-14T22:13:21.000005Z\"");
        assert_eq!(read("1700000001000").unwrap().millis(), 1_700_000_001_000);
        assert_eq!(UnixMicros::LAST.to_string(), "9999-12-31T23:59:59.000000Z");
        assert_eq!(UnixMicros::FIRST.to_string(), "0000-01-01T00:00:00.000000Z");
    }

    proptest! {
        #[test]
        fn a_moment_is_written_as_chrono_writes_it(micros in UnixMicros::FIRST.0 - YEAR..=UnixMicros::LAST.0 + YEAR) {
            let moment = UnixMicros::new(micros);
            prop_assert_eq!(moment.to_string(), moment.to_utc().to_rfc3339_opts(SecondsFormat::Micros, true));
        }
    }

    #[test]
    fn what_cannot_be_written_is_not_read() {
        let texts = [
            "\"0000-01-01T00:00:00+01:00\"",
            "\"9999-12-31T23:59:59-01:00\"",
            "\"9999-12-31T23:59:59.5Z\"",
            "253402300800000",
            "-62167219200001",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
        ];
        for text in texts {
            assert!(read(text).unwrap_err().contains(OUTSIDE), "{text}");
        }
        for text in ["\"\"", "\"1700000001000\"", "\"2023-11-14\"", "1.5", "null", "true"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        let (early, late) = (UnixMicros::new(i64::MIN), UnixMicros::LAST);
        assert_eq!(late.plus(Duration::MAX), UnixMicros::LAST);
        assert_eq!(early.minus(Duration::MAX), early);
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(UnixMicros::new(-1).millis(), -1);
        assert_eq!(UnixMicros::from_millis(i64::MAX), None);
    }
}
