//! Notes in the audit what a person did with a form of the console.

use std::net::SocketAddr;

use common::{access::Caller, wire::Problem};

use crate::{audit::Deed, desk::Desk};

/// The audit's word for each form; `None` for a form that no page of ours sends.
pub(super) fn deed(on: On, action: &str) -> Option<&'static str> {
    Some(match (on, action) {
        (On::Task, "cancel") => "task.cancel",
        (On::Task, "stop") => "task.stop",
        (On::Task, "run") => "task.run",
        (On::Task, "retry") => "task.retry",
        (On::Task, "move") => "task.change",
        (On::Queue, "set") => "queue.put",
        (On::Queue, "pause") => "queue.pause",
        (On::Queue, "resume") => "queue.resume",
        (On::Queue, "delete") => "queue.delete",
        (On::Schedule, "set") => "schedule.put",
        (On::Schedule, "pause") => "schedule.pause",
        (On::Schedule, "resume") => "schedule.resume",
        (On::Schedule, "run") => "schedule.run",
        (On::Schedule, "delete") => "schedule.delete",
        (On::Token, "create") => "token.create",
        (On::Token, "revoke") => "token.revoke",
        (On::Node, "drain") => "node.drain",
        (On::Node, "undrain") => "node.undrain",
        _ => return None,
    })
}

/// The kind of a form's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Task,
    Queue,
    Schedule,
    Token,
    Node,
}

/// The caller of an action, and the address they came from.
pub(super) struct Actor<'a> {
    pub(super) desk: &'a Desk,
    pub(super) caller: &'a Caller,
    pub(super) from: Option<SocketAddr>,
}

/// Notes a change made through the console, or a page with payloads, in the API's audit: the caller, the deed, its
/// target and the outcome.
pub(super) fn acted(actor: &Actor<'_>, what: &'static str, target: &str, outcome: Result<&str, &Problem>) {
    let (status, detail) = match outcome {
        Ok(said) => (200, said.to_owned()),
        Err(problem) => (problem.status, problem.detail.clone()),
    };
    actor.desk.audit().note(Deed {
        who: actor.caller.name.clone(),
        who_id: actor.caller.id,
        what: what.into(),
        target: target.to_owned(),
        address: actor.from.map(|from| from.ip()),
        status,
        detail: Some(format!("console: {detail}")),
        request_id: None,
    });
}
