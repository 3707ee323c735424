//! Notices when something begins to fail and when it works again. The log then has a line for each of the two, and none
//! for the failures in between.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Failures and successes alternate where one of two databases is away, or one of two rows is locked. Failures are over
/// when none has come for this long, where nothing else is said.
const OVER_AFTER: Duration = Duration::from_secs(10);

/// The time of the last failure. Clones share it.
#[derive(Clone, Debug)]
pub struct Failures {
    over_after: Duration,
    last: Arc<Mutex<Option<Instant>>>,
}

impl Default for Failures {
    fn default() -> Self {
        Self::over_after(OVER_AFTER)
    }
}

impl Failures {
    /// Failures that are over when none has come for so long. What is tried at longer intervals needs more than the
    /// default.
    pub fn over_after(over_after: Duration) -> Self {
        Self { over_after, last: Arc::default() }
    }

    /// Notes a failure. Returns whether it is the first.
    pub fn begin(&self) -> bool {
        let now = Instant::now();
        self.last.lock().replace(now).is_none_or(|last| now - last >= self.over_after)
    }

    /// Notes a success. Returns whether earlier failures are over, the first time.
    pub fn end(&self) -> bool {
        self.last.lock().take_if(|last| last.elapsed() >= self.over_after).is_some()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{io, sync::OnceLock};

    use tracing::subscriber::DefaultGuard;
    use tracing_subscriber::EnvFilter;

    use super::*;

    /// Keeps what this crate logs on the thread of a test.
    pub(crate) struct Log {
        text: Text,
        _guard: DefaultGuard,
    }

    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Text {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(text);
            Ok(text.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        pub(crate) fn keep() -> Self {
            let text = Text::default();
            let writer = text.clone();
            let log = tracing_subscriber::fmt()
                .with_env_filter(EnvFilter::new("scheduler_node=debug"))
                .with_ansi(false)
                .with_writer(move || writer.clone());
            // While there is one log only, `tracing` asks the thread that comes to a line first whether it is wanted,
            // which may be that of a test without a log.
            static OTHER: OnceLock<tracing::Dispatch> = OnceLock::new();
            OTHER.get_or_init(|| tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default()));
            Self { text, _guard: tracing::subscriber::set_default(log.finish()) }
        }

        /// The number of lines that have this text.
        pub(crate) fn count(&self, text: &str) -> usize {
            String::from_utf8_lossy(&self.text.0.lock()).lines().filter(|line| line.contains(text)).count()
        }

        /// The length of the longest line, in bytes.
        pub(crate) fn longest(&self) -> usize {
            self.text.0.lock().split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap_or(0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_failure_counts_and_so_does_the_first_success_after_the_last_failure() {
        let failures = Failures::default();
        assert!(!failures.end(), "nothing has failed");
        assert!(failures.begin());
        for _ in 0..5 {
            tokio::time::advance(OVER_AFTER / 2).await;
            assert!(!failures.end() && !failures.begin(), "they alternate");
        }
        tokio::time::advance(OVER_AFTER).await;
        assert!(failures.end());
        assert!(!failures.end() && failures.begin(), "the next ones count anew");
        tokio::time::advance(OVER_AFTER).await;
        assert!(failures.begin(), "nothing was tried in between");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_at_long_intervals_is_over_later() {
        let failures = Failures::over_after(OVER_AFTER * 10);
        assert!(failures.begin());
        tokio::time::advance(OVER_AFTER * 9).await;
        assert!(!failures.end() && !failures.begin(), "the next one was to come only now");
        tokio::time::advance(OVER_AFTER * 10).await;
        assert!(failures.end());
    }
}
