//! The list of queues: the policy, the counts and the throughput of each.

use askama::Template;
use axum::{
    http::{StatusCode, Uri},
    response::{IntoResponse, Redirect, Response},
};
use common::{
    access::Permission,
    ids::QueueName,
    queue::{Format, Placement, QueuePolicy, Settle, check_name},
    retry::RetryPolicy,
    wire::{NamePage, QueueView, queue::Counts},
};

use super::{
    browser::parameter,
    format::{count, span},
    frame::{Frame, PageProblem, show},
    visitor::Visitor,
};
use crate::desk::NodeFigures;

/// Queues on one page.
const PAGE: u32 = 100;

#[derive(Template)]
#[template(path = "queues.html")]
struct QueuesPage {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<String>,
    node: String,
    up: String,
    may_act: bool,
}

struct Row {
    name: QueueName,
    paused: bool,
    policy: Vec<String>,
    counts: ShownCounts,
    rate: String,
}

/// A count of tasks as the page shows it.
pub(super) struct ShownCounts {
    pub(super) scheduled: String,
    pub(super) waiting: String,
    pub(super) ready: String,
    pub(super) in_flight: String,
}

impl ShownCounts {
    pub(super) fn of(counts: &Counts) -> Self {
        let shown = |tasks| count(tasks, counts.at_least);
        Self {
            scheduled: shown(counts.scheduled),
            waiting: shown(counts.waiting),
            ready: shown(counts.ready),
            in_flight: shown(counts.in_flight()),
        }
    }
}

/// `?open=` leads to the page of a queue by its name, whether it exists or not.
pub(super) async fn list(visitor: Visitor, uri: Uri) -> Result<Response, PageProblem> {
    if let Some(open) = parameter(&uri, "open") {
        check_name(&open).map_err(|error| PageProblem::at(&visitor, error.into()))?;
        return Ok(Redirect::to(&format!("/console/queues/{open}")).into_response());
    }
    let request = NamePage { limit: Some(PAGE), cursor: parameter(&uri, "cursor") };
    let listed = visitor.desk.queue_list(&request).await.map_err(|problem| PageProblem::at(&visitor, problem))?;
    let figures = visitor.desk.node_figures();
    let page = QueuesPage {
        frame: Frame::new("Queues", &visitor),
        rows: listed.queues.iter().map(|queue| row(queue, &figures)).collect(),
        // A queue's name needs no escaping in a URL.
        next: listed.next_cursor.map(|cursor| format!("/console/queues?cursor={cursor}")),
        node: figures.node.name.to_string(),
        up: span(figures.up),
        may_act: visitor.may(Permission::Operate),
    };
    Ok(show(StatusCode::OK, &page))
}

fn row(queue: &QueueView, figures: &NodeFigures) -> Row {
    let rate = figures.finished_of(&queue.name).map(|finished| format!("{:.1}", figures.a_minute(finished)));
    Row {
        name: queue.name.clone(),
        paused: queue.paused,
        policy: in_short(&queue.policy),
        counts: ShownCounts::of(&queue.counts),
        rate: rate.unwrap_or_else(|| "–".to_owned()),
    }
}

/// When a task counts as finished, and the policy's differences from the defaults.
pub(super) fn in_short(policy: &QueuePolicy) -> Vec<String> {
    let default = QueuePolicy::default();
    let settle = match policy.settle {
        Settle::Confirm => "done when confirmed",
        Settle::Reject => "done unless rejected",
        Settle::Result => "done when reported",
    };
    let mut short = vec![settle.to_owned()];
    let mut say = |said: bool, text: String| short.extend(said.then_some(text));
    say(policy.placement == Placement::Single, "on one shard".to_owned());
    say(policy.ordered, "ordered".to_owned());
    say(policy.max_pending.is_some(), format!("at most {} unfinished", policy.max_pending.unwrap_or_default()));
    say(policy.max_running.is_some(), format!("at most {} running", policy.max_running.unwrap_or_default()));
    say(policy.rate_per_second.is_some(), format!("{} a second", policy.rate_per_second.unwrap_or_default()));
    say(policy.max_attempts != default.max_attempts, format!("{} attempts", policy.max_attempts));
    let retry = match policy.retry {
        RetryPolicy::Polynomial => String::new(),
        RetryPolicy::Exponential { base_ms, factor, .. } => format!("retry after {base_ms} ms, × {factor}"),
        RetryPolicy::Fixed { delay_ms } => format!("retry after {delay_ms} ms"),
        RetryPolicy::Immediate => "retry at once".to_owned(),
    };
    say(policy.retry != default.retry, retry);
    say(policy.format == Format::Celery, "for Celery".to_owned());
    say(policy.format == Format::CloudEvents, "as CloudEvents".to_owned());
    let exchange = policy.exchange.as_deref().unwrap_or_default();
    say(policy.exchange.is_some(), format!("to exchange {exchange}"));
    short
}
