//! Broken rules. The simulation must find each of them.

/// A rule that a run breaks on purpose, in the simulated database or broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A message counts as confirmed although the broker has not got it.
    SettledBeforeConfirm,
    /// A claimed task whose outcome is unknown becomes `scheduled` again.
    RevertedOnTimeout,
    /// A claim is admitted whatever epoch it presents.
    NoEpochAtClaim,
    /// A returned message counts as confirmed.
    ReturnTrusted,
    /// Claimed tasks are read neither after a takeover nor later.
    NoSweeper,
    /// A confirm settles whatever attempt is in whatever state.
    BlindSettle,
    /// A claim does not hold the fence, so an acquire does not wait for it.
    ClaimKeptOverTakeover,
    /// A rescue does not mark its copy.
    RescueUnmarked,
    /// The clock of the database is read half a second ahead.
    ClockReadAhead,
    /// A cancel takes a claimed task too.
    CancelInFlight,
    /// A pick starts tasks of a key although one of them is not finished.
    OrderIgnored,
    /// A pick counts no tasks in flight.
    LimitIgnored,
    /// A failed attempt ends the task although others are left.
    DeadWithAttemptsLeft,
}

impl Mutant {
    pub const ALL: [Self; 13] = [
        Self::SettledBeforeConfirm,
        Self::RevertedOnTimeout,
        Self::NoEpochAtClaim,
        Self::ReturnTrusted,
        Self::NoSweeper,
        Self::BlindSettle,
        Self::ClaimKeptOverTakeover,
        Self::RescueUnmarked,
        Self::ClockReadAhead,
        Self::CancelInFlight,
        Self::OrderIgnored,
        Self::LimitIgnored,
        Self::DeadWithAttemptsLeft,
    ];
}
