//! What can happen next in the model of places.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A look of this node reads this database.
    Read(usize, usize),
    /// It cannot read it.
    Miss(usize, usize),
    Follow(usize),
    Ask(usize),
    /// Takes the fence. `false`: without an answer.
    Take(usize, bool),
    Confirm(usize),
    Drop(usize),
    Release(usize),
    EndRelease(usize),
    Abandon(usize),
    Register(usize),
    /// The fence of this database refuses a claim of this node.
    Refuse(usize, usize),
    Assign,
    LoseLease(usize),
    Crash(usize),
    MoveBack,
    /// The statement that began the first move is executed once more.
    ArriveLate,
    Arrive(usize),
    Leave(usize),
    StopClaims(usize),
    GiveUp(usize),
    Close(usize, bool),
    Open(usize, bool),
    FailToOpen(usize),
    /// The target refuses every open so far of the closed shard.
    RefuseOpen(usize, bool),
    Reopen(usize, bool),
    FinishCut(usize),
    /// The mover finds that it has opened the target without an answer.
    FindOpened(usize),
    /// The mover finds that it has opened the source again without an answer.
    FindReopened(usize),
    /// The next step after the target was opened, or the source again.
    Next(usize),
    EndMove(usize),
}

impl Action {
    /// The node whose mover takes this step.
    pub(super) fn mover(self) -> Option<usize> {
        match self {
            Self::Arrive(at)
            | Self::Leave(at)
            | Self::StopClaims(at)
            | Self::GiveUp(at)
            | Self::Close(at, _)
            | Self::Open(at, _)
            | Self::FailToOpen(at)
            | Self::RefuseOpen(at, _)
            | Self::Reopen(at, _)
            | Self::FinishCut(at)
            | Self::FindOpened(at)
            | Self::FindReopened(at)
            | Self::Next(at)
            | Self::EndMove(at) => Some(at),
            _ => None,
        }
    }

    /// Whether the action need not come.
    pub(super) fn is_fault(self) -> bool {
        matches!(
            self,
            Self::Miss(..)
                | Self::Take(_, false)
                | Self::Assign
                | Self::LoseLease(_)
                | Self::Crash(_)
                | Self::MoveBack
                | Self::ArriveLate
                | Self::GiveUp(_)
                | Self::Close(_, false)
                | Self::Open(_, false)
                | Self::FailToOpen(_)
                | Self::RefuseOpen(_, false)
                | Self::Reopen(_, false)
        )
    }
}
