//! Tests every route with a caller who may use some queues only.

mod roles;

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, Request, header},
};
use common::{limit::Limit, wire::TokenRequest};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::Value;
use tower::ServiceExt;

use super::{Authenticator, HttpMetrics, Limits, ROUTES, Requirement, Route, Shares, router};
use crate::{
    access::TokenBook,
    desk::tests::{Counter, fresh},
};

/// A route's answer to a caller about a queue outside of their scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Foreign {
    /// 403: the request names the queue.
    Forbidden,
    /// 403 for each task of the batch.
    EachForbidden,
    /// 404, as though it did not exist.
    Missing,
    /// 200, without it.
    Hidden,
    /// 403 although the request names no queue: it concerns them all.
    ForAllQueues,
    /// The answer holds nothing about queues.
    Open,
}

/// A new route needs a decision here.
fn decision(method: &Method, route: &str) -> Option<Foreign> {
    Some(match (method.as_str(), route) {
        ("POST" | "GET", "/v1/tasks") | ("POST", "/v1/tasks/bulk") | ("GET", "/v1/tasks/export") => Foreign::Forbidden,
        ("POST", "/v1/tasks/batch") => Foreign::EachForbidden,
        ("GET" | "PATCH" | "DELETE", "/v1/tasks/{id}")
        | ("POST", "/v1/tasks/{id}/stop" | "/v1/tasks/{id}/run" | "/v1/tasks/{id}/retry" | "/v1/tasks/{id}/result") => {
            Foreign::Missing
        }
        ("GET", "/v1/queues" | "/v1/schedules") => Foreign::Hidden,
        ("GET" | "PUT" | "DELETE", "/v1/queues/{queue}")
        | ("POST", "/v1/queues/{queue}/pause" | "/v1/queues/{queue}/resume")
        | ("GET" | "PATCH" | "DELETE", "/v1/queues/{queue}/keys/{key}")
        | ("PUT", "/v1/schedules/{name}") => Foreign::Forbidden,
        ("GET" | "DELETE", "/v1/schedules/{name}")
        | ("POST", "/v1/schedules/{name}/pause" | "/v1/schedules/{name}/resume" | "/v1/schedules/{name}/run") => {
            Foreign::Missing
        }
        ("GET" | "POST", "/v1/tokens") | ("DELETE", "/v1/tokens/{name}") => Foreign::ForAllQueues,
        ("POST", "/v1/cluster/nodes/{name}/drain" | "/v1/cluster/nodes/{name}/undrain") => Foreign::ForAllQueues,
        ("GET", "/v1/shards" | "/v1/shards/moves" | "/v1/databases") => Foreign::Open,
        ("POST" | "DELETE", "/v1/shards/moves" | "/v1/shards/rebalance" | "/v1/databases/{name}") => {
            Foreign::ForAllQueues
        }
        ("POST", "/v1/databases/{name}/drain" | "/v1/databases/{name}/undrain") => Foreign::ForAllQueues,
        ("POST", "/v1/databases/{name}/accept-loss") => Foreign::ForAllQueues,
        ("GET", "/v1/audit" | "/metrics") => Foreign::ForAllQueues,
        ("GET", "/v1/cluster" | "/healthz" | "/readyz" | "/openapi.json") => Foreign::Open,
        _ => return None,
    })
}

struct Api {
    router: Router,
    counter: Counter,
    /// The token of an operator of all queues.
    all: String,
    /// The token of an operator of the queue `mine`.
    mine: String,
    /// Tokens by the name of their role.
    tokens: Mutex<HashMap<&'static str, String>>,
}

