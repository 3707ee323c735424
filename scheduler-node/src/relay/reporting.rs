//! Sends a report again and again until it is confirmed or refused.
//!
//! A try without the right to report costs the broker a channel, and only a person can grant the right. So these tries
//! become rarer, until a report goes through.

use std::{sync::Arc, time::Duration};

use common::{outcome::Outcome, task::report::ResultBody};
use tokio::sync::watch;

use super::works::Key;
use crate::broker::{ReportRefusal, Reports, Subject};

/// The pause between two tries of a report.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest pause while the right to report is missing: once it is granted, it is noticed within this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whether the right to report was missing at the last try. All reports of a relay share it.
pub(super) type RightMissing = Arc<watch::Sender<bool>>;

/// Sends a report over the present connection, again and again until it is confirmed (`true`) or refused.
pub(super) async fn answer(
    key: Key,
    subject: Subject,
    report: ResultBody,
    reports: watch::Receiver<Option<Reports>>,
    right_missing: RightMissing,
) -> (Key, bool) {
    let (mut is_logged, mut pause) = (false, AGAIN);
    loop {
        let current = reports.borrow().clone();
        let sent = match current {
            Some(current) => current.send(&subject, &report).await,
            None => Outcome::Unknown("there is no connection".to_owned()),
        };
        let lacks_right = matches!(sent, Outcome::Refused(ReportRefusal::OfAll(_)));
        let reason = match sent {
            Outcome::Done(()) => {
                if note_right(&right_missing) {
                    tracing::info!("the relay has the right to report again");
                }
                return (key, true);
            }
            Outcome::Refused(ReportRefusal::OfReport(reason)) => {
                tracing::warn!(
                    task = key.task,
                    attempt = key.attempt,
                    reason,
                    "a report is refused; its message is rejected"
                );
                return (key, false);
            }
            Outcome::Refused(ReportRefusal::OfAll(reason)) | Outcome::Unknown(reason) => reason,
        };
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!(task = key.task, attempt = key.attempt, reason, "a report is unconfirmed; retrying");
        }
        if lacks_right {
            right_missing.send_if_modified(|is_missing| !std::mem::replace(is_missing, true));
            pause = pause_without_right(pause, &right_missing).await;
        } else {
            tokio::time::sleep(AGAIN).await;
            pause = AGAIN;
        }
    }
}

/// Notes that the relay may report, so that reports that wait for the right are tried soon. Returns whether it was
/// missing.
pub(super) fn note_right(right_missing: &watch::Sender<bool>) -> bool {
    right_missing.send_if_modified(std::mem::take)
}

/// Waits for `pause`, or for [`AGAIN`] if another report goes through meanwhile. Returns the next pause.
async fn pause_without_right(pause: Duration, right_missing: &watch::Sender<bool>) -> Duration {
    tokio::time::sleep(AGAIN).await;
    let mut right_missing = right_missing.subscribe();
    let is_over = right_missing.wait_for(|is_missing| !is_missing);
    match tokio::time::timeout(pause.saturating_sub(AGAIN), is_over).await {
        Ok(_) => AGAIN,
        Err(_) => (pause * 2).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tries_without_the_right_to_report_become_rarer_until_a_report_goes_through() {
        let right_missing = watch::channel(true).0;
        let (mut pause, mut waits) = (AGAIN, Vec::new());
        for _ in 0..7 {
            let began = Instant::now();
            pause = pause_without_right(pause, &right_missing).await;
            waits.push(began.elapsed().as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        let began = Instant::now();
        let granted = async {
            tokio::time::sleep(AGAIN * 3).await;
            assert!(note_right(&right_missing));
        };
        let (next, ()) = tokio::join!(pause_without_right(pause, &right_missing), granted);
        assert_eq!((next, began.elapsed().as_secs()), (AGAIN, 3));
        assert!(!note_right(&right_missing), "it is over");
    }
}
