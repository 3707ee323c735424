//! The audit: its routes, and the note that is made once a request has been answered.

use std::net::SocketAddr;

use axum::{
    Json,
    extract::{ConnectInfo, Request},
    http::{HeaderValue, Method, Uri},
    response::{IntoResponse, Response},
};
use common::{
    access::Caller,
    wire::{AuditList, ListAnswer, ScheduleView, TaskView},
};

use super::{Asked, query, refusal::Refusal};
use crate::audit::{Audit, Deed, SCHEDULE_READ, TASK_LIST, TASK_READ};

/// The header by which a client finds its request in the audit.
const REQUEST_ID: &str = "x-request-id";

pub(super) async fn list(asked: Asked, uri: Uri) -> Result<Json<AuditList>, Refusal> {
    Ok(Json(asked.desk.audit_list(query::audit_filter(&uri)?).await?))
}

/// Details of a deed that its path does not hold. A handler puts them into the answer's extensions.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) target: String,
    pub(super) detail: Option<String>,
}

/// Marks an answer that shows the data of tasks; a handler puts it into the extensions. Such an answer is noted
/// unless the request is noted as a deed already.
#[derive(Clone, Debug)]
struct Read {
    what: &'static str,
    target: String,
    detail: Option<String>,
}

/// The answer with one task.
pub(super) fn task(view: TaskView) -> Response {
    let read = (!view.data_hidden).then(|| Read { what: TASK_READ, target: view.id.to_string(), detail: None });
    answer(Json(view), read)
}

/// The answer with the page of tasks that `uri` asked for.
pub(super) fn tasks(list: ListAnswer, uri: &Uri) -> Response {
    let shown = list.tasks.iter().filter(|task| !task.data_hidden).count();
    let read =
        (shown > 0).then(|| Read { what: TASK_LIST, target: filter(uri), detail: Some(format!("{shown} tasks")) });
    answer(Json(list), read)
}

/// The answer with one schedule.
pub(super) fn schedule(view: ScheduleView) -> Response {
    let read = (!view.data_hidden).then(|| Read { what: SCHEDULE_READ, target: view.name.to_string(), detail: None });
    answer(Json(view), read)
}

fn answer(body: impl IntoResponse, read: Option<Read>) -> Response {
    let mut response = body.into_response();
    if let Some(read) = read {
        response.extensions_mut().insert(read);
    }
    response
}

/// The query, which says which tasks a request asked for.
fn filter(uri: &Uri) -> String {
    uri.query().filter(|query| !query.is_empty()).unwrap_or("all").to_owned()
}

/// The data of a request for its note, which is made after the answer.
pub(super) struct Draft {
    what: Option<&'static str>,
    method: Method,
    route: Option<String>,
    uri: Uri,
    from: Option<SocketAddr>,
    request_id: Option<HeaderValue>,
}

impl Draft {
    pub(super) fn of(request: &Request, route: Option<&str>) -> Self {
        let what = route.and_then(|route| deed(request.method(), route));
        Self {
            what,
            method: request.method().clone(),
            // For a request that is noted only if it is refused, the path is enough.
            route: what.and(route).map(str::to_owned),
            uri: request.uri().clone(),
            from: request.extensions().get::<ConnectInfo<SocketAddr>>().map(|from| from.0),
            request_id: request.headers().get(REQUEST_ID).cloned(),
        }
    }

