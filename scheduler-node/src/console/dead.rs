//! Dead letters: the tasks that failed for good, by queue and error.

use askama::Template;
use axum::{http::StatusCode, response::Response};
use common::access::Permission;

use super::{
    format::{When, count, when},
    frame::{Frame, PageProblem, show},
    task_query::TaskQuery,
    visitor::Visitor,
};
use crate::desk::{DEAD_GROUPS, DEAD_LOOK};

#[derive(Template)]
#[template(path = "dead.html")]
struct DeadPage {
    frame: Frame,
    groups: Vec<Group>,
    /// Set when only this many tasks were examined.
    examined: Option<String>,
    /// Set when only this many groups are shown.
    largest: Option<usize>,
    /// The visitor's role shows no error texts, so all dead tasks of a queue form one group.
    errors_hidden: bool,
    may_act: bool,
}

struct Group {
    queue: String,
    error: String,
    tasks: String,
    newest: When,
    href: String,
    /// The filter of the group, in the encoding of a URL.
    filter: String,
}

pub(super) async fn list(visitor: Visitor) -> Result<Response, PageProblem> {
    let dead = visitor.desk.dead_groups().await.map_err(|problem| PageProblem::at(&visitor, problem))?;
    let now = visitor.desk.now();
    let groups = dead.groups.iter().map(|group| {
        let fields = [("state", "dead"), ("queue", group.queue.as_str()), ("error", group.error.as_str())];
        let query = TaskQuery::of_pairs(fields.into_iter());
        Group {
            queue: group.queue.to_string(),
            error: group.error.clone(),
            tasks: count(group.tasks, dead.at_least || dead.cut),
            newest: when(group.newest_at, now),
            href: query.url(),
            filter: query.encoded(),
        }
    });
    let page = DeadPage {
        frame: Frame::new("Dead letters", &visitor),
        groups: groups.collect(),
        examined: dead.at_least.then(|| count(DEAD_LOOK, false)),
        largest: dead.cut.then_some(DEAD_GROUPS),
        errors_hidden: !visitor.may(Permission::Payloads),
        may_act: visitor.may(Permission::Change),
    };
    Ok(show(StatusCode::OK, &page))
}
