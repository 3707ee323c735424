//! The audit log: its route, and the event that is recorded once a request has been answered.

use std::{
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json,
    extract::{ConnectInfo, Request},
    http::{HeaderValue, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use common::{
    access::Caller,
    ids::TaskId,
    wire::{
        AuditList, BatchAnswer, BatchResult, ListAnswer, ScheduleView, TaskView, TokenView,
        shard::{MoveAnswer, MoveGroup, RebalanceAnswer},
    },
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::{ROUTES, Route, Scoped, query, refusal::Refusal};
use crate::audit::{Audit, AuditAction, AuditEvent, UNANSWERED};

/// The header by which a client finds its request in the audit.
const REQUEST_ID: &str = "x-request-id";

/// The bytes of a target that are percent-encoded: all that RFC 3986 does not allow in a part of a path as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b':')
    .remove(b'@');

const UNANSWERED_DETAIL: &str =
    "the request ended without an answer, as when the client hangs up; the change may have taken effect";

pub(super) async fn list(scoped: Scoped, uri: Uri) -> Result<Json<AuditList>, Refusal> {
    Ok(Json(scoped.desk.audit_list(query::audit_filter(&uri)?).await?))
}

/// The target and details of an action that the path does not name. A handler puts them into the answer's extensions.
/// The console records its forms itself, with the same details.
#[derive(Clone, Debug)]
pub(crate) struct AuditDetails {
    pub(crate) target: String,
    pub(crate) detail: Option<String>,
}

impl AuditDetails {
    /// A token that was made: its role and queues.
    pub(crate) fn of_token(made: &TokenView) -> Self {
        let queues = made.queues.as_ref().map_or_else(|| "all queues".to_owned(), |queues| queues.join(", "));
        Self { target: made.name.clone(), detail: Some(format!("{}, {queues}", made.role)) }
    }

    /// Shards that move from now on, and their target.
    pub(crate) fn of_move(answer: &MoveAnswer) -> Self {
        Self { target: answer.shards.to_string(), detail: Some(format!("to {}", answer.to)) }
    }

    /// A rebalance with its moves.
    pub(crate) fn of_rebalance(answer: &RebalanceAnswer) -> Self {
        let group = |group: &MoveGroup| format!("{} to {}", group.shards, group.to);
        let moves: Vec<String> = answer.moves.iter().map(group).collect();
        let detail = if answer.dry_run {
            "dry run".to_owned()
        } else if moves.is_empty() {
            "no moves".to_owned()
        } else {
            moves.join("; ")
        };
        Self { target: "all".to_owned(), detail: Some(detail) }
    }

    /// One action on many tasks: the counts, and the request as JSON.
    pub(crate) fn of_bulk(matched: u64, done: u64, request: &str) -> Self {
        Self { target: "tasks".to_owned(), detail: Some(format!("matched {matched}, done {done}: {request}")) }
    }
}

/// What a page of the console does for the note of its request. The shell does not know who sent such a request, so it
/// puts this into the request's extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageNote(Arc<PageNoteState>);

#[derive(Debug, Default)]
struct PageNoteState {
    request_id: Option<HeaderValue>,
    caller: OnceLock<Caller>,
    is_recorded: AtomicBool,
}

impl PageNote {
    pub(super) fn of(request: &Request) -> Self {
        Self(Arc::new(PageNoteState {
            request_id: request.headers().get(REQUEST_ID).cloned(),
            ..PageNoteState::default()
        }))
    }

    /// The page knows the caller: the note of a refusal names them.
    pub(crate) fn set_caller(&self, caller: &Caller) {
        let _ = self.0.caller.set(caller.clone());
    }

    /// The page has recorded the request, so the shell does not do so again.
    pub(crate) fn set_recorded(&self) {
        self.0.is_recorded.store(true, Ordering::Relaxed);
    }

    /// The id that the client gave to its request.
    pub(crate) fn request_id(&self) -> Option<String> {
        text(self.0.request_id.as_ref())
    }

    pub(super) fn caller(&self) -> Option<&Caller> {
        self.0.caller.get()
    }

    fn is_recorded(&self) -> bool {
        self.0.is_recorded.load(Ordering::Relaxed)
    }
}

/// Marks an answer that shows the data of tasks; a handler puts it into the extensions. Such an answer is recorded
/// unless the request is recorded as another action already.
#[derive(Clone, Debug)]
struct ShownData {
    action: AuditAction,
    target: String,
    detail: Option<String>,
}

/// Tasks of a batch that the caller may not submit. The answer to the batch is 200, which shows no refusal.
#[derive(Clone, Debug)]
struct RefusedTasks {
    detail: String,
}

/// The answer to a batch.
pub(super) fn batch(answer: BatchAnswer) -> Response {
    let mut refused = answer.results.iter().filter_map(|result| match result {
        BatchResult::Refused { error } if error.status == StatusCode::FORBIDDEN.as_u16() => Some(error),
        _ => None,
    });
    let first = refused.next().map(|error| error.detail.clone());
    let refused = first.map(|first| RefusedTasks { detail: format!("{} tasks: {first}", 1 + refused.count()) });
    let mut response = Json(answer).into_response();
    if let Some(refused) = refused {
        response.extensions_mut().insert(refused);
    }
    response
}

/// The answer with one task.
pub(super) fn task(view: TaskView) -> Response {
    let shown = (!view.data_hidden).then(|| ShownData {
        action: AuditAction::TaskRead,
        target: view.id.to_string(),
        detail: None,
    });
    answer(Json(view), shown)
}

/// The answer with the page of tasks that `uri` asks for.
pub(super) fn tasks(list: ListAnswer, uri: &Uri) -> Response {
    let count = list.tasks.iter().filter(|task| !task.data_hidden).count();
    let shown = (count > 0).then(|| ShownData {
        action: AuditAction::TaskList,
        target: filter(uri),
        detail: Some(format!("{count} tasks")),
    });
    answer(Json(list), shown)
}

/// The answer with one schedule.
pub(super) fn schedule(view: ScheduleView) -> Response {
    let shown = (!view.data_hidden).then(|| ShownData {
        action: AuditAction::ScheduleRead,
        target: view.name.to_string(),
        detail: None,
    });
    answer(Json(view), shown)
}

fn answer(body: impl IntoResponse, shown: Option<ShownData>) -> Response {
    let mut response = body.into_response();
    if let Some(shown) = shown {
        response.extensions_mut().insert(shown);
    }
    response
}

/// The query, which says which tasks a request asked for.
fn filter(uri: &Uri) -> String {
    uri.query().filter(|query| !query.is_empty()).unwrap_or("all").to_owned()
}

/// The data of a request for its event, which is recorded after the answer.
pub(super) struct AuditDraft {
    action: Option<AuditAction>,
    method: Method,
    route: Option<&'static Route>,
    uri: Uri,
    from: Option<SocketAddr>,
    request_id: Option<HeaderValue>,
}

impl AuditDraft {
    /// `path` is the pattern that matched, if one did.
    pub(super) fn of(request: &Request, path: Option<&str>) -> Self {
        let route = path.and_then(|path| Route::find(ROUTES, request.method(), path));
        Self {
            action: route.and_then(|route| route.audited.action(None)),
            method: request.method().clone(),
            route,
            uri: request.uri().clone(),
            from: request.extensions().get::<ConnectInfo<SocketAddr>>().map(|from| from.0),
            request_id: request.headers().get(REQUEST_ID).cloned(),
        }
    }

    /// Records actions, answers that show data, and refusals, unless the page has done so.
    pub(super) fn record(self, audit: &Audit, caller: Option<&Caller>, page: &PageNote, response: &Response) {
        if page.is_recorded() {
            return;
        }
        let caller = caller.or_else(|| page.caller());
        let refused = response.extensions().get::<RefusedTasks>();
        let status = refused.map_or_else(|| response.status(), |_| StatusCode::FORBIDDEN).as_u16();
        let shown = response.extensions().get::<ShownData>();
        let action = match (self.action, shown) {
            (Some(action), _) => action,
            (None, Some(shown)) => shown.action,
            (None, None) if [401, 403].contains(&status) => AuditAction::Refused,
            (None, None) => return,
        };
        let details = response.extensions().get::<AuditDetails>();
        let target = match (details, self.action, self.route, shown) {
            (Some(details), ..) => details.target.clone(),
            (None, Some(AuditAction::TaskExport), ..) => filter(&self.uri),
            (None, Some(_), Some(route), _) => target(route.path, self.uri.path()),
            (None, _, _, Some(shown)) => shown.target.clone(),
            (None, _, _, None) => format!("{} {}", self.method, self.uri.path()),
        };
        let detail = details.and_then(|details| details.detail.clone());
        let detail = detail.or_else(|| shown.and_then(|shown| shown.detail.clone()));
        let detail = detail.or_else(|| refused.map(|refused| refused.detail.clone()));
        audit.record(self.event(caller, action, target, status, detail));
    }

    /// Records a change that goes on although its request ended without an answer. A read has shown nothing then. Forms
    /// of the console record themselves, because they run to their end.
    pub(super) fn record_unanswered(self, audit: &Audit, caller: Option<&Caller>) {
        let (Some(action), Some(route)) = (self.action, self.route) else { return };
        if self.method.is_safe() {
            return;
        }
        let target = target(route.path, self.uri.path());
        audit.record(self.event(caller, action, target, UNANSWERED, Some(UNANSWERED_DETAIL.to_owned())));
    }

    fn event(
        self,
        caller: Option<&Caller>,
        action: AuditAction,
        target: String,
        status: u16,
        detail: Option<String>,
    ) -> AuditEvent {
        AuditEvent {
            caller: caller.map_or_else(|| Caller::ANONYMOUS.into(), |caller| caller.name.clone()),
            caller_id: caller.and_then(|caller| caller.id),
            action,
            target,
            address: self.from.map(|from| from.ip()),
            status,
            detail,
            request_id: text(self.request_id.as_ref()),
        }
    }
}

fn text(request_id: Option<&HeaderValue>) -> Option<String> {
    Some(request_id?.to_str().ok()?.to_owned())
}

/// The variable parts of a path. Each has one spelling, however the request spelled it: a look for a target must find
/// all that was done to it.
fn target(route: &str, path: &str) -> String {
    let parts = route.split('/').zip(path.split('/')).filter(|(pattern, _)| pattern.starts_with('{'));
    parts.map(|(pattern, part)| one_spelling(pattern, part)).collect::<Vec<String>>().join("/")
}

/// A part of a path, which the router decodes before its handler reads it. `{id}` is that of a task.
fn one_spelling(pattern: &str, part: &str) -> String {
    // The router refuses what is no UTF-8.
    let Ok(name) = percent_decode_str(part).decode_utf8() else { return part.to_owned() };
    if pattern == "{id}" { task_target(&name) } else { utf8_percent_encode(&name, ENCODED).to_string() }
}

/// The target of an action on the task that a path names with `id`, decoded.
pub(crate) fn task_target(id: &str) -> String {
    id.parse::<TaskId>().map_or_else(|_| utf8_percent_encode(id, ENCODED).to_string(), |id| id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Audited;

    #[test]
    fn every_route_that_changes_something_is_noted_but_for_submissions_and_results_and_so_is_an_export() {
        const TOO_MANY: [&str; 3] = ["/v1/tasks", "/v1/tasks/batch", "/v1/tasks/{id}/result"];
        for Route { method, path, audited, .. } in ROUTES {
            // An export is an action, because it takes every payload along.
            let reads = method == Method::GET && *path != "/v1/tasks/export";
            assert_eq!(matches!(audited, Audited::As(_)), !reads && !TOO_MANY.contains(path), "{method} {path}");
            assert!(!matches!(audited, Audited::ByForm(_)), "{method} {path} takes no form");
        }
    }

    #[test]
    fn a_target_is_what_varies_in_the_path() {
        assert_eq!(target("/v1/queues/{queue}/keys/{key}", "/v1/queues/mail/keys/a%2Fb"), "mail/a%2Fb");
        assert_eq!(target("/v1/schedules/{name}/pause", "/v1/schedules/nightly/pause"), "nightly");
        assert_eq!(target("/v1/tasks/bulk", "/v1/tasks/bulk"), "");
    }

    #[test]
    fn a_target_has_one_spelling_however_the_request_spells_it() {
        let queue = |part: &str| target("/v1/queues/{queue}", &format!("/v1/queues/{part}"));
        assert_eq!(["mails", "%6Dails", "%6d%61%69%6C%73"].map(queue), ["mails"; 3]);
        let key = |parts: &str| target("/v1/queues/{queue}/keys/{key}", &format!("/v1/queues/{parts}"));
        for (spelled, noted) in [
            ("%6Dails/keys/%6F1", "mails/o1"),
            ("mails/keys/a%2fb%25", "mails/a%2Fb%25"),
            ("mails/keys/nightly%402030-01-31T09%3A00:00Z", "mails/nightly@2030-01-31T09:00:00Z"),
            ("mails/keys/o%20%c3%bc", "mails/o%20%C3%BC"),
            ("mails/keys/%ff", "mails/%ff"),
        ] {
            assert_eq!(key(spelled), noted);
            assert_eq!(key(&noted.replace('/', "/keys/")), noted, "a note is spelled as it would be noted");
        }
        let id = "0198a3f0-5c1e-7d2a-8f00-00112233abcd";
        let task = |part: &str| target("/v1/tasks/{id}/stop", &format!("/v1/tasks/{part}/stop"));
        let plain = id.replace('-', "");
        for spelled in [
            id,
            &id.to_uppercase(),
            &plain,
            &format!("urn:uuid:{id}"),
            &format!("%7B{id}%7d"),
            &id.replacen('1', "%31", 1),
        ] {
            assert_eq!(task(spelled), id);
        }
        assert_eq!(queue(&plain), plain, "a queue's name is no id");
        assert_eq!(task("no%20id%1B"), "no%20id%1B");
        assert_eq!((task_target(&id.to_uppercase()).as_str(), task_target("no id\u{1b}").as_str()), (id, "no%20id%1B"));
    }
}
