//! The fire times of a schedule: a cron expression in a time zone, or an interval in milliseconds.
//!
//! The wall clock of a time zone skips an hour in spring and repeats one in autumn. An expression that names one
//! moment of the day fires once on both days. If the skipped hour contains that moment, it fires right after that
//! hour. If the repeated hour contains it, it fires in the first of the two. Any other expression follows the clock:
//! skipped times do not fire, and repeated times fire twice. Vixie's cron follows the clock only where the minute or
//! the hour begins with `*`, and does with each moment of a list what is done here with a single one.

use std::{fmt, time::Duration};

use chrono_tz::Tz;
use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use serde::{Deserialize, Serialize};

use crate::{field::FieldError, time::UnixMicros};

/// The longest cron expression; people write shorter ones by hand.
const MAX_CRON_CHARS: usize = 256;

/// The shortest interval. Each fire time takes a few statements, and more than one a second is a stream, not a
/// schedule.
pub(crate) const MIN_EVERY_MS: i64 = 1_000;

/// The longest interval: 366 days.
pub(crate) const MAX_EVERY_MS: i64 = 31_622_400_000;

/// The time zone of an expression without one.
pub(crate) const DEFAULT_TIME_ZONE: &str = "UTC";

/// The names that the parser knows, for the field of the weekday and for that of the month.
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

/// A calendar in its written form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum When {
    /// A cron expression: five fields, or six with seconds first.
    Cron { cron: String, time_zone: String },
    /// The interval counts from 1970-01-01T00:00:00Z, so that the moment of the schedule's creation does not matter.
    Every { every_ms: i64 },
}

/// A calendar that computes its fire times.
#[derive(Clone)]
pub enum Calendar {
    Cron { cron: Box<Cron>, zone: Tz },
    Every { every_us: i64 },
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cron { cron, zone } => write!(f, "{} in {zone}", cron.as_str()),
            Self::Every { every_us } => write!(f, "every {every_us} us"),
        }
    }
}

impl When {
    /// Parses the calendar; the error names the field.
    pub fn calendar(&self) -> Result<Calendar, FieldError> {
        match self {
            Self::Cron { cron, time_zone } => {
                let zone = time_zone.parse().map_err(|_| {
                    let detail = format!("there is no time zone `{time_zone}`; write it like Europe/Berlin");
                    FieldError::new("time_zone", detail)
                })?;
                Ok(Calendar::Cron { cron: Box::new(parsed(cron)?), zone })
            }
            Self::Every { every_ms } => {
                FieldError::within("every_ms", *every_ms, MIN_EVERY_MS, MAX_EVERY_MS)?;
                Ok(Calendar::Every { every_us: every_ms * 1_000 })
            }
        }
    }

    /// Like [`When::calendar`], but refuses a calendar without a fire time after `now`, and one that a former version
    /// took for another: a stored one goes on as it did.
    pub(crate) fn calendar_that_fires(&self, now: UnixMicros) -> Result<Calendar, FieldError> {
        let calendar = self.calendar()?;
        if let Self::Cron { cron, .. } = self {
            check_names(cron)?;
        }
        if calendar.next_after(now).is_none() {
            let Self::Cron { cron, .. } = self else {
                return Err(FieldError::new("every_ms", "`every_ms` reaches past the year 9999"));
            };
            return Err(FieldError::new("cron", format!("`{cron}` never fires: there is no such day")));
        }
        Ok(calendar)
    }
}

fn parsed(text: &str) -> Result<Cron, FieldError> {
    let refuse = |why: String| {
        let form = "five fields (minute hour day month weekday), or six with seconds first";
        FieldError::new("cron", format!("`cron` must be {form}: {why}"))
    };
    if text.chars().count() > MAX_CRON_CHARS {
        return Err(refuse(format!("it may have at most {MAX_CRON_CHARS} characters")));
    }
    // The parser skips an empty item. A field with no other item never matches, and the search for a match takes
    // minutes.
    if text.split_whitespace().any(|field| field.split(',').any(str::is_empty)) {
        return Err(refuse("a list has an empty item".to_owned()));
    }
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let cron = parser.parse(text).map_err(|error| refuse(error.to_string()))?;
    let pattern = &cron.pattern;
    let fields = [&pattern.seconds, &pattern.minutes, &pattern.hours, &pattern.months];
    if fields.iter().any(|field| field.values().is_empty()) {
        Err(refuse("a field has no value".to_owned()))
    } else {
        Ok(cron)
    }
}

