//! Queues: set, shown, paused, deleted. Queues are kept in the first database, their tasks in every database.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use common::{
    field::FieldError,
    ids::QueueName,
    limit::Limit,
    queue::{Placement, Queue, QueuePolicy},
    wire::{
        NamePage, Problem, QueueRequest, QueueView,
        list::MAX_LIMIT,
        queue::{Counts, QueueList},
    },
};

use super::{
    Desk, last_of_full,
    refusal::is_ours,
    run_to_end,
    seen::{self, Seen},
};
use crate::store::{
    Error,
    queues::{PutQueue, QueueRevisions},
    rows::QueueRecord,
};

pub(crate) use crate::store::outlook::Census;

/// The most tries of one turn of a queue. A turn waits up to half a second for the claims in flight, and one of
/// those may hang.
const TURN_TRIES: u32 = 4;

/// The most tries of a change by a caller who saw the queue before: others change it at the same moment.
const SEEN_TRIES: usize = 4;

/// The most tries of a deletion, which tasks that come in at the same moment prevent. The next try counts them.
const DELETE_TRIES: usize = 2;

/// The longest look for tasks of a queue that a deletion makes while all claims of the first database wait for it. A
/// claim is made some 100 ms before its tasks are due, so a longer one makes tasks late.
const LONGEST_LOOK: Duration = Duration::from_millis(250);

/// The most schedules that the refusal of a deletion names.
const SCHEDULES_NAMED: usize = 3;

/// The pause between two tries, in which the statements that queued up behind the first get their turn.
const TURN_PAUSE: Duration = Duration::from_millis(100);

impl Desk {
    /// Sets a queue's policy. The policy is in force, on every node, for every task accepted after the answer
    /// (G12). While a database cannot be reached, nothing is changed.
    pub(crate) async fn queue_put(&self, name: QueueName, request: QueueRequest) -> Result<QueueView, Problem> {
        self.queue_put_seen(name, request, None).await
    }

    /// Like [`Self::queue_put`], unless the stored queue is not as the caller has `seen` it.
    pub(crate) async fn queue_put_seen(
        &self,
        name: QueueName,
        request: QueueRequest,
        seen: Option<Seen>,
    ) -> Result<QueueView, Problem> {
        self.require_queue(&name)?;
        let paused = request.paused;
        let policy = request.into_policy()?;
        let desk = self.clone();
        run_to_end(async move {
            // A caller who saw another state is refused the next time, unless the same form was sent several times.
            let tries = if seen.is_some() { SEEN_TRIES } else { 1 };
            for _ in 0..tries {
                if let Some(put) = desk.put_queue_once(&name, &policy, paused, seen).await? {
                    tracing::info!(queue = %name, created = put.created, paused = put.record.queue.paused, "queue set");
                    desk.announce(&name, put.turn).await?;
                    return Ok(desk.shown_queue(put.record).await);
                }
            }
            check_seen(seen, desk.parts().store.home().queue_find(&name).await?.as_ref(), &name)?;
            Err(too_many(&name, desk.parts().queues_max))
        })
        .await
    }

    /// Makes one try. `None`: there is no room for another queue, or the stored one is not as the caller has `seen` it.
    async fn put_queue_once(
        &self,
        name: &QueueName,
        policy: &QueuePolicy,
        paused: Option<bool>,
        seen: Option<Seen>,
    ) -> Result<Option<PutQueue>, Problem> {
        let home = self.parts().store.home();
        let record = home.queue_find(name).await?;
        let own = record.as_ref().filter(|stored| is_as(&stored.queue, policy, paused)).map(|own| own.updated_at);
        let seen = seen::or_own(seen, own);
        check_seen(seen, record.as_ref(), name)?;
        let before = record.map(|record| record.queue.policy);
        self.refuse_to_leave(before.as_ref(), policy)?;
        self.refuse_to_move(name, before.as_ref(), policy.placement).await?;
        if before.is_none() {
            FieldError::path_part("queue", name.as_str())?;
            self.refuse_one_more().await?;
        }
        self.reach_all().await?;
        let most = self.parts().queues_max;
        Ok(turn(|| home.queue_put_seen(name, policy, paused, most, seen)).await?)
    }

