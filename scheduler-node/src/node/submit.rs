//! The loops that write submissions and make the tasks of schedules.

use std::sync::Arc;

use tokio::sync::watch;

use super::Shared;
use crate::{
    loops::{
        cluster::elector::Mastership,
        dispatch::claim_on_insert::ClaimOnInsert,
        nudger::Nudger,
        outcome::releaser::Releaser,
        submit::{
            firer::Firer,
            keyed_submitter::KeyedSubmitter,
            submitter::{self, Submitter},
        },
    },
    supervise::{Crew, LoopKind},
};

impl Shared {
    pub(super) fn take_in(&self, crew: &mut Crew, claim_on_insert: &ClaimOnInsert, nudger: &Nudger) -> Submitter {
        let (submitter, waiting) = Submitter::new(
            self.databases.clone(),
            Arc::clone(&self.books),
            self.fitness.subscribe(),
            self.store.shard_count(),
            self.config.scheduler.horizon(),
        );
        for ((index, _), jobs) in self.databases.indexed().zip(waiting.jobs) {
            let run = submitter::run(index, jobs, claim_on_insert.clone(), nudger.clone(), self.stop.work.clone());
            crew.spawn(LoopKind::Submitter, run);
        }
        for (database, puts) in self.databases.all().iter().zip(waiting.puts) {
            let keyed_submitter = KeyedSubmitter {
                database: database.clone(),
                books: Arc::clone(&self.books),
                releaser: Releaser { nudger: nudger.clone() },
                metrics: Arc::clone(&self.metrics),
            };
            crew.spawn(LoopKind::KeyedSubmitter, keyed_submitter.run(puts, self.stop.work.clone()));
        }
        submitter
    }

    /// What makes tasks by the calendar. It submits, so it ends with what comes in.
    pub(super) fn fire(&self, crew: &mut Crew, submitter: &Submitter, mastership: watch::Receiver<Mastership>) {
        let firer = Firer::new(
            self.store.clone(),
            submitter.clone(),
            Arc::clone(&self.books),
            mastership,
            self.fitness.subscribe(),
            Arc::clone(&self.metrics),
            self.set_aside.clone(),
        );
        crew.spawn(LoopKind::Firer, firer.run(self.stop.intake.clone()));
    }
}
