//! Lists tasks over all databases.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use common::{
    ids::{QueueName, TaskId},
    queue::QueueBook,
    time::UnixMicros,
    wire::{Cursor, ListAnswer, ListFilter, Problem, list::Block},
};

use super::Desk;
use crate::store::{
    Error,
    list::{Among, Page},
    rows::TaskRecord,
};

/// The time for which a request goes on to the following pages before it answers with fewer tasks than it may. A page
/// is short where each of many queues has a small share of the tasks that it examines.
const LOOK_ON: Duration = Duration::from_secs(1);

/// The number of queues that are listed together. Each costs a page a few probes of every partition of the
/// archive: about 100 ms for this many.
const BLOCK: usize = 1_000;

/// The queues of one page.
#[derive(Debug)]
struct Queues {
    /// `None`: there are few enough queues for one block.
    block: Option<Block>,
    names: Vec<QueueName>,
}

impl Queues {
    /// The queues that `filter` selects: its own queue, else the block of its cursor, else the first block.
    fn of(filter: &ListFilter, book: &QueueBook) -> Self {
        if filter.queue.is_some() {
            return Self { block: None, names: Vec::new() };
        }
        match filter.cursor.as_ref().and_then(|cursor| cursor.block.clone()) {
            Some(block) => Self::in_block(block, book),
            None if book.len() > BLOCK => Self::after("", book),
            None => Self { block: None, names: book.after("").map(|queue| queue.name.clone()).collect() },
        }
    }

    /// The block that begins after the queue `name`.
    fn after(name: &str, book: &QueueBook) -> Self {
        let mut names = book.after(name).map(|queue| queue.name.clone());
        let mine: Vec<QueueName> = names.by_ref().take(BLOCK).collect();
        let up_to = names.next().and_then(|_| mine.last()).map(ToString::to_string);
        Self { block: Some(Block { after: name.to_owned(), up_to }), names: mine }
    }

    /// The queues of `block`. Queues may have been created or deleted since its cursor was issued; the edges of
    /// the block stay. If very many were created, the block ends with those that the page takes. The next block has the
    /// others from their first task on, so it may show some again. A block that kept its end would leave out for good
    /// the tasks that they have after the cursor.
    fn in_block(mut block: Block, book: &QueueBook) -> Self {
        let names = book.after(&block.after).map(|queue| &queue.name).take_while(|name| block.has(name));
        let mut names: Vec<QueueName> = names.take(2 * BLOCK + 1).cloned().collect();
        if names.len() > 2 * BLOCK {
            names.truncate(2 * BLOCK);
            block.up_to = names.last().map(ToString::to_string);
        }
        Self { block: Some(block), names }
    }

    /// The cursor at which the list goes on after the end of this block.
    fn next(&self, book: &QueueBook) -> Option<Cursor> {
        let up_to = self.block.as_ref()?.up_to.as_ref()?;
        let block = Self::after(up_to, book).block;
        Some(Cursor { due_at: UnixMicros::FIRST, id: TaskId::from_uuid(uuid::Uuid::nil()), block })
    }
}

impl Desk {
    /// Tasks in the order of (due_at, id), over all databases; with very many queues, one block of queues after
    /// another. The answer may be short or empty and still have a next one. The number of tasks examined for a page is
    /// bounded, and so is the time for which pages follow one another.
    pub(crate) async fn list(&self, mut filter: ListFilter) -> Result<ListAnswer, Problem> {
        filter.validate()?;
        self.require_queue_or_all(filter.queue.as_ref())?;
        self.require_error_texts(filter.error.as_ref())?;
        let (started, limit) = (Instant::now(), filter.limit());
        let mut tasks: Vec<TaskRecord> = Vec::new();
        let next_cursor = loop {
            let page = match self.page(&filter).await {
                // What was found is the answer. The next request begins where this page did.
                Err(_) if !tasks.is_empty() => break filter.cursor,
                page => page?,
            };
            // A task that was moved to a later time between two reads is in both. The later read counts.
            let again: HashSet<TaskId> = page.tasks.iter().map(|task| task.id).collect();
            tasks.retain(|task| !again.contains(&task.id));
            tasks.extend(page.tasks);
            let room = limit.saturating_sub(u32::try_from(tasks.len()).unwrap_or(u32::MAX));
            if room == 0 || page.next.is_none() || started.elapsed() > LOOK_ON {
                break page.next;
            }
            (filter.limit, filter.cursor) = (Some(room), page.next);
        };
        let book = self.parts().books.load();
        let tasks = tasks.into_iter().map(|task| self.view(task, &book)).collect();
        Ok(ListAnswer { tasks, next_cursor })
    }

    async fn page(&self, filter: &ListFilter) -> Result<Page, Problem> {
        let book = self.parts().books.load_full();
        let queues = Queues::of(filter, &book);
        let among = Among { names: &queues.names, others: queues.block.is_none() };
        let parts = self.parts().store.databases().iter().map(|database| database.task_list(filter, &among));
        let pages = futures::future::try_join_all(parts).await.map_err(|error| unread(error, filter))?;
        let page = Page::merge(pages, usize::try_from(filter.limit()).unwrap_or(usize::MAX));
        let next = match page.next {
            Some(next) => Some(Cursor { block: queues.block.clone(), ..next }),
            None => queues.next(&book),
        };
        Ok(Page { next, ..page })
    }
}

