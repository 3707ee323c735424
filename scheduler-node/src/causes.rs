//! An error with its causes, for a person who reads one line.

/// Joins an error and its causes with colons. Many libraries' errors repeat their own causes; each is written once.
pub fn explained(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") })
}
