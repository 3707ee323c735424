//! Records in the audit log what a person did in the console.

use std::net::SocketAddr;

use common::{access::Caller, wire::Problem};

use crate::{
    audit::AuditEvent,
    desk::Desk,
    http::{PageNote, Route},
};

/// The caller of a request, the address they came from, and the route that they called.
pub(super) struct Actor<'a> {
    pub(super) desk: &'a Desk,
    pub(super) caller: &'a Caller,
    pub(super) from: Option<SocketAddr>,
    pub(super) route: Option<&'static Route>,
    pub(super) note: &'a PageNote,
}

impl Actor<'_> {
    /// Records a change made through the console, or a page with payloads, in the API's audit log: the caller, the
    /// action, its target and the outcome. `form` is the form's field `action`.
    pub(super) fn record(&self, form: Option<&str>, target: &str, outcome: Result<&str, &Problem>) {
        let Some(action) = self.route.and_then(|route| route.audited.action(form)) else { return };
        let (status, detail) = match outcome {
            Ok(done) => (200, done.to_owned()),
            Err(problem) => (problem.status, problem.detail.clone()),
        };
        self.note.set_recorded();
        self.desk.audit().record(AuditEvent {
            caller: self.caller.name.clone(),
            caller_id: self.caller.id,
            action,
            target: target.to_owned(),
            address: self.from.map(|from| from.ip()),
            status,
            detail: Some(format!("console: {detail}")),
            request_id: self.note.request_id(),
        });
    }
}
