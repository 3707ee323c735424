//! Output of commands that change something, or run for an hour.

use std::{
    fmt::Display,
    io::{Write, stdout},
};

/// Prints a line. The reader may be gone, as in `make up | head`; what the command has begun, it still ends. `println!`
/// would panic half way.
pub(crate) fn say(line: impl Display) {
    writeln!(stdout(), "{line}").ok();
}
