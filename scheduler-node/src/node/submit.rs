//! What routes tasks to their databases: the submitter, schedules, messages and reports.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Crews, DatabaseLoops, Shared};
use crate::{
    audit::Audit,
    intake::amqp::AmqpIntake,
    loops::{
        cluster::elector::Mastership,
        submit::{firer::Firer, submitter::Submitter},
    },
    supervise::LoopKind,
};

impl Shared {
    pub(super) fn submitter(&self) -> Submitter {
        Submitter::new(
            self.databases.clone(),
            Arc::clone(&self.books),
            self.fitness.subscribe(),
            self.config.scheduler.horizon(),
        )
    }

    /// Starts the loops that route tasks, after those of the databases.
    pub(super) fn route(
        &self,
        crews: &mut Crews,
        loops: &DatabaseLoops,
        mastership: watch::Receiver<Mastership>,
        audit: Audit,
    ) {
        let reporting = loops.reporter.clone().run(loops.broker.incoming(), self.stop.work.clone());
        crews.work.spawn(LoopKind::Reporter, reporting);
        // Schedules submit, so they end with what comes in.
        let firer = Firer::new(
            self.store.clone(),
            loops.submitter.clone(),
            Arc::clone(&self.books),
            mastership,
            self.fitness.subscribe(),
            Arc::clone(&self.metrics),
            self.set_aside.clone(),
        );
        crews.intake.spawn(LoopKind::Firer, firer.run(self.stop.intake.clone()));
        let amqp_intake = AmqpIntake {
            desk: loops.desk.clone(),
            broker: loops.broker.clone(),
            store: self.store.clone(),
            delay_rules: self.delay_rules.clone(),
            default_exchange: self.config.amqp.default_exchange,
            audit,
            metrics: Arc::clone(&self.metrics),
            set_aside: self.set_aside.clone(),
            returned: Default::default(),
            unfit: Default::default(),
        };
        let received = loops.broker.received();
        crews.intake.spawn(LoopKind::AmqpIntake, amqp_intake.run(received, self.stop.intake.clone()));
    }
}
