//! Queues: set, shown, paused, deleted. They are kept in the first database; their tasks are everywhere.

use std::collections::BTreeMap;

use common::{
    ids::QueueName,
    queue::{Placement, QueuePolicy},
    wire::{
        Problem, QueueRequest, QueueView,
        list::MAX_LIMIT,
        queue::{Counts, QueueList, QueuePage},
    },
};

use super::{Desk, refusal::failed, to_its_end};
use crate::{
    loops::queue_reader::catch_up,
    store::{Error, Fault, rows::QueueRecord},
};

pub use crate::store::outlook::Census;

/// Queues read at once for a caller who may know of some only, and how often for one page: some 100 ms.
const READ_AT_ONCE: usize = 1_000;
const READS_A_PAGE: usize = 10;

impl Desk {
    /// Sets a queue's policy. This node acts on it from the answer on, the others within half a second.
    pub async fn queue_put(&self, name: QueueName, request: QueueRequest) -> Result<QueueView, Problem> {
        self.ask_for(&name)?;
        let paused = request.paused;
        let policy = request.into_policy()?;
        let desk = self.clone();
        to_its_end(async move {
            desk.refuse_to_move(&name, policy.placement).await?;
            let put =
                desk.parts().store.home().queue_put(&name, &policy, paused).await.map_err(|error| failed(&error))?;
            tracing::info!(queue = %name, created = put.created, paused = put.record.queue.paused, "queue set");
            desk.in_force(put.record).await
        })
        .await
    }

    /// Tasks stay on their shards, so those of a queue that is placed anew would be counted and ordered on two sides.
    async fn refuse_to_move(&self, name: &QueueName, placement: Placement) -> Result<(), Problem> {
        let record = self.parts().store.home().queue_find(name).await.map_err(|error| failed(&error))?;
        let Some(record) = record.filter(|record| record.queue.policy.placement != placement) else {
            return Ok(());
        };
        if self.live(name).await?.total() == 0 {
            return Ok(());
        }
        let now = &record.queue.policy.placement;
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
        let record = self.parts().store.home().queue_find(&name).await.map_err(|error| failed(&error))?;
        let record = record.ok_or_else(|| no_queue(&name))?;
        let views = self.with_counts(vec![record]).await;
        views.into_iter().next().ok_or_else(|| no_queue(&name))
    }

    /// A page of the queues that are for the caller, by name. It can be short and still have a next one: how many queues are looked at
    /// for one page is bounded.
    pub async fn queue_list(&self, page: &QueuePage) -> Result<QueueList, Problem> {
        page.validate()?;
        let limit = usize::try_from(page.limit()).unwrap_or(usize::MAX);
        let home = self.parts().store.home();
        let (mut records, mut next_cursor) = (Vec::new(), page.cursor.clone());
        for _ in 0..READS_A_PAGE {
            let after = next_cursor.as_deref().unwrap_or_default();
            // All queues: just what is asked for. Some of them: a larger piece at once, as most are not for the caller.
            let most = if self.scope.is_all() { limit } else { READ_AT_ONCE };
            let read = home.queue_page(after, i64::try_from(most).unwrap_or(i64::MAX)).await;
            let read = read.map_err(|error| failed(&error))?;
            let ended = read.len() < most;
            next_cursor = read.last().map(|record| record.queue.name.to_string());
            records.extend(read.into_iter().filter(|record| self.scope.has(&record.queue.name)));
            if records.len() >= limit {
                let more = records.len() > limit || !ended;
                records.truncate(limit);
                next_cursor = records.last().filter(|_| more).map(|record| record.queue.name.to_string());
                break;
            }
            if ended {
                next_cursor = None;
                break;
            }
        }
        Ok(QueueList { queues: self.with_counts(records).await, next_cursor })
    }

    /// The unfinished tasks of all queues by state, over all databases; of a caller's own queues, as many as a page holds. A database that
    /// cannot be asked makes it "at least so many".
    pub async fn census(&self) -> Result<Census, Problem> {
        if !self.scope.is_all() {
            let list = self.queue_list(&QueuePage { limit: Some(MAX_LIMIT), cursor: None }).await?;
            let counts = list.queues.iter().map(|queue| queue.counts).fold(Counts::default(), sum);
            let at_least = counts.at_least || list.next_cursor.is_some();
            return Ok(Census { counts: Counts { at_least, ..counts }, estimated: false });
        }
        let parts = self.parts().store.databases().iter().map(|database| database.task_census());
        let mut census = Census::default();
        for part in futures::future::join_all(parts).await {
            match part {
                Ok(part) => {
                    census.counts = sum(census.counts, part.counts);
                    census.estimated |= part.estimated;
                }
                Err(error) if error.fault() == Fault::Bug => return Err(failed(&error)),
                Err(_) => census.counts.at_least = true,
            }
        }
        Ok(census)
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

    /// Reads the queues that changed into this node's book.
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
        catch_up(self.parts().store.home(), &self.parts().books).await
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
