//! What became of something asked of another machine.

/// Three outcomes, not two: a remote call was done, was certainly refused, or nobody knows. Nobody guesses at `Unknown`:
/// whatever it concerned stays as it was and is looked at again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T, R = String> {
    Done(T),
    Refused(R),
    Unknown(String),
}
