//! The mover (`loops::cluster::mover`): its steps by the fence rows, and the statements of a cut.

use super::{
    Guard, Places,
    action::Action,
    state::{
        Held, State,
        Status::{Arriving, Gone, Here, Leaving},
        Step,
    },
};

impl Places {
    pub(super) fn mover(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let is_fault_possible = state.left.faults > 0;
        match state.nodes[at].step {
            Step::Idle => Self::begin(state, at, actions),
            Step::Stopped { .. } => {
                actions.push(Action::Close(at, true));
                if is_fault_possible {
                    actions.extend([Action::Close(at, false), Action::GiveUp(at)]);
                }
            }
            Step::Closed { .. } | Step::Finishing { .. } => {
                actions.push(Action::Open(at, true));
                if is_fault_possible {
                    actions.extend([Action::Open(at, false), Action::FailToOpen(at)]);
                }
            }
            Step::Refusing { .. } => {
                actions.push(Action::RefuseOpen(at, true));
                if is_fault_possible {
                    actions.push(Action::RefuseOpen(at, false));
                }
            }
            Step::Reopening { .. } => {
                actions.push(Action::Reopen(at, true));
                if is_fault_possible {
                    actions.push(Action::Reopen(at, false));
                }
            }
            _ => actions.push(Action::Next(at)),
        }
    }

    /// `common::shard::next_step`, for an owner of the shard.
    fn begin(state: &State, at: usize, actions: &mut Vec<Action>) {
        let Some(source) = state.source else { return };
        let (here, there) = (state.rows[source], state.rows[1 - source]);
        let [held, held_there] = [source, 1 - source].map(|database| state.nodes[at].held[database]);
        let mine = held.filter(|_| here.owner == Some(at));
        match (here.status, there.status) {
            (Here, Gone) if mine.is_some() => actions.push(Action::Arrive(at)),
            (Here, Arriving) if mine.is_some() => actions.push(Action::Leave(at)),
            (Leaving, Arriving) => match mine {
                Some(held) if held.epoch < here.epoch => actions.push(Action::FindReopened(at)),
                Some(held) if !held.is_draining => actions.push(Action::StopClaims(at)),
                _ => {}
            },
            (Gone, Arriving) if mine.is_some() => actions.push(Action::FinishCut(at)),
            (Gone, Here | Leaving) => {
                if there.status == Here && there.owner == Some(at) && held.is_some() && held_there.is_none() {
                    actions.push(Action::FindOpened(at));
                }
                if held_there.is_some() {
                    actions.push(Action::EndMove(at));
                }
            }
            _ => {}
        }
    }

    pub(super) fn go_on(&self, state: &mut State, at: usize, action: Action) -> Option<()> {
        let source = state.nodes[at].source(state)?;
        let target = 1 - source;
        match action {
            Action::Arrive(at) => {
                debug_assert_eq!(state.rows[source].owner, Some(at));
                Self::turn(state, target, Arriving);
                state.rows[target].move_epoch = state.rows[source].epoch;
            }
            Action::Leave(_) => Self::turn(state, source, Leaving),
            Action::StopClaims(at) => {
                let epoch = Self::fill(state, source)?;
                state.nodes[at].held[source].as_mut()?.is_draining = true;
                state.nodes[at].step = Step::Stopped { epoch };
            }
            Action::FinishCut(at) => {
                let closed = state.rows[source].epoch;
                state.nodes[at].step = match Self::fill(state, source) {
                    Some(epoch) => Step::Finishing { epoch },
                    None if self.has(Guard::UndoRefused) => Step::Refusing { closed },
                    None => return None,
                };
            }
            Action::GiveUp(at) => {
                let Step::Stopped { epoch } = state.nodes[at].step else { return None };
                Self::end_cut(state, at, source, epoch);
            }
            Action::Close(at, is_answered) => Self::close(state, at, source, is_answered)?,
            Action::Open(at, is_answered) => self.open(state, at, source, is_answered)?,
            Action::FailToOpen(at) => {
                state.nodes[at].step = match state.nodes[at].step {
                    Step::Closed { epoch, closed } => Step::Reopening { stopped: Some(epoch), closed },
                    Step::Finishing { epoch } => Step::Refusing { closed: epoch },
                    _ => return None,
                };
            }
            Action::RefuseOpen(at, is_answered) => Self::refuse_open(state, at, source, is_answered)?,
            Action::Reopen(at, is_answered) => Self::reopen(state, at, source, is_answered)?,
            Action::FindReopened(at) => state.nodes[at].held[source] = Some(Held::new(state.rows[source].epoch)),
            Action::FindOpened(at) => state.nodes[at].step = Step::Opened { epoch: state.rows[target].epoch },
            Action::Next(at) => Self::next(state, at, source)?,
            Action::EndMove(_) => state.source = None,
            _ => return None,
        }
        let node = &mut state.nodes[at];
        node.source = (node.step != Step::Idle).then_some(source);
        Some(())
    }

