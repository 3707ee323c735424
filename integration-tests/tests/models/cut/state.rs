//! What the model of a shard's move consists of.

/// Nodes that may own the shard in its source, one after the other.
pub(super) const MOVERS: usize = 2;
/// The most epochs of the source.
pub(super) const EPOCHS: u8 = 3;
/// The most writes of one mover.
pub(super) const WRITES: u8 = 3;

/// The row of one task: a value that a writer has given it. `None`: it was cancelled.
pub(super) type Row = Option<u8>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Status {
    Absent,
    Here,
    Leaving,
    Gone,
    Arriving,
}

/// A transaction that changes the task in the source, or cancels it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Writer {
    Idle,
    /// It has written and holds the row; the gate has let it pass, and perhaps noted the change.
    Open {
        is_noted: bool,
    },
    Ended,
}

/// What a mover has read in the source: the row, and the notes that it read with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Reading {
    pub(super) row: Row,
    pub(super) notes: u8,
    /// A page of the copy; else the rows of a round.
    pub(super) is_page: bool,
}

/// A write into the target that is on its way. It may be executed long after its mover has given up on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Write {
    pub(super) mover: usize,
    pub(super) epoch: u8,
    pub(super) number: u8,
    pub(super) reading: Reading,
    pub(super) is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    Idle,
    Read(Reading),
    Writing,
    /// The target has what was read; the notes are still to be forgotten.
    Written(u8),
    /// Opens the target under this epoch; the answer has not come.
    Opening(u8),
    /// The target refuses every open so far of the shard that was closed under this epoch.
    Refusing(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Mover {
    /// Its epoch in the source; 0: it does not own the shard.
    pub(super) epoch: u8,
    /// The epoch of its close; 0: it has not closed the shard.
    pub(super) closed: u8,
    pub(super) writes: u8,
    pub(super) is_copied: bool,
    /// It has written the last changes of the closed shard.
    pub(super) is_final: bool,
    pub(super) step: Step,
}

/// A statement that changes a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FenceStep {
    Arrive,
    Leave,
    Close,
    Return,
    /// The end of a copy whose rows are deleted.
    Drop,
}

/// A statement of the first owner that it gives up on, and sends again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Late {
    NotYet,
    /// `is_overtaken`: a later statement of the same owner has changed the fence.
    HeldUp {
        step: FenceStep,
        is_overtaken: bool,
    },
    Executed,
}

/// The end of the move whose fence a statement changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Target,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(super) source: Status,
    pub(super) epoch: u8,
    pub(super) target: Status,
    pub(super) move_epoch: u8,
    pub(super) move_write: u8,
    pub(super) source_row: Row,
    pub(super) target_row: Row,
    /// The changes noted in the source, a bit for each writer.
    pub(super) notes: u8,
    /// The row as it was last committed and answered.
    pub(super) truth: Row,
    pub(super) writers: [Writer; 2],
    pub(super) movers: [Mover; MOVERS],
    pub(super) writes: [Option<Write>; 2],
    /// An open of the target, under this epoch, on whose answer its mover has given up.
    pub(super) late_open: Option<u8>,
    pub(super) late: Late,
    /// The node that owns the shard in the source.
    pub(super) owner: usize,
    pub(super) is_called_off: bool,
    pub(super) call_offs: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A writer changes the row (0) or cancels the task (1).
    Change(usize),
    Commit(usize),
    TakeOver(usize),
    Arrive(usize),
    Leave(usize),
    ReadPage(usize),
    ReadChanges(usize),
    Send(usize),
    /// The write in this place is executed.
    Execute(usize),
    GiveUp(usize),
    Forget(usize),
    Close(usize),
    /// The closed shard has no changes, or none any more.
    LastChanges(usize),
    SendOpen(usize),
    Open(usize),
    GiveUpOpen(usize),
    /// An open that its mover has given up on is executed.
    OpenLate,
    /// The target refuses every open so far, because the closed shard is to open in the source again.
    RefuseOpen(usize),
    Reopen(usize),
    CallOff,
    Return(usize),
    CleanTarget(usize),
    /// The move that was called off has ended, and is asked for again.
    Again,
    /// The first owner gives up on this statement, which is executed later or never.
    HoldUp(FenceStep),
    ExecuteLate,
}

use Status::{Absent, Here};

impl State {
    pub(super) fn first() -> Self {
        let mover = Mover { epoch: 0, closed: 0, writes: 0, is_copied: false, is_final: false, step: Step::Idle };
        Self {
            source: Here,
            epoch: 1,
            target: Absent,
            move_epoch: 0,
            move_write: 0,
            source_row: Some(0),
            target_row: None,
            notes: 0,
            truth: Some(0),
            writers: [Writer::Idle; 2],
            movers: [Mover { epoch: 1, ..mover }, mover],
            writes: [None; 2],
            late_open: None,
            late: Late::NotYet,
            owner: 0,
            is_called_off: false,
            call_offs: 0,
        }
    }

    /// Whether a transaction is open that has written the row.
    pub(super) fn is_written(&self) -> bool {
        self.writers.iter().any(|writer| matches!(writer, Writer::Open { .. }))
    }

    /// The fence at this end has a new number of this mover.
    pub(super) fn overtake(&mut self, mover: usize, end: End) {
        let Late::HeldUp { step, is_overtaken } = &mut self.late else { return };
        let changes = if *step == FenceStep::Drop { End::Target } else { End::Source };
        *is_overtaken |= mover == 0 && end == changes && *step != FenceStep::Arrive;
    }

    pub(super) fn send(&mut self, mover: usize) -> Option<()> {
        let place = self.writes.iter().position(Option::is_none)?;
        let Step::Read(reading) = self.movers[mover].step else { return None };
        self.movers[mover].writes += 1;
        let Mover { epoch, writes: number, .. } = self.movers[mover];
        self.writes[place] = Some(Write { mover, epoch, number, reading, is_awaited: true });
        self.movers[mover].step = Step::Writing;
        Some(())
    }

    pub(super) fn give_up(&mut self, mover: usize) {
        self.movers[mover].step = Step::Idle;
        for write in self.writes.iter_mut().flatten().filter(|write| write.mover == mover) {
            write.is_awaited = false;
        }
    }

    /// A node becomes the owner in the source.
    pub(super) fn take_over(&mut self, node: usize) {
        let is_copied = self.movers.iter().any(|mover| mover.is_copied);
        self.epoch += 1;
        self.owner = node;
        self.give_up(node);
        let mover = &mut self.movers[node];
        *mover = Mover { epoch: self.epoch, closed: 0, is_copied, is_final: false, ..*mover };
    }
}
