//! Queues: set, shown, paused, deleted. They are kept in the first database; their tasks are everywhere.

use std::{collections::BTreeMap, sync::Arc};

use common::{
    ids::QueueName,
    queue::{Placement, QueueBook, QueuePolicy},
    wire::{Problem, QueueRequest, QueueView, queue::Counts},
};

use super::{Desk, refusal::failed, to_its_end};
use crate::store::{Error, rows::QueueRecord};

impl Desk {
    /// Sets a queue's policy. This node acts on it from the answer on, the others within half a second.
    pub async fn queue_put(&self, name: QueueName, request: QueueRequest) -> Result<QueueView, Problem> {
        self.ask_for(&name)?;
        let paused = request.paused;
        let policy = request.into_policy()?;
        let desk = self.clone();
        to_its_end(async move {
            let (_, records) =
                desk.parts().store.home().queue_records(Some(&name)).await.map_err(|error| failed(&error))?;
            let before = records.into_iter().next().map(|record| record.queue.policy);
            desk.refuse_to_leave(before.as_ref(), &policy)?;
            desk.refuse_to_move(&name, before.as_ref(), policy.placement).await?;
            let put =
                desk.parts().store.home().queue_put(&name, &policy, paused).await.map_err(|error| failed(&error))?;
            tracing::info!(queue = %name, created = put.created, paused = put.record.queue.paused, "queue set");
            desk.in_force(put.record).await
        })
        .await
    }

    /// Refuses to lead a queue's tasks elsewhere for whoever may not know of all queues: what is there may be another tenant's.
    fn refuse_to_leave(&self, before: Option<&QueuePolicy>, policy: &QueuePolicy) -> Result<(), Problem> {
        if self.scope.is_all() {
            return Ok(());
        }
        let default = QueuePolicy::default();
        let before = before.unwrap_or(&default);
        let changes = [
            ("exchange", before.exchange != policy.exchange),
            ("routing_key", before.routing_key != policy.routing_key),
            ("use_existing", before.use_existing != policy.use_existing),
        ];
        match changes.into_iter().find(|(_, is_changed)| *is_changed) {
            None => Ok(()),
            Some((field, _)) => {
                let detail =
                    format!("`{field}` leads out of the queues of this token; an operator of all queues sets it");
                Err(Problem { field: Some(field.into()), ..Problem::forbidden(detail) })
            }
        }
    }

    /// Tasks stay on their shards, so those of a queue that is placed anew would be counted and ordered on two sides.
    async fn refuse_to_move(
        &self,
        name: &QueueName,
        before: Option<&QueuePolicy>,
        placement: Placement,
    ) -> Result<(), Problem> {
        let Some(before) = before.filter(|before| before.placement != placement) else { return Ok(()) };
        if self.live(name).await?.total() == 0 {
            return Ok(());
        }
        let now = &before.placement;
        let detail = format!(
            "`placement` is `{now}` and the queue has tasks that are not finished; let them finish or cancel them first,              or set `{placement}` on a new queue"
        );
        Err(Problem::conflict(detail))
    }

    /// Stops or restarts dispatch; what comes due meanwhile waits as `ready`.
    pub async fn queue_pause(&self, name: QueueName, paused: bool) -> Result<QueueView, Problem> {
        self.ask_for(&name)?;
        let desk = self.clone();
        to_its_end(async move {
            let turned = desk.parts().store.home().queue_pause(&name, paused).await.map_err(|error| failed(&error))?;
            let record = turned.ok_or_else(|| no_queue(&name))?;
            tracing::info!(queue = %name, paused, "queue {}", if paused { "paused" } else { "resumed" });
            desk.in_force(record).await
        })
        .await
    }

    pub async fn queue_get(&self, name: QueueName) -> Result<QueueView, Problem> {
        self.ask_for(&name)?;
        let records = self.parts().store.home().queue_records(Some(&name)).await.map_err(|error| failed(&error))?;
        let record = records.1.into_iter().next().ok_or_else(|| no_queue(&name))?;
        let views = self.with_counts(vec![record]).await;
        views.into_iter().next().ok_or_else(|| no_queue(&name))
    }

    /// Every queue that is for whoever asks, by name.
    pub async fn queue_list(&self) -> Result<Vec<QueueView>, Problem> {
        let (_, mut records) = self.parts().store.home().queue_records(None).await.map_err(|error| failed(&error))?;
        records.retain(|record| self.scope.has(&record.queue.name));
        Ok(self.with_counts(records).await)
    }

