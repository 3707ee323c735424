//! Where and in which form results, errors and warnings are printed.

use std::{
    io::{self, Write},
    sync::atomic::{AtomicBool, Ordering},
};

use clap::{Args, ValueEnum};

/// The form in which results are printed.
#[derive(Clone, Copy, Debug, Args)]
pub struct Output {
    /// Form of the output.
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text)]
    pub output: Form,
}

/// Output for a person or for a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    Text,
    Json,
    /// One JSON value a line, for lists.
    Jsonl,
}

/// The exit code of a command whose results could not be printed.
pub(super) const UNPRINTED: u8 = 3;

/// Whether the command goes on without a reader.
static GOES_ON: AtomicBool = AtomicBool::new(false);
/// Whether a result could not be printed, although the reader had not closed the pipe.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Makes the command go on when its output cannot be written: it changes something, one step after the other, and must
/// not stop half way because of that.
pub(super) fn go_on_without_reader() {
    GOES_ON.store(true, Ordering::Relaxed);
}

/// Whether results were lost, which [`say`] has told.
pub(super) fn is_lost() -> bool {
    IS_LOST.load(Ordering::Relaxed)
}

/// Prints one line of a result. A command that only reads ends when that fails: well if the reader has closed the pipe.
pub(super) fn say(line: impl std::fmt::Display) {
    let Err(error) = writeln!(io::stdout(), "{line}") else { return };
    let (goes_on, is_closed) = (GOES_ON.load(Ordering::Relaxed), error.kind() == io::ErrorKind::BrokenPipe);
    if !is_closed && !IS_LOST.swap(true, Ordering::Relaxed) {
        complain(format_args!("the output cannot be written: {error}"));
    }
    if !goes_on {
        std::process::exit(if is_closed { 0 } else { UNPRINTED.into() });
    }
}

/// JSON without the line breaks between its parts. Those within its strings are escaped.
pub(super) fn in_one_line(json: &str) -> String {
    json.replace(['\n', '\r'], " ")
}

/// Prints to standard error that part of the operation failed.
pub(super) fn complain(text: impl std::fmt::Display) {
    // Without a reader, the exit code still tells.
    let _ = writeln!(std::io::stderr(), "duetime: {}", printable_lines(&text.to_string()));
}

/// Prints a warning about an operation that succeeded.
pub(super) fn warn(line: impl std::fmt::Display) {
    complain(format_args!("warning: {line}"));
}

/// Escapes control characters, which a terminal would obey. Payloads and messages come from other parties.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Escapes control characters, but leaves a text of several lines its lines.
fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_one_line_means_the_same() {
        assert_eq!(in_one_line("{\r\n\"a\":\n\"b\\n\"}"), "{  \"a\": \"b\\n\"}");
    }

    #[test]
    fn nothing_a_terminal_obeys_gets_through() {
        assert_eq!(printable("a\u{1b}[2Jb\u{9b}c\nd"), "a\\u{1b}[2Jb\\u{9b}c\\nd");
        assert_eq!(printable("größer"), "größer");
        assert_eq!(printable_lines("a\u{1b}[2J\r\n\tb\n"), "a\\u{1b}[2J\\r\n\\tb\n");
    }
}