    /// Refuses another queue beyond the limit of the token.
    async fn refuse_one_more(&self) -> Result<(), Problem> {
        if self.limits.queues.is_some() {
            self.read_anew().await?;
        }
        match self.queues_of_token() {
            Some((used, most)) if used >= most => Err(self.too_many_made(Limit::TokenQueues, most, used)),
            _ => Ok(()),
        }
    }

    /// The reason why a submission could not create this queue.
    pub(super) fn no_queue_more(&self, name: &QueueName) -> Problem {
        match self.queues_of_token() {
            Some((used, most)) if used >= most => self.too_many_made(Limit::TokenQueues, most, used),
            _ => too_many(name, self.parts().queues_max),
        }
    }

    /// Refuses a policy that leads a queue's tasks elsewhere, to a caller who may not see all queues: the new
    /// target may be another tenant's.
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
                let detail = format!(
                    "`{field}` reaches outside the queues of this token; only an operator of all queues may set it"
                );
                Err(Problem { field: Some(field.into()), ..Problem::forbidden(detail) })
            }
        }
    }

    /// Refuses a new placement while the queue has unfinished tasks, or is about to have some. Tasks stay on their
    /// shards, so those of a queue with a new placement would be counted and ordered on two shards. Submissions in SQL
    /// have their shards too, and would be refused after their commit. A queue that does not exist has the default
    /// placement: tasks may have come for it while it was deleted, or from a schedule that was set meanwhile.
    async fn refuse_to_move(
        &self,
        name: &QueueName,
        before: Option<&QueuePolicy>,
        placement: Placement,
    ) -> Result<(), Problem> {
        let now = before.map_or_else(Placement::default, |before| before.placement);
        if now == placement {
            return Ok(());
        }
        self.refuse_if_awaited(name, "change `placement`").await?;
        if self.live(name).await?.0 == 0 {
            return Ok(());
        }
        let detail = format!(
            "`placement` is `{now}` and the queue has unfinished tasks; let them finish or cancel them first, or set \
             `{placement}` on a new queue"
        );
        Err(Problem::conflict(detail))
    }

    /// Pauses or resumes dispatch; tasks that come due during a pause wait as `ready`. An unreachable database does
    /// not prevent the pause elsewhere: the answer then says that the queue's state in that database is uncertain.
    pub(crate) async fn queue_pause(&self, name: QueueName, paused: bool) -> Result<QueueView, Problem> {
        self.require_queue(&name)?;
        let desk = self.clone();
        run_to_end(async move {
            let home = desk.parts().store.home();
            let written = turn(|| home.queue_pause(&name, paused)).await?;
            let (record, turned) = written.ok_or_else(|| no_queue(&name))?;
            tracing::info!(queue = %name, paused, "queue {}", if paused { "paused" } else { "resumed" });
            desk.announce(&name, turned).await?;
            Ok(desk.shown_queue(record).await)
        })
        .await
    }

    pub(crate) async fn queue_get(&self, name: QueueName) -> Result<QueueView, Problem> {
        self.require_queue(&name)?;
        let record = self.parts().store.home().queue_find(&name).await?.ok_or_else(|| no_queue(&name))?;
        let views = self.with_counts(vec![record]).await;
        views.into_iter().next().ok_or_else(|| no_queue(&name))
    }

    /// A page of the queues that the caller may see, by name.
    pub(crate) async fn queue_list(&self, page: &NamePage) -> Result<QueueList, Problem> {
        page.validate(common::queue::check_name)?;
        let (after, limit) = (page.cursor.as_deref().unwrap_or_default(), i64::from(page.limit()));
        let records = self.parts().store.home().queue_page(after, limit, self.scope.patterns()).await?;
        let next_cursor = last_of_full(&records, limit).map(|last| last.queue.name.to_string());
        Ok(QueueList { queues: self.with_counts(records).await, next_cursor })
    }

    /// The queues of a caller who has some: those that their token names in full, which may have existed, and at most
    /// `most` of those that this node knows, in byte order. `None`: the caller has all.
    pub(crate) fn own_queues(&self, most: usize) -> Option<BTreeSet<String>> {
        let named = self.scope.patterns()?.iter().filter(|pattern| !pattern.ends_with('*')).cloned();
        let book = self.parts().books.load();
        let known = book.after("").map(|queue| &queue.name).filter(|name| self.scope.has(name)).take(most);
        Some(named.chain(known.map(ToString::to_string)).collect())
    }

    /// Counts the unfinished tasks of all queues by state, over all databases. For a caller with queues of their own
    /// it counts those queues, up to one page of them. An unreachable database turns the count into a lower bound.
    pub(crate) async fn census(&self) -> Result<Census, Problem> {
        if !self.scope.is_all() {
            let list = self.queue_list(&NamePage { limit: Some(MAX_LIMIT), cursor: None }).await?;
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
                Err(error) if is_ours(&error) => return Err(error.into()),
                Err(_) => census.counts.at_least = true,
            }
        }
        Ok(census)
    }

    /// Deletes a queue that has no unfinished task and no schedule. In the first database the deletion itself looks for
    /// tasks that come in meanwhile. In another one such a task may be missed, and goes on with the default policy.
    pub(crate) async fn queue_delete(&self, name: QueueName) -> Result<(), Problem> {
        self.require_queue(&name)?;
        let desk = self.clone();
        run_to_end(async move {
            let home = desk.parts().store.home();
            for _ in 0..DELETE_TRIES {
                home.queue_find(&name).await?.ok_or_else(|| no_queue(&name))?;
                desk.refuse_to_delete(&name).await?;
                desk.refuse_long_look(&name).await?;
                if let Some(turned) = turn(|| home.queue_delete(&name)).await? {
                    tracing::info!(queue = %name, "queue deleted");
                    return desk.announce(&name, turned).await;
                }
            }
            Err(Problem::conflict("tasks of the queue keep coming in; delete it when none is submitted any more"))
        })
        .await
    }

    /// Refuses to delete a queue that has unfinished tasks, or is about to have some. A schedule that is set at the
    /// same moment may be missed.
    async fn refuse_to_delete(&self, name: &QueueName) -> Result<(), Problem> {
        let most = i64::try_from(SCHEDULES_NAMED + 1).unwrap_or(i64::MAX);
        let schedules = self.parts().store.home().schedule_names(name, most).await?;
        if !schedules.is_empty() {
            let mut named: Vec<String> =
                schedules.iter().take(SCHEDULES_NAMED).map(|name| format!("`{name}`")).collect();
            named.extend((schedules.len() > SCHEDULES_NAMED).then(|| "...".to_owned()));
            let detail = format!("the queue has schedules ({}); delete or change them first", named.join(", "));
            return Err(Problem::conflict(detail));
        }
        self.refuse_if_awaited(name, "delete the queue").await?;
        let (tasks, may_have_more) = self.live(name).await?;
        if tasks == 0 {
            return Ok(());
        }
        let more = if may_have_more { " or more" } else { "" };
        let detail = format!("the queue has {tasks}{more} unfinished tasks; cancel them first");
        Err(Problem::conflict(detail))
    }

    /// Refuses to delete a queue while the deletion would look for its tasks for too long. An old transaction keeps the
    /// index entries of all tasks that have ended since it began, and the look passes those of the queue. Only the
    /// first database's claims wait for it: in the others, the look is made before the deletion.
    async fn refuse_long_look(&self, name: &QueueName) -> Result<(), Problem> {
        match self.parts().store.home().queue_look(name).await {
            Ok(took) if took <= LONGEST_LOOK => Ok(()),
            Err(error) if !error.is_out_of_time() => Err(error.into()),
            Ok(_) | Err(_) => Err(Problem::unavailable(
                "the look for tasks of this queue takes too long, and other tasks would wait for it; try again. An old \
                 transaction may keep the rows of tasks that have ended: if so, delete the queue when it has ended",
            )),
        }
    }

    /// Refuses a `change` of a queue for which submissions in SQL or fire times are about to be tasks. The caller
    /// counts the tasks afterwards: in this order, what becomes a task meanwhile is seen as one of both.
    async fn refuse_if_awaited(&self, name: &QueueName, change: &str) -> Result<(), Problem> {
        let looks = self.parts().store.databases().iter().map(|database| database.queue_awaited(name));
        if !futures::future::try_join_all(looks).await?.contains(&true) {
            return Ok(());
        }
        let detail = format!(
            "submissions in SQL or fire times of the queue have not become tasks yet; wait until their tasks have \
             finished, or cancel them, then {change}"
        );
        Err(Problem::conflict(detail))
    }

    /// Refuses a change while a database cannot be reached.
    async fn reach_all(&self) -> Result<(), Problem> {
        let others = self.parts().store.databases().iter().skip(1).map(|database| database.ping());
        futures::future::try_join_all(others).await.map(drop).map_err(|error| {
            let detail = format!(
                "database `{}` cannot be reached, but a change of a queue must reach all databases; nothing was \
                 changed, try again",
                error.database
            );
            Problem::unavailable(detail)
        })
    }

    /// Announces a queue's new policy to the other databases. From the answer on, every database refuses claims
    /// that do not know the policy, and tasks that were admitted by older rules for submissions.
    async fn announce(&self, name: &QueueName, to: QueueRevisions) -> Result<(), Problem> {
        let others = self.parts().store.databases().iter().skip(1);
        let announced = futures::future::join_all(others.map(|database| turn(|| database.queue_turn(name, to)))).await;
        if let Err(error) = self.read_anew().await {
            // The change is written. Claims that do not know it are refused until this node can read the queues.
            tracing::warn!(error = &error as &dyn std::error::Error, queue = %name, "a changed queue cannot be read back");
        }
        let Some(error) = announced.into_iter().find_map(Result::err) else { return Ok(()) };
        tracing::warn!(error = &error as &dyn std::error::Error, queue = %name, revision = to.revision, "could not announce a queue's new policy to a database");
        let detail = format!(
            "the change is stored, but database `{}` could not be notified; its nodes follow once they reread the \
             queues; send it again to be certain: until they follow, tasks there may be delivered again if `settle` \
             was changed",
            error.database
        );
        Err(Problem::unavailable(detail))
    }

    async fn shown_queue(&self, record: QueueRecord) -> QueueView {
        let view = QueueView::of(&record.queue, Counts::default());
        self.with_counts(vec![record]).await.pop().unwrap_or(view)
    }

    /// Counts the first unfinished tasks of a queue in each database. Returns their number, which is 0 only if there
    /// are none, and whether there may be more. Fails when a database cannot be reached.
    async fn live(&self, name: &QueueName) -> Result<(i64, bool), Problem> {
        let parts = self.parts().store.databases().iter().map(|database| database.queue_first(name));
        let parts = futures::future::try_join_all(parts).await?;
        Ok(parts.into_iter().fold((0, false), |(sum, more), (tasks, has_more)| (sum + tasks, more || has_more)))
    }

    /// The views of queues with their counts over all databases. An unreachable database turns a count into a
    /// lower bound.
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