    /// Forgets a queue that has no task left which is not finished.
    pub async fn queue_delete(&self, name: QueueName) -> Result<(), Problem> {
        self.ask_for(&name)?;
        let desk = self.clone();
        to_its_end(async move {
            let live = desk.live(&name).await?;
            if live.total() > 0 {
                let more = if live.at_least { " or more" } else { "" };
                let detail =
                    format!("the queue has {}{more} tasks that are not finished; cancel them first", live.total());
                return Err(Problem::conflict(detail));
            }
            let home = desk.parts().store.home();
            if !home.queue_delete(&name).await.map_err(|error| failed(&error))? {
                return Err(no_queue(&name));
            }
            tracing::info!(queue = %name, "queue deleted");
            desk.read_anew().await.map_err(|error| failed(&error))
        })
        .await
    }

    /// A queue that was just written: in force on this node before the answer goes out.
    async fn in_force(&self, record: QueueRecord) -> Result<QueueView, Problem> {
        if let Err(error) = self.read_anew().await {
            // It is written; the queues are read again within half a second anyway.
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "a queue was written but cannot be read back at the moment"
            );
        }
        let view = QueueView::of(&record.queue, Counts::default());
        Ok(self.with_counts(vec![record]).await.pop().unwrap_or(view))
    }

    /// Reads the queues into this node's book.
    pub(super) async fn read_anew(&self) -> Result<(), Error> {
        let _alone = self.inner.reading.lock().await;
        self.read_alone().await
    }

    /// Reads the queues because `missing` are not in the book; makes those that are not there at all, where that is done.
    pub(super) async fn look_for(&self, missing: Vec<QueueName>) -> Result<(), Error> {
        let _alone = self.inner.reading.lock().await;
        let book = self.parts().books.load_full();
        // Whoever was here first may have brought them.
        let missing: Vec<QueueName> = missing.into_iter().filter(|queue| book.find(queue).is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        if self.parts().auto_create {
            self.parts().store.home().queue_add(&missing, &QueuePolicy::default()).await?;
        }
        self.read_alone().await
    }

    async fn read_alone(&self) -> Result<(), Error> {
        let (revision, queues) = self.parts().store.home().queue_read().await?;
        self.parts().books.store(Arc::new(QueueBook::new(revision, queues)));
        Ok(())
    }

    /// The unfinished tasks of a queue, over all databases; an error when one cannot be asked.
    async fn live(&self, name: &QueueName) -> Result<Counts, Problem> {
        let names = std::slice::from_ref(name);
        let parts = self.parts().store.databases().iter().map(|database| database.queue_counts(names));
        let counts = futures::future::try_join_all(parts).await.map_err(|error| failed(&error))?;
        Ok(counts.into_iter().filter_map(|mut counts| counts.remove(name)).fold(Counts::default(), sum))
    }

    /// With what each has over all databases; a database that cannot be asked makes it "at least so many".
    async fn with_counts(&self, records: Vec<QueueRecord>) -> Vec<QueueView> {
        let names: Vec<QueueName> = records.iter().map(|record| record.queue.name.clone()).collect();
        let parts = self.parts().store.databases().iter().map(|database| database.queue_counts(&names));
        let mut counts: BTreeMap<QueueName, Counts> = BTreeMap::new();
        for part in futures::future::join_all(parts).await {
            for name in &names {
                let more = match &part {
                    Ok(part) => part.get(name).copied().unwrap_or_default(),
                    Err(_) => Counts { at_least: true, ..Counts::default() },
                };
                let so_far = counts.entry(name.clone()).or_default();
                *so_far = sum(*so_far, more);
            }
        }
        let view = |record: QueueRecord| QueueView {
            created_at: Some(record.created_at),
            updated_at: Some(record.updated_at),
            ..QueueView::of(&record.queue, counts.get(&record.queue.name).copied().unwrap_or_default())
        };
        records.into_iter().map(view).collect()
    }
}

fn sum(one: Counts, other: Counts) -> Counts {
    Counts {
        waiting: one.waiting + other.waiting,
        scheduled: one.scheduled + other.scheduled,
        ready: one.ready + other.ready,
        dispatching: one.dispatching + other.dispatching,
        delivered: one.delivered + other.delivered,
        running: one.running + other.running,
        at_least: one.at_least || other.at_least,
    }
}

fn no_queue(name: &QueueName) -> Problem {
    Problem::not_found(format!("there is no queue `{name}`"))
}