    /// Notes deeds, answers that show data, and refusals.
    pub(super) fn note(self, audit: &Audit, caller: Option<&Caller>, response: &Response) {
        let status = response.status().as_u16();
        let read = response.extensions().get::<Read>();
        let what = match (self.what, read) {
            (Some(what), _) => what,
            (None, Some(read)) => read.what,
            (None, None) if [401, 403].contains(&status) => "refused",
            (None, None) => return,
        };
        let told = response.extensions().get::<Told>();
        let target = match (told, &self.route, read) {
            (Some(told), ..) => told.target.clone(),
            (None, Some(route), _) if route == "/v1/tasks/export" => filter(&self.uri),
            (None, Some(route), _) => target(route, self.uri.path()),
            (None, None, Some(read)) => read.target.clone(),
            (None, None, None) => format!("{} {}", self.method, self.uri.path()),
        };
        let told = told.and_then(|told| told.detail.clone());
        audit.note(Deed {
            who: caller.map_or_else(|| Caller::ANONYMOUS.into(), |caller| caller.name.clone()),
            who_id: caller.and_then(|caller| caller.id),
            what: what.into(),
            target,
            address: self.from.map(|from| from.ip()),
            status,
            detail: told.or_else(|| read.and_then(|read| read.detail.clone())),
            request_id: self.request_id.and_then(|id| Some(id.to_str().ok()?.to_owned())),
        });
    }
}

/// The deed of a request, which is noted whatever its answer. Submissions and results are not, because there are too
/// many. A read is noted when its answer shows the data of tasks.
fn deed(method: &Method, route: &str) -> Option<&'static str> {
    Some(match (method.as_str(), route) {
        ("PATCH", "/v1/tasks/{id}" | "/v1/queues/{queue}/keys/{key}") => "task.change",
        ("DELETE", "/v1/tasks/{id}" | "/v1/queues/{queue}/keys/{key}") => "task.cancel",
        ("POST", "/v1/tasks/{id}/stop") => "task.stop",
        ("POST", "/v1/tasks/{id}/run") => "task.run",
        ("POST", "/v1/tasks/{id}/retry") => "task.retry",
        ("POST", "/v1/tasks/bulk") => "task.bulk",
        ("GET", "/v1/tasks/export") => "task.export",
        ("PUT", "/v1/queues/{queue}") => "queue.put",
        ("DELETE", "/v1/queues/{queue}") => "queue.delete",
        ("POST", "/v1/queues/{queue}/pause") => "queue.pause",
        ("POST", "/v1/queues/{queue}/resume") => "queue.resume",
        ("PUT", "/v1/schedules/{name}") => "schedule.put",
        ("DELETE", "/v1/schedules/{name}") => "schedule.delete",
        ("POST", "/v1/schedules/{name}/pause") => "schedule.pause",
        ("POST", "/v1/schedules/{name}/resume") => "schedule.resume",
        ("POST", "/v1/schedules/{name}/run") => "schedule.run",
        ("POST", "/v1/tokens") => "token.create",
        ("DELETE", "/v1/tokens/{name}") => "token.revoke",
        ("POST", "/v1/cluster/nodes/{name}/drain") => "node.drain",
        ("POST", "/v1/cluster/nodes/{name}/undrain") => "node.undrain",
        _ => return None,
    })
}

/// The variable parts of a path, as they were written in it.
fn target(route: &str, path: &str) -> String {
    let parts = route.split('/').zip(path.split('/')).filter(|(pattern, _)| pattern.starts_with('{'));
    parts.map(|(_, part)| part).collect::<Vec<&str>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::ROUTES;

    #[test]
    fn every_route_that_changes_something_is_noted_but_for_submissions_and_results_and_so_is_an_export() {
        const TOO_MANY: [&str; 3] = ["/v1/tasks", "/v1/tasks/batch", "/v1/tasks/{id}/result"];
        for (method, route) in ROUTES {
            // An export is a deed, because it takes every payload along.
            let looks = method == Method::GET && *route != "/v1/tasks/export";
            assert_eq!(deed(method, route).is_some(), !looks && !TOO_MANY.contains(route), "{method} {route}");
        }
    }

    #[test]
    fn a_target_is_what_varies_in_the_path() {
        assert_eq!(target("/v1/queues/{queue}/keys/{key}", "/v1/queues/mail/keys/a%2Fb"), "mail/a%2Fb");
        assert_eq!(target("/v1/schedules/{name}/pause", "/v1/schedules/nightly/pause"), "nightly");
        assert_eq!(target("/v1/tasks/bulk", "/v1/tasks/bulk"), "");
    }
}
