//! What somebody did by a form of the console.

use std::net::SocketAddr;

use common::{access::Caller, wire::Problem};

use crate::{audit::Deed, desk::Desk};

/// What forms are sent for, in the audit's words; `None` for what no page of ours sends.
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

/// What one thing is done to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum On {
    Task,
    Queue,
    Schedule,
    Token,
    Node,
}

/// Whoever did something, and from where.
pub(super) struct Actor<'a> {
    pub(super) desk: &'a Desk,
    pub(super) caller: &'a Caller,
    pub(super) from: Option<SocketAddr>,
}

/// Everything that changes something through the console, and every page with payloads, is noted here, in the audit
/// of the API: the caller, the deed, its target and the outcome.
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