/// The problem for a list that cannot be read.
fn unread(error: Error, filter: &ListFilter) -> Problem {
    let advice = if error.is_out_of_time() { advice(filter) } else { None };
    let problem = Problem::from(error);
    match advice {
        Some(advice) => Problem { detail: format!("{}, or {advice}", problem.detail), ..problem },
        None => problem,
    }
}

/// What makes a list quicker that ran out of its time. An old transaction keeps the index entries of tasks that have
/// ended.
fn advice(filter: &ListFilter) -> Option<&'static str> {
    if filter.key.is_some() && filter.queue.is_none() {
        return Some(
            "name the `queue`: while an old transaction is open, a list by key without it passes tasks that have ended",
        );
    }
    (filter.due_after.is_none() && filter.cursor.is_none()).then_some(
        "give `due_after`: while an old transaction is open, a list from the oldest task on passes all that have ended",
    )
}

#[cfg(test)]
mod tests {
    use common::queue::Queue;

    use super::*;

    fn book(queues: usize) -> QueueBook {
        QueueBook::new(1, (0..queues).map(|nth| Queue::with_defaults(QueueName::new(format!("q{nth:05}")))))
    }

    #[test]
    fn few_queues_are_one_block_and_very_many_are_gone_through_each_once() {
        let filter = ListFilter::default();
        let few = Queues::of(&filter, &book(BLOCK));
        assert_eq!((few.block.is_none(), few.names.len(), few.next(&book(BLOCK))), (true, BLOCK, None));
        let book = book(2 * BLOCK + 7);
        let (mut seen, mut filter) = (Vec::new(), filter);
        loop {
            let queues = Queues::of(&filter, &book);
            assert!(queues.names.len() <= BLOCK && queues.block.is_some());
            seen.extend(queues.names.iter().cloned());
            filter.cursor = queues.next(&book);
            if filter.cursor.is_none() {
                break;
            }
        }
        assert_eq!(seen, book.iter().map(|queue| queue.name.clone()).collect::<Vec<_>>());
    }

    #[test]
    fn a_block_keeps_its_edges_when_queues_come_and_go() {
        let before = book(BLOCK + 10);
        let first = Queues::of(&ListFilter::default(), &before);
        let block = first.block.clone().expect("a block");
        let more = (0..BLOCK + 10).map(|nth| Queue::with_defaults(QueueName::new(format!("q{nth:05}.new"))));
        let after = QueueBook::new(2, before.iter().map(|queue| (**queue).clone()).chain(more));
        let again = Queues::in_block(block.clone(), &after);
        assert_eq!(again.block, Some(block.clone()));
        assert!(first.names.iter().all(|name| again.names.contains(name)));
        assert!(again.names.iter().all(|name| block.has(name)));
    }

    #[test]
    fn a_block_into_which_very_many_queues_came_leaves_out_none_of_the_old_ones() {
        let before = book(2 * BLOCK);
        let block = Queues::of(&ListFilter::default(), &before).block.expect("a block");
        let more = (0..3 * BLOCK).map(|nth| Queue::with_defaults(QueueName::new(format!("q{:05}.{nth}", nth % 900))));
        let after = QueueBook::new(2, before.iter().map(|queue| (**queue).clone()).chain(more));
        let (mut seen, mut filter) = (HashSet::new(), ListFilter::default());
        let mut queues = Queues::in_block(block, &after);
        loop {
            assert!(queues.names.len() <= 2 * BLOCK);
            assert!(queues.names.iter().all(|name| queues.block.as_ref().is_some_and(|block| block.has(name))));
            seen.extend(queues.names.iter().cloned());
            filter.cursor = queues.next(&after);
            if filter.cursor.is_none() {
                break;
            }
            queues = Queues::of(&filter, &after);
        }
        assert_eq!(seen.len(), after.len());
    }

    #[test]
    fn a_list_that_ran_out_of_time_is_advised_to_name_the_queue_of_its_key_or_to_begin_later() {
        let of_key = ListFilter { key: Some("k".to_owned()), ..ListFilter::default() };
        let named = ListFilter { queue: Some(QueueName::new("q")), ..of_key.clone() };
        let later = ListFilter { due_after: Some(UnixMicros::FIRST), ..ListFilter::default() };
        let begins = |filter: &ListFilter| advice(filter).and_then(|advice| advice.split(':').next());
        for filter in [of_key.clone(), ListFilter { due_after: later.due_after, ..of_key }] {
            assert_eq!(begins(&filter), Some("name the `queue`"));
        }
        for filter in [named, ListFilter::default()] {
            assert_eq!(begins(&filter), Some("give `due_after`"));
        }
        assert_eq!(begins(&later), None);
    }
}