/// Refuses names that are no items of their own fields. The parser replaces them in the whole text: it reads `MON` as
/// the month as January.
fn check_names(text: &str) -> Result<(), FieldError> {
    let text = text.trim().to_uppercase();
    if text.starts_with('@') {
        return Ok(());
    }
    let has_name = |text: &str| WEEKDAYS.iter().chain(&MONTHS).any(|name| text.contains(name));
    for (nth_last, field) in text.split_whitespace().rev().enumerate() {
        let names: &[&str] = match nth_last {
            0 => &WEEKDAYS,
            1 => &MONTHS,
            _ => &[],
        };
        // `+MON` asks for the day too, and `FRIL` is the last Friday.
        let is_own =
            |word: &str| names.contains(&word) || word.strip_suffix('L').is_some_and(|day| names.contains(&day));
        for item in field.trim_start_matches('+').split([',', '-']).filter(|item| has_name(item)) {
            let (word, rest) = item.split_at(item.find(['#', '/']).unwrap_or(item.len()));
            if !is_own(word) || has_name(rest) {
                let detail = format!(
                    "`{item}` in the field `{field}` of `cron` is not understood: months may be JAN to DEC in the \
                     field of the month, weekdays SUN to SAT in that of the weekday"
                );
                return Err(FieldError::new("cron", detail));
            }
        }
    }
    Ok(())
}

impl Calendar {
    /// The first fire time after `moment`; `None` when there are no more.
    pub fn next_after(&self, moment: UnixMicros) -> Option<UnixMicros> {
        let next = match self {
            Self::Cron { cron, zone } => {
                let start = moment.to_utc().with_timezone(zone);
                UnixMicros::from(cron.find_next_occurrence(&start, false).ok()?.to_utc())
            }
            Self::Every { every_us } => UnixMicros::new((moment.micros().div_euclid(*every_us) + 1) * every_us),
        };
        Some(next).filter(|next| *next > moment && next.is_writable())
    }

    /// Whether `moment` is a fire time.
    pub(super) fn fires_at(&self, moment: UnixMicros) -> bool {
        self.next_after(moment.minus(Duration::from_micros(1))) == Some(moment)
    }

    /// The next `count` fire times after `moment`.
    pub fn next_times(&self, moment: UnixMicros, count: usize) -> Vec<UnixMicros> {
        std::iter::successors(self.next_after(moment), |last| self.next_after(*last)).take(count).collect()
    }

    /// The last `count` fire times before `moment`, the latest first.
    pub fn last_times(&self, moment: UnixMicros, count: usize) -> Vec<UnixMicros> {
        std::iter::successors(self.last_before(moment), |next| self.last_before(*next)).take(count).collect()
    }

    fn last_before(&self, moment: UnixMicros) -> Option<UnixMicros> {
        let last = match self {
            Self::Cron { cron, zone } => {
                let end = moment.to_utc().with_timezone(zone);
                UnixMicros::from(cron.find_previous_occurrence(&end, false).ok()?.to_utc())
            }
            Self::Every { every_us } => UnixMicros::new((moment.micros() - 1).div_euclid(*every_us) * every_us),
        };
        Some(last).filter(|last| *last < moment)
    }

    /// The cron expression in plain English; `None` where there is none.
    pub fn words(&self) -> Option<String> {
        match self {
            Self::Cron { cron, .. } => Some(cron.describe()),
            Self::Every { .. } => None,
        }
    }

    /// The moment on the clock of the calendar's time zone: `2030-01-31 08:00:00 CET`.
    pub fn on_the_clock(&self, moment: UnixMicros) -> String {
        let zone = match self {
            Self::Cron { zone, .. } => *zone,
            Self::Every { .. } => Tz::UTC,
        };
        moment.to_utc().with_timezone(&zone).format("%Y-%m-%d %H:%M:%S %Z").to_string()
    }
}

#[cfg(test)]
mod tests;
