//! Waits for a condition that other tasks make true.

/// Waits until `check` finds something. `changed` begins to listen; what it returns ends with the first notice after
/// that. A `Notify` whose notices go to all listeners is such a source.
pub async fn until<T, N: Future<Output = ()>>(changed: impl Fn() -> N, mut check: impl FnMut() -> Option<T>) -> T {
    loop {
        // Listens before the check: a notice in between would be missed, and the wait would not end.
        let notice = changed();
        if let Some(found) = check() {
            return found;
        }
        notice.await;
    }
}
