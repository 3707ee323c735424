//! Changes by a caller who saw a state before: they are refused once another state is stored.

use common::{time::UnixMicros, wire::Problem};

pub(crate) use crate::store::rows::Seen;

/// The field of a problem that says that the caller saw another state.
pub(crate) const SEEN: &str = "seen";

/// The state that a caller has seen. A stored state that is just what they ask for, last changed at `own`, counts as
/// seen: their own change may have come through without an answer, and a repetition finishes it.
pub(super) fn or_own(seen: Option<Seen>, own: Option<UnixMicros>) -> Option<Seen> {
    seen.map(|seen| own.map_or(seen, Seen::Changed))
}

/// Refuses a change of `what` by a caller who saw another state than the stored one. `stored` is when that was last
/// changed; `None`: nothing is stored.
pub(super) fn check(seen: Option<Seen>, stored: Option<UnixMicros>, what: &str) -> Result<(), Problem> {
    let stored = stored.map_or(Seen::Absent, Seen::Changed);
    let Some(seen) = seen.filter(|seen| *seen != stored) else { return Ok(()) };
    let (deed, outcome) = match (seen, stored) {
        (_, Seen::Absent) => ("deleted", "creates it anew"),
        (Seen::Absent, Seen::Changed(_)) => ("created", "replaces what is stored"),
        (Seen::Changed(_), Seen::Changed(_)) => ("changed", "replaces what is stored"),
    };
    let detail =
        format!("the {what} was {deed} after this form was opened, so nothing was saved; saving it again {outcome}");
    Err(Problem { field: Some(SEEN.into()), ..Problem::conflict(detail) })
}
