//! Seeded bugs. Each breaks one rule of the product, and a test must catch it: `make seeded-bugs` tries them all.
//!
//! They exist only in builds with fail points; in any other build the macros below leave the product as it is written.
//! The variable `DUETIME_SEEDED_BUG` chooses one bug by its name, for a test as for a node. A bug stands where its rule
//! stands: as [`seeded!`] in the code, or as an edit of the text of a statement ([`statement!`]).
//!
//! The crate `fail` does not choose the bug: a misspelled name would do nothing there, and look like a bug that no test
//! catches. A process that sets up no fail points, such as that of a unit test, does not read its variable either.

#[cfg(feature = "failpoints")]
mod bug;
#[cfg(feature = "failpoints")]
mod edits;
#[cfg(all(test, feature = "failpoints"))]
mod tests;

#[cfg(feature = "failpoints")]
pub use self::{bug::Bug, edits::statement};

/// Whether this bug is seeded; with a second argument, what the bug does at this place.
#[cfg(feature = "failpoints")]
macro_rules! seeded {
    ($bug:ident) => {
        crate::seeded::Bug::$bug.is_seeded()
    };
    ($bug:ident, $does:expr) => {
        if crate::seeded::Bug::$bug.is_seeded() {
            $does;
        }
    };
}
#[cfg(not(feature = "failpoints"))]
macro_rules! seeded {
    ($bug:ident) => {
        false
    };
    ($bug:ident, $does:expr) => {};
}

/// The text of a statement file that a seeded bug may edit.
#[cfg(feature = "failpoints")]
macro_rules! statement {
    ($name:literal) => {
        crate::seeded::statement(
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/queries/", $name, ".sql")),
        )
    };
}
#[cfg(not(feature = "failpoints"))]
macro_rules! statement {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/queries/", $name, ".sql"))
    };
}