/// Writes a change of a queue, and retries when the claims in flight were in its way.
async fn turn<T, F: Future<Output = Result<T, Error>>>(write: impl Fn() -> F) -> Result<T, Error> {
    let mut tries = 1;
    loop {
        match write().await {
            Err(error) if error.is_contention() && tries < TURN_TRIES => tries += 1,
            answer => return answer,
        }
        tokio::time::sleep(TURN_PAUSE).await;
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

/// `Retry-After` in seconds: an operator has to delete a queue or raise the limit.
const AGAIN_AFTER_S: u32 = 60;

pub(super) fn too_many(name: &QueueName, most: u32) -> Problem {
    let detail = format!(
        "queue `{name}` does not exist, and no more queues can be created: the limits are {most} in all \
         (`queues.max`), and fewer by one caller's submissions (`queues.max_per_caller`)"
    );
    Problem::too_many(detail).retry_after(AGAIN_AFTER_S)
}

/// Whether the queue is as such a request would leave it.
fn is_as(queue: &Queue, policy: &QueuePolicy, paused: Option<bool>) -> bool {
    queue.policy == *policy && paused.is_none_or(|paused| paused == queue.paused)
}

fn check_seen(seen: Option<Seen>, record: Option<&QueueRecord>, name: &QueueName) -> Result<(), Problem> {
    seen::check(seen, record.map(|record| record.updated_at), &format!("queue `{name}`"))
}

fn no_queue(name: &QueueName) -> Problem {
    Problem::not_found(format!("there is no queue `{name}`"))
}
