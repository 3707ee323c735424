//! Wakes at an instant, accurate to some tens of microseconds.
//!
//! The runtime's own timer counts whole milliseconds and rounds up twice, for the timer and for the poll. That
//! alone would make the median task a millisecond late.

use std::time::Instant;

use crate::clock;
#[cfg(target_os = "linux")]
use fine::Fine;

/// One alarm for one waiter at a time.
#[derive(Debug)]
pub struct Alarm {
    #[cfg(target_os = "linux")]
    fine: Option<Fine>,
}

impl Default for Alarm {
    /// Falls back to the runtime's timer when the system offers no fine timer.
    fn default() -> Self {
        #[cfg(target_os = "linux")]
        let fine = Fine::new()
            .inspect_err(|error| {
                tracing::warn!(%error, "no high-resolution timer; tasks may be published some \
                                                         milliseconds late")
            })
            .ok();
        Self {
            #[cfg(target_os = "linux")]
            fine,
        }
    }
}

impl Alarm {
    /// An alarm on the timer of the runtime, whose time may be virtual.
    #[cfg(test)]
    pub fn of_the_runtime() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            fine: None,
        }
    }

    /// Returns at `instant` or later, never before. The caller may drop the future and call again.
    pub async fn at(&self, instant: Instant) {
        while let Some(rest) = instant.checked_duration_since(clock::instant()).filter(|rest| !rest.is_zero()) {
            #[cfg(target_os = "linux")]
            if let Some(fine) = &self.fine
                && fine.after(rest).await.is_ok()
            {
                continue;
            }
            tokio::time::sleep(rest).await;
        }
    }
}

#[cfg(target_os = "linux")]
mod fine {
    use std::{io, os::fd::OwnedFd, time::Duration};

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::unix::AsyncFd;

    /// A `timerfd(2)` on the monotonic clock.
    #[derive(Debug)]
    pub(super) struct Fine(AsyncFd<OwnedFd>);

    impl Fine {
        pub(super) fn new() -> io::Result<Self> {
            let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
            #[expect(deprecated, reason = "its successor is unsafe; an `OwnedFd` meets its condition: it stays open")]
            Ok(Self(AsyncFd::new(timer)?))
        }

        /// Sets the timer. A new setting discards an earlier one and its expiry, even an unread one.
        pub(super) async fn after(&self, rest: Duration) -> io::Result<()> {
            let once = Timespec::try_from(rest).map_err(io::Error::other)?;
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let timing = Itimerspec { it_interval: never, it_value: once };
            timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::empty(), &timing)?;
            loop {
                let mut ready = self.0.readable().await?;
                let read = ready.try_io(|timer| {
                    let mut expiries = [0; size_of::<u64>()];
                    rustix::io::read(timer.get_ref(), &mut expiries)?;
                    Ok(())
                });
                if let Ok(read) = read {
                    return read;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_is_never_early_and_can_be_set_anew() {
        let alarm = Alarm::default();
        let start = Instant::now();
        for us in [0, 1, 900, 1_100, 2_500] {
            let instant = start + Duration::from_micros(us);
            alarm.at(instant).await;
            assert!(Instant::now() >= instant);
        }
        let late = start + Duration::from_secs(3_600);
        assert!(tokio::time::timeout(Duration::from_millis(5), alarm.at(late)).await.is_err());
        let soon = Instant::now() + Duration::from_millis(2);
        alarm.at(soon).await;
        assert!(Instant::now() >= soon);
    }
}
