//! The instants of a plan, and the clock that gives out each task at its own.

use std::time::Duration;

use integration_tests::clock::now_us;
use tokio::{sync::mpsc, time::Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub number: u64,
    pub due_us: i64,
}

impl Task {
    /// JSON of the length that was asked for: first the due instant, then the number.
    pub(crate) fn payload(self, bytes: usize) -> String {
        let bare = format!("{{\"t\":{},\"n\":{},\"x\":\"\"}}", self.due_us, self.number);
        let fill = "x".repeat(bytes.saturating_sub(bare.len()));
        format!("{{\"t\":{},\"n\":{},\"x\":\"{fill}\"}}", self.due_us, self.number)
    }
}

/// `count` tasks from `first` on, all due at one instant.
pub(crate) fn due_at(due_us: i64, first: u64, count: u64) -> Vec<Task> {
    (first..first + count).map(|number| Task { number, due_us }).collect()
}

/// Evenly spread tasks, the first due `ahead` from now, in whole milliseconds.
pub(crate) fn evenly(ahead: Duration, per_second: u64, count: u64) -> Vec<Task> {
    let (from_us, per_second) = (now_us() + micros(ahead), per_second.max(1));
    let due_us = |number: u64| whole_ms(from_us + i64::try_from(number * 1_000_000 / per_second).unwrap_or(i64::MAX));
    (0..count).map(|number| Task { number, due_us: due_us(number) }).collect()
}

/// The instant `ahead` from now, in whole milliseconds, which all peers can name.
pub(crate) fn instant_in(ahead: Duration) -> i64 {
    whole_ms(now_us() + micros(ahead))
}

pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

fn whole_ms(us: i64) -> i64 {
    us.div_euclid(1_000) * 1_000
}

/// The tokio instant of a wall-clock instant.
pub(crate) fn instant_of(us: i64) -> Instant {
    Instant::now() + Duration::from_micros(u64::try_from(us - now_us()).unwrap_or(0))
}

/// Gives out each task when it is `lead` before its instant. A thread of its own sleeps until then: the runtime's
/// clock counts whole milliseconds.
pub(crate) fn at_their_instants(tasks: Vec<Task>, lead: Duration) -> mpsc::Receiver<Vec<Task>> {
    let (sender, receiver) = mpsc::channel(tasks.len().max(1));
    std::thread::spawn(move || {
        let mut rest = &tasks[..];
        while let Some(next) = rest.first() {
            let wait_us = next.due_us - micros(lead) - now_us();
            if let Ok(wait_us @ 1..) = u64::try_from(wait_us) {
                std::thread::sleep(Duration::from_micros(wait_us));
            }
            let until_us = now_us() + micros(lead);
            let (now, later) = rest.split_at(rest.partition_point(|task| task.due_us <= until_us));
            rest = later;
            if !now.is_empty() && sender.blocking_send(now.to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_length_that_was_asked_for_and_is_json() {
        let task = Task { number: 17, due_us: 1_700_000_000_000_000 };
        assert_eq!(task.payload(80).len(), 80);
        assert!(serde_json::from_str::<serde_json::Value>(&task.payload(0)).is_ok(), "what must be in it is in it");
    }
}
