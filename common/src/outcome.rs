//! The outcome of a remote call.

/// Three outcomes, not two: a remote call was done, was certainly refused, or its result is unknown. The caller never
/// guesses at `Unknown`: it leaves the affected rows as they are and looks at them again later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T, R = String> {
    Done(T),
    Refused(R),
    Unknown(String),
}