impl Api {
    async fn new() -> (Self, crate::store::tests::fixture::TestDatabase) {
        let (counter, test) = fresh().await;
        let make = async |json: &str| {
            let made = counter.desk.token_add(TokenRequest::parse(json).expect("a token"), "test").await;
            made.expect("made").token.expect("told")
        };
        let all = make(r#"{"name":"all","role":"operator"}"#).await;
        let mine = make(r#"{"name":"mine","role":"operator","queues":["mine"]}"#).await;
        let registry = Registry::new();
        let metrics = HttpMetrics::register(&registry, &[]).expect("registered once");
        let authenticator = Arc::new(Authenticator::new(Arc::clone(&counter.access)));
        let shares = Shares::new(Limits::of_payload(1_000, 0), counter.desk.limited(Limit::TokenRequests));
        let router = router(counter.desk.clone(), authenticator, shares, registry, metrics, Router::new());
        (Self { router, counter, all, mine, tokens: Mutex::default() }, test)
    }

    async fn ask(&self, token: &str, method: &Method, path: &str, body: &str) -> (u16, String) {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::AUTHORIZATION, format!("Bearer {token}"))
            .header("x-request-id", "r-7")
            .body(Body::from(body.to_owned()))
            .expect("a request");
        let response = self.router.clone().oneshot(request).await.expect("an answer");
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        (status, String::from_utf8(body.to_vec()).expect("UTF-8"))
    }

    /// Sends a request about something in `queue` that is made for this request.
    async fn ask_about(&self, method: &Method, route: &str, queue: &str) -> (u16, String) {
        let task = format!(r#"{{"queue":"{queue}","key":"{}","delay_ms":3600000}}"#, uuid::Uuid::new_v4());
        let (_, made) = self.ask(&self.all, &Method::POST, "/v1/tasks", &task).await;
        let made: Value = serde_json::from_str(&made).expect("a task");
        let schedule = format!(r#"{{"queue":"{queue}","every_ms":3600000}}"#);
        let (put, _) = self.ask(&self.all, &Method::PUT, &format!("/v1/schedules/of-{queue}"), &schedule).await;
        assert!(put < 300, "the schedule is there: {put}");
        let text = |name: &str| made[name].as_str().expect("text").to_owned();
        let path = route
            .replace("{id}", &text("id"))
            .replace("{key}", &text("key"))
            .replace("{queue}", queue)
            .replace("{name}", &format!("of-{queue}"));
        let path = if ["/v1/tasks", "/v1/tasks/export"].contains(&route) && method == Method::GET {
            format!("{path}?queue={queue}")
        } else if (method.as_str(), route) == ("DELETE", "/v1/shards/moves") {
            format!("{path}?shards=0")
        } else {
            path
        };
        let body = match (method.as_str(), route) {
            ("POST", "/v1/tasks") => format!(r#"{{"queue":"{queue}"}}"#),
            ("POST", "/v1/tasks/batch") => format!(r#"[{{"queue":"{queue}"}}]"#),
            ("POST", "/v1/tasks/bulk") => format!(r#"{{"action":"cancel","filter":{{"queue":"{queue}"}}}}"#),
            ("POST", "/v1/tasks/{id}/result") => r#"{"attempt":1,"status":"succeeded"}"#.to_owned(),
            ("PATCH", _) => r#"{"priority":1}"#.to_owned(),
            ("PUT", "/v1/schedules/{name}") => schedule,
            ("POST", "/v1/shards/moves") => r#"{"shards":"0","to":"main"}"#.to_owned(),
            ("POST", "/v1/tokens") => r#"{"name":"wider","role":"operator"}"#.to_owned(),
            _ => String::new(),
        };
        self.ask(&self.mine, method, &path, &body).await
    }
}

#[tokio::test]
async fn no_route_tells_or_touches_anything_of_a_queue_that_a_token_is_not_for() {
    let (api, _test) = Api::new().await;
    for Route { method, path: route, .. } in ROUTES {
        let decided = decision(method, route).unwrap_or_else(|| panic!("{method} {route} has no decision"));
        let (status, body) = api.ask_about(method, route, "theirs").await;
        let expected = match decided {
            Foreign::Forbidden | Foreign::ForAllQueues => 403,
            Foreign::Missing => 404,
            Foreign::EachForbidden | Foreign::Hidden => 200,
            // These routes report on this node, and any of its statuses will do.
            Foreign::Open => status,
        };
        assert_eq!(status, expected, "{method} {route}: {body}");
        match decided {
            Foreign::EachForbidden => assert!(body.contains(r#""status":403"#), "{method} {route}: {body}"),
            Foreign::Hidden | Foreign::Open => assert!(!body.contains("theirs"), "{method} {route}: {body}"),
            _ => {}
        }
        let (own, body) = api.ask_about(method, route, "mine").await;
        let refused = decided == Foreign::ForAllQueues;
        assert_eq!(own == 403, refused, "{method} {route} of its own queue: {body}");
        assert!(own != 404, "{method} {route} of its own queue: {body}");
    }
}

#[tokio::test]
async fn what_a_route_does_not_take_is_refused_by_its_name() {
    let (api, _test) = Api::new().await;
    let document: Value = serde_json::from_str(include_str!("openapi.json")).expect("JSON");
    let refuses = async |method: &Method, path: &str, body: &str| {
        let (status, answer) = api.ask(&api.all, method, path, body).await;
        let problem: Value = serde_json::from_str(&answer).unwrap_or_default();
        assert_eq!((status, &problem["field"]), (422, &"colour".into()), "{method} {path} {body}: {answer}");
    };
    for Route { method, path: route, requirement, .. } in ROUTES {
        let path = route.replace(['{', '}'], "");
        if *requirement == Requirement::Open {
            // A probe that is refused would take the node out of service.
            let (status, answer) = api.ask(&api.all, method, &format!("{path}?colour=red"), "").await;
            assert!([200, 503].contains(&status), "{method} {path}: {status} {answer}");
            continue;
        }
        // A change by key reads its body first.
        let body = if *method == Method::PATCH { r#"{"priority":1}"# } else { "" };
        refuses(method, &format!("{path}?colour=red"), body).await;
        let operation = &document["paths"][route][method.as_str().to_lowercase()];
        assert!(operation.is_object(), "{method} {route} is described");
        if *method != Method::GET && operation["requestBody"].is_null() {
            refuses(method, &path, r#"{"colour":"red"}"#).await;
        }
    }
}

#[tokio::test]
async fn an_empty_body_or_object_is_no_input() {
    let (api, _test) = Api::new().await;
    let (_, made) = api.ask(&api.all, &Method::POST, "/v1/tasks", r#"{"queue":"mine","delay_ms":3600000}"#).await;
    let made: Value = serde_json::from_str(&made).expect("a task");
    let path = format!("/v1/tasks/{}/run", made["id"].as_str().expect("an id"));
    let cases =
        [("", "", 200), ("?", " ", 200), ("", "{}", 200), ("", " null\n", 200), ("", "[]", 422), ("", "{", 400)];
    for (query, body, status) in cases {
        let (answered, answer) = api.ask(&api.all, &Method::POST, &format!("{path}{query}"), body).await;
        assert_eq!(answered, status, "{query} {body:?}: {answer}");
    }
    let chunk = |chunk: &'static str| Body::from_stream(stream::iter([Ok::<_, std::io::Error>(chunk)]));
    // As curl does with an empty `--data`, and others in chunks.
    for (body, status) in [(Body::empty(), 200), (chunk(""), 200), (chunk("a=b"), 415)] {
        let request = Request::post(&path)
            .header(header::AUTHORIZATION, format!("Bearer {}", api.all))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(body)
            .expect("a request");
        assert_eq!(api.router.clone().oneshot(request).await.expect("an answer").status(), status);
    }
}

#[tokio::test]
async fn exports_that_are_not_read_take_memory_and_leave_room_for_other_requests() {
    let (api, _test) = Api::new().await;
    let begin = async |token: &str| {
        let request = Request::get("/v1/tasks/export?queue=mine");
        let request = request.header(header::AUTHORIZATION, format!("Bearer {token}")).body(Body::empty());
        api.router.clone().oneshot(request.expect("a request")).await.expect("an answer")
    };
    let mut begun = Vec::new();
    for nth in 1..=7 {
        let export = begin(&api.all).await;
        assert_eq!(export.status(), 200, "{nth}");
        begun.push(export);
    }
    let refused = begin(&api.all).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
    let problem = to_bytes(refused.into_body(), 1 << 20).await.expect("a body");
    assert!(String::from_utf8_lossy(&problem).contains("too many exports"), "{problem:?}");
    let (listed, page) = api.ask(&api.all, &Method::GET, "/v1/tasks", "").await;
    assert_eq!(listed, 200, "what is no export has room: {page}");
    assert_eq!(begin(&api.mine).await.status(), 200, "another caller");
    let first = to_bytes(begun.remove(0).into_body(), 1 << 20).await.expect("a body");
    assert_eq!(first, "{\"exported\":0}\n");
    drop(first);
    assert_eq!(begin(&api.all).await.status(), 200, "one has gone out");
}

#[tokio::test]
async fn an_export_ends_without_its_last_line_when_its_token_is_revoked() {
    let (api, _test) = Api::new().await;
    let (made, task) = api.ask(&api.all, &Method::POST, "/v1/tasks", r#"{"queue":"mine","delay_ms":3600000}"#).await;
    assert_eq!(made, 201, "{task}");
    for is_revoked in [false, true] {
        let request = Request::get("/v1/tasks/export?queue=mine")
            .header(header::AUTHORIZATION, format!("Bearer {}", api.all))
            .body(Body::empty());
        let export = api.router.clone().oneshot(request.expect("a request")).await.expect("an answer");
        let mut pieces = export.into_body().into_data_stream();
        let first = pieces.next().await.expect("a piece").expect("the line of the task");
        assert!(String::from_utf8_lossy(&first).contains("mine"), "{first:?}");
        if is_revoked {
            api.counter.access.put_in_force(TokenBook { revision: 9, tokens: Vec::new() });
        }
        let last = pieces.next().await.expect("a piece");
        assert_eq!(last.is_err(), is_revoked, "{last:?}");
    }
}

#[tokio::test]
async fn an_unreadable_path_of_a_business_key_is_a_problem() {
    let (api, _test) = Api::new().await;
    for method in [Method::GET, Method::PATCH, Method::DELETE] {
        let (status, body) = api.ask(&api.all, &method, "/v1/queues/mine/keys/%FF", "").await;
        let problem: Value = serde_json::from_str(&body).unwrap_or_default();
        assert_eq!((status, &problem["type"]), (404, &"urn:duetime:problem:not_found".into()), "{method}: {body}");
    }
}

#[tokio::test]
async fn what_was_done_shown_or_refused_is_noted_and_what_was_submitted_is_not() {
    let (mut api, _test) = Api::new().await;
    let mut noted = Vec::new();
    let (_, made) = api.ask(&api.all, &Method::POST, "/v1/tasks", r#"{"queue":"mine","delay_ms":3600000}"#).await;
    let id = serde_json::from_str::<Value>(&made).expect("a task")["id"].as_str().expect("an id").to_owned();
    for (token, method, path, body) in [
        (&api.mine, Method::GET, format!("/v1/tasks/{id}"), ""),
        (&api.mine, Method::DELETE, format!("/v1/tasks/{id}"), ""),
        (&api.mine, Method::PUT, "/v1/queues/%74heirs".to_owned(), "{}"),
        (&api.mine, Method::GET, "/v1/audit".to_owned(), ""),
        (&api.all, Method::POST, "/v1/tasks/bulk".to_owned(), r#"{"action":"cancel","filter":{"queue":"mine"}}"#),
        (&api.all, Method::POST, "/v1/tokens".to_owned(), r#"{"name":"third","role":"viewer"}"#),
        (&"nobody".to_owned(), Method::DELETE, format!("/v1/tasks/{}", id.to_uppercase()), ""),
        (&api.all, Method::GET, "/v1/tasks/export?queue=mine".to_owned(), ""),
        (
            &api.mine,
            Method::POST,
            "/v1/tasks/batch".to_owned(),
            r#"[{"queue":"theirs"},{"queue":"mine"},{"queue":"theirs"}]"#,
        ),
    ] {
        api.ask(token, &method, &path, body).await;
    }
    while let Ok(note) = api.counter.notes.try_recv() {
        assert_eq!(note.event.request_id.as_deref(), Some("r-7"));
        noted.push(note.event);
    }
    let shown: Vec<_> =
        noted.iter().map(|event| (&*event.caller, event.action.text(), event.target.as_str(), event.status)).collect();
    let expected = [
        ("mine", "task.read", id.as_str(), 200),
        ("mine", "task.cancel", id.as_str(), 200),
        ("mine", "queue.put", "theirs", 403),
        ("mine", "refused", "GET /v1/audit", 403),
        ("all", "task.bulk", "tasks", 200),
        ("all", "token.create", "third", 201),
        ("anonymous", "task.cancel", id.as_str(), 401),
        ("all", "task.export", "queue=mine", 200),
        ("mine", "refused", "POST /v1/tasks/batch", 403),
    ];
    assert_eq!(shown, expected);
    let ids: Vec<_> = noted.iter().map(|event| (&*event.caller, event.caller_id)).collect();
    assert!(ids.contains(&("all", Some(1))) && ids.contains(&("mine", Some(2))), "{ids:?}");
    assert!(ids.contains(&("anonymous", None)), "{ids:?}");
    let details: Vec<_> = noted.iter().filter_map(|event| event.detail.as_deref()).collect();
    assert!(details[0].starts_with("matched 0, done 0: {\"action\""), "{details:?}");
    assert_eq!(details[1], "viewer, all queues");
    assert!(details.last().is_some_and(|detail| detail.starts_with("2 tasks: ")), "{details:?}");
}
