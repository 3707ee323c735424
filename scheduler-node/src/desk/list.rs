//! Lists tasks over all databases.

use std::time::{Duration, Instant};

use common::wire::{ListAnswer, ListFilter, Problem};

use super::{Desk, refusal::failed, view::view};
use crate::store::list::Page;

/// A page without any task is not answered before the next ones have been looked at for this long.
const LOOK_ON: Duration = Duration::from_secs(1);

impl Desk {
    /// One page in the order of (due_at, id), over all databases. It can be short, even empty, and still have a next one: how
    /// many tasks are looked at for one page is bounded.
    pub async fn list(&self, mut filter: ListFilter) -> Result<ListAnswer, Problem> {
        filter.validate()?;
        self.ask_for_tasks(filter.queue.as_ref())?;
        let started = Instant::now();
        loop {
            let page = self.page(&filter).await?;
            if !page.tasks.is_empty() || page.next.is_none() || started.elapsed() > LOOK_ON {
                let book = self.parts().books.load();
                let tasks = page.tasks.into_iter().map(|task| view(task, &book)).collect();
                return Ok(ListAnswer { tasks, next_cursor: page.next });
            }
            filter.cursor = page.next;
        }
    }

    async fn page(&self, filter: &ListFilter) -> Result<Page, Problem> {
        let parts = self.parts().store.databases().iter().map(|database| database.task_list(filter));
        let pages = futures::future::try_join_all(parts).await.map_err(|error| failed(&error))?;
        Ok(Page::merge(pages, usize::try_from(filter.limit()).unwrap_or(usize::MAX)))
    }
}
