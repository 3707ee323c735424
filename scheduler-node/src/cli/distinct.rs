//! Arguments of the form NAME=VALUE, which name each thing once.

use std::collections::BTreeSet;

use super::error::Error;

/// Refuses a name that is given twice: only one of its values would be sent. `kind`: what the names are of.
pub(super) fn require_distinct<T>(kind: &str, given: &[(String, T)]) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    match given.iter().find(|(name, _)| !seen.insert(name)) {
        Some((twice, _)) => Err(Error::Usage(format!("the {kind} `{twice}` is given twice"))),
        None => Ok(()),
    }
}