    /// `move_fill.sql`. Returns the epoch under which the caller fills the target.
    fn fill(state: &mut State, source: usize) -> Option<u8> {
        let epoch = state.rows[source].epoch;
        let target = &mut state.rows[1 - source];
        target.move_epoch = target.move_epoch.max(epoch);
        (target.move_epoch == epoch).then_some(epoch)
    }

    /// The cut has not opened the target, as far as the mover knows.
    fn end_cut(state: &mut State, at: usize, source: usize, epoch: u8) {
        state.nodes[at].step = Step::Idle;
        state.nodes[at].resume_claiming(source, epoch);
    }

    fn close(state: &mut State, at: usize, source: usize, is_answered: bool) -> Option<()> {
        let Step::Stopped { epoch } = state.nodes[at].step else { return None };
        let is_closed = state.rows[source].status == Leaving && state.rows[source].epoch == epoch;
        if is_closed {
            Self::turn(state, source, Gone);
            state.mint(source, epoch + 1);
        }
        if is_closed && is_answered {
            state.nodes[at].step = Step::Closed { epoch, closed: epoch + 1 };
        } else {
            Self::end_cut(state, at, source, epoch);
        }
        Some(())
    }

    fn open(&self, state: &mut State, at: usize, source: usize, is_answered: bool) -> Option<()> {
        let (filled, closed) = match state.nodes[at].step {
            Step::Closed { epoch, closed } => (epoch, closed),
            Step::Finishing { epoch } => (epoch, epoch),
            _ => return None,
        };
        let is_finishing = state.nodes[at].step == Step::Finishing { epoch: filled };
        let target = 1 - source;
        let is_opened = state.rows[target].status == Arriving && state.rows[target].move_epoch == filled;
        if is_opened {
            Self::turn(state, target, Here);
            let before = state.rows[target].epoch;
            let above = if self.has(Guard::OpenAbove) { before.max(closed) } else { before };
            state.mint(target, above + self.opens_above());
            state.rows[target].owner = Some(at);
        }
        if is_opened && is_answered {
            state.nodes[at].step = Step::Opened { epoch: state.rows[target].epoch };
        } else if is_finishing {
            state.nodes[at].step = Step::Idle;
        } else {
            Self::end_cut(state, at, source, filled);
        }
        Some(())
    }

    /// `Work::undo_cut`, the first step: the target is filled under the epoch that the source gets.
    fn refuse_open(state: &mut State, at: usize, source: usize, is_answered: bool) -> Option<()> {
        let Step::Refusing { closed } = state.nodes[at].step else { return None };
        let target = &mut state.rows[1 - source];
        let is_refused = target.status == Arriving && target.move_epoch <= closed + 1;
        if is_refused {
            target.move_epoch = closed + 1;
        }
        let goes_on = is_refused && is_answered;
        state.nodes[at].step = if goes_on { Step::Reopening { stopped: None, closed } } else { Step::Idle };
        Some(())
    }

    fn reopen(state: &mut State, at: usize, source: usize, is_answered: bool) -> Option<()> {
        let Step::Reopening { stopped, closed } = state.nodes[at].step else { return None };
        let row = state.rows[source];
        let is_reopened = row.status == Gone && row.epoch == closed && row.owner == Some(at);
        if is_reopened {
            Self::turn(state, source, Leaving);
            state.mint(source, closed + 1);
        }
        if is_reopened && is_answered {
            state.nodes[at].step = Step::Reopened { epoch: closed + 1 };
        } else if let Some(stopped) = stopped {
            Self::end_cut(state, at, source, stopped);
        } else {
            state.nodes[at].step = Step::Idle;
        }
        Some(())
    }

    /// `Work::take_over`, and what follows a source that was opened again.
    fn next(state: &mut State, at: usize, source: usize) -> Option<()> {
        let target = 1 - source;
        let node = &mut state.nodes[at];
        let step = match node.step {
            Step::Opened { epoch } if node.held[source].is_some() => {
                node.held[target] = Some(Held::new(epoch));
                Step::Adopted { epoch }
            }
            Step::Adopted { epoch } => {
                node.held[source] = None;
                Step::Forgotten { epoch }
            }
            Step::Opened { epoch } | Step::Forgotten { epoch } => {
                Self::moved(state, at, target, epoch);
                Self::register(state, at);
                Step::Idle
            }
            Step::Reopened { epoch } => {
                Self::moved(state, at, source, epoch);
                Step::ReopenedInMap { epoch }
            }
            Step::ReopenedInMap { epoch } => {
                if node.held[source].is_some() {
                    node.held[source] = Some(Held::new(epoch));
                }
                Self::register(state, at);
                Step::Idle
            }
            _ => return None,
        };
        state.nodes[at].step = step;
        Some(())
    }

    /// The owner key comes up to date, unless another node has it.
    fn register(state: &mut State, at: usize) {
        state.key = state.key.or(Some(at));
    }
}
