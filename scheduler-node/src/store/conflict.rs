//! Statements whose rows are new in all likelihood, and may exist already.
//!
//! With `ON CONFLICT DO NOTHING`, PostgreSQL looks each row up in the index before it inserts it, takes a lock for it
//! and writes a further record into its log. So such a statement first runs without the clause. If a row exists, that
//! changes nothing, and the statement runs as it stands in its file.

/// The text of a statement without its clause for rows that exist. It lives as long as the process, so make it once.
///
/// # Panics
///
/// If the statement does not have the clause exactly once.
pub(super) fn without(clause: &str, text: &'static str) -> &'static str {
    assert_eq!(text.matches(clause).count(), 1, "a statement has \"{clause}\"");
    text.replace(clause, "").leak()
}

/// The clause for tasks that have ended before.
pub(super) const EARLIER_END: &str = "ON CONFLICT (drop_on, id) DO NOTHING";

/// Runs `new`, the statement without its clause, and then `whole` if a row exists.
pub(super) async fn new_first<T, F>(
    new: &'static str,
    whole: &'static str,
    run: impl Fn(&'static str) -> F,
) -> Result<T, sqlx::Error>
where
    F: Future<Output = Result<T, sqlx::Error>>,
{
    match run(new).await {
        Err(error) if row_exists(&error) => run(whole).await,
        done => done,
    }
}

/// Whether a statement failed because a row exists already. It was rolled back.
pub(super) fn row_exists(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(answer) if answer.is_unique_violation())
}
