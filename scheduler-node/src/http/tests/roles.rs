//! Tests every route with each role: which roles are let in, and that no answer shows the data of tasks to a role
//! without payload access.

use common::access::{Permission, Role};

use super::{
    super::{Requirement, requirement::requirement},
    *,
};
use crate::{
    audit::AuditAction::{ScheduleRead, TaskList, TaskRead},
    desk::tests::claim,
    store::tests::fixture::TestDatabase,
};

/// A mark in every piece of data.
const MARK: &str = "SECRET-7";

const KEYED: &str =
    r#"{"queue":"mine","key":"k","delay_ms":3600000,"payload":{"x":"SECRET-7"},"headers":{"h":"SECRET-7"}}"#;

/// A cluster with a marked task in every place that a task can be in, and a token of each role.
struct Marked {
    api: Api,
    /// Waiting between attempts, dead, succeeded.
    ids: Vec<String>,
    /// A task that is with a consumer, and the number of its attempt.
    out: (String, i32),
    _test: TestDatabase,
}

impl Marked {
    async fn new() -> Self {
        let (api, test) = Api::new().await;
        for role in Role::ALL {
            let json = format!(r#"{{"name":"the-{role}","role":"{role}"}}"#);
            let made = api.counter.desk.token_add(TokenRequest::parse(&json).expect("a token"), "test").await;
            api.tokens.lock().insert(role.text(), made.expect("made").token.expect("told"));
        }
        let marked = KEYED.replace("\"key\":\"k\",", "");
        let mut ids = vec![submit(&api, KEYED).await];
        for _ in 0..2 {
            ids.push(submit(&api, &marked).await);
        }
        let history = sqlx::query(
            r#"UPDATE duetime.task SET attempt = 1, history = '[{"attempt":1,"reason":"rejected","error":"SECRET-7"}]'"#,
        );
        history.execute(&test.pool).await.expect("written");
        for (id, state) in [(&ids[1], "dead"), (&ids[2], "succeeded")] {
            finish(&test, id, state).await;
        }
        let due = submit(&api, &marked.replace("3600000", "0")).await;
        let attempt = claim(&api.counter, due.parse().expect("an id")).await;
        let schedule = r#"{"queue":"mine","every_ms":3600000,"payload":{"x":"SECRET-7"},"headers":{"h":"SECRET-7"}}"#;
        let (put, body) = api.ask(&api.all, &Method::PUT, "/v1/schedules/nightly", schedule).await;
        assert_eq!(put, 201, "{body}");
        Self { api, ids, out: (due, attempt.number()), _test: test }
    }

    /// The paths of a route, one for each task it can be about.
    fn paths(&self, method: &Method, route: &str) -> Vec<String> {
        let path = route
            .replace("/keys/{key}", "/keys/k")
            .replace("/schedules/{name}", "/schedules/nightly")
            .replace("/queues/{queue}", "/queues/mine")
            .replace("{name}", "nothing");
        let paths: Vec<String> = match route {
            "/v1/tasks/{id}/result" => vec![path.replace("{id}", &self.out.0)],
            _ => self.ids.iter().chain([&self.out.0]).map(|id| path.replace("{id}", id)).collect(),
        };
        if path == "/v1/tasks" && *method == Method::GET {
            return ["", "?queue=mine", "?state=dead", "?queue=mine&key=k"]
                .map(|query| format!("{path}{query}"))
                .to_vec();
        }
        paths
    }

    fn body(&self, method: &Method, route: &str) -> String {
        match (method.as_str(), route) {
            ("POST", "/v1/tasks") => KEYED.replace("SECRET-7", "other"),
            ("POST", "/v1/tasks/batch") => format!("[{}]", KEYED.replace("SECRET-7", "other")),
            ("POST", "/v1/tasks/bulk") => r#"{"action":"cancel","filter":{"queue":"mine"},"dry_run":true}"#.to_owned(),
            ("POST", "/v1/tasks/{id}/result") => format!(r#"{{"attempt":{},"status":"running"}}"#, self.out.1),
            _ => String::new(),
        }
    }

    async fn ask(&self, role: Role, method: &Method, path: &str, body: &str) -> (u16, String) {
        let token = self.api.tokens.lock()[role.text()].clone();
        self.api.ask(&token, method, path, body).await
    }
}

async fn submit(api: &Api, json: &str) -> String {
    let (_, made) = api.ask(&api.all, &Method::POST, "/v1/tasks", json).await;
    let made: Value = serde_json::from_str(&made).expect("a task");
    made["id"].as_str().expect("an id").to_owned()
}

/// Makes a task look finished after its attempts, with its consumer's words.
async fn finish(test: &TestDatabase, id: &str, state: &str) {
    sqlx::query(
        "WITH gone AS (DELETE FROM duetime.task WHERE id = $1 RETURNING *)
         INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, headers, attempt, history,
                                      finished_at, result, status_msg, drop_on)
         SELECT id, shard, queue, $2::duetime.task_state, wake_at, due_at, payload, content_type, headers, 1, history, now(),
                '{\"x\":\"SECRET-7\"}', 'SECRET-7', (now() AT TIME ZONE 'UTC')::date + 14
           FROM gone",
    )
    .bind(id.parse::<uuid::Uuid>().expect("an id"))
    .bind(state)
    .execute(&test.pool)
    .await
    .expect("written");
}

#[tokio::test]
async fn a_role_without_payloads_finds_the_data_of_tasks_in_no_answer() {
    let marked = Marked::new().await;
    for role in Role::ALL.into_iter().filter(|role| !role.may(Permission::Payloads)) {
        for Route { method, path: route, .. } in ROUTES {
            let may = match requirement(method, Some(route)) {
                Requirement::May(permission) => role.may(permission),
                _ => true,
            };
            for path in marked.paths(method, route) {
                let (status, answer) = marked.ask(role, method, &path, &marked.body(method, route)).await;
                assert_eq!(status == 403, !may, "{method} {path} as {role}: {status} {answer}");
                assert!(!answer.contains(MARK), "{method} {path} as {role}: {answer}");
            }
        }
    }
}

#[tokio::test]
async fn a_viewer_sees_the_data_wherever_it_is_shown() {
    let marked = Marked::new().await;
    for route in
        ["/v1/tasks", "/v1/tasks/{id}", "/v1/queues/{queue}/keys/{key}", "/v1/schedules/{name}", "/v1/tasks/export"]
    {
        for path in marked.paths(&Method::GET, route) {
            let (status, answer) = marked.ask(Role::Viewer, &Method::GET, &path, "").await;
            assert_eq!(status, 200, "{path}: {answer}");
            assert!(answer.contains(MARK) && !answer.contains("data_hidden"), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn what_is_left_out_is_said_and_how_a_task_stands_is_shown() {
    let marked = Marked::new().await;
    let (_, dead) = marked.ask(Role::Observer, &Method::GET, &format!("/v1/tasks/{}", marked.ids[1]), "").await;
    let dead: Value = serde_json::from_str(&dead).expect("a task");
    assert_eq!((&dead["state"], &dead["data_hidden"]), (&"dead".into(), &true.into()), "{dead}");
    assert_eq!(dead["attempts"][0]["reason"], "rejected", "{dead}");
    let (_, schedule) = marked.ask(Role::Observer, &Method::GET, "/v1/schedules/nightly", "").await;
    let schedule: Value = serde_json::from_str(&schedule).expect("a schedule");
    assert_eq!((&schedule["every_ms"], &schedule["data_hidden"]), (&3_600_000.into(), &true.into()), "{schedule}");
}

#[tokio::test]
async fn a_filter_by_error_texts_needs_the_permission_to_read_them() {
    let marked = Marked::new().await;
    let path = format!("/v1/tasks?state=dead&error={MARK}");
    let (refused, why) = marked.ask(Role::Observer, &Method::GET, &path, "").await;
    assert_eq!(refused, 403, "{why}");
    let (found, tasks) = marked.ask(Role::Viewer, &Method::GET, &path, "").await;
    assert!(found == 200 && tasks.contains(&marked.ids[1]), "{tasks}");
}

#[tokio::test]
async fn a_caller_sees_the_data_of_a_new_task_that_it_sent_and_not_of_the_one_that_was_there() {
    let marked = Marked::new().await;
    let own = r#"{"queue":"mine","key":"own","partition_key":"p","delay_ms":3600000,"payload":"of-my-own"}"#;
    let waiting = r#"{"queue":"mine","key":"second","partition_key":"p","payload":"of-my-own","depends_on":[{"queue":"mine","key":"own"}]}"#;
    for (json, status) in [(own, 201), (waiting, 201), (own, 200)] {
        let (answered, task) = marked.ask(Role::Submitter, &Method::POST, "/v1/tasks", json).await;
        assert_eq!((answered, task.contains("of-my-own")), (status, status == 201), "{task}");
    }
}

#[tokio::test]
async fn answers_with_payloads_are_noted_with_the_token_and_others_are_not() {
    let mut marked = Marked::new().await;
    while marked.api.counter.notes.try_recv().is_ok() {}
    let (live, out) = (marked.ids[0].clone(), marked.out.0.clone());
    let report = marked.body(&Method::POST, "/v1/tasks/{id}/result");
    for role in [Role::Observer, Role::Viewer, Role::Producer] {
        for path in [
            format!("/v1/tasks/{live}"),
            "/v1/queues/mine/keys/k".to_owned(),
            "/v1/tasks?queue=mine&limit=2".to_owned(),
            "/v1/tasks?queue=empty".to_owned(),
            "/v1/schedules/nightly".to_owned(),
            "/v1/schedules".to_owned(),
            "/v1/queues/mine".to_owned(),
        ] {
            let (status, answer) = marked.ask(role, &Method::GET, &path, "").await;
            assert_eq!(status, 200, "{path}: {answer}");
        }
    }
    let (status, answer) = marked.ask(Role::Producer, &Method::POST, &format!("/v1/tasks/{out}/result"), &report).await;
    assert_eq!(status, 200, "{answer}");
    let (status, answer) = marked.ask(Role::Producer, &Method::POST, "/v1/tasks", KEYED).await;
    assert_eq!(status, 200, "{answer}");
    let mut noted = Vec::new();
    while let Ok(note) = marked.api.counter.notes.try_recv() {
        noted.push(note.event);
    }
    let shown: Vec<_> =
        noted.iter().map(|event| (&*event.caller, event.action, event.target.as_str(), event.status)).collect();
    let reads = |caller: &'static str| {
        [
            (caller, TaskRead, live.as_str(), 200),
            (caller, TaskRead, live.as_str(), 200),
            (caller, TaskList, "queue=mine&limit=2", 200),
            (caller, ScheduleRead, "nightly", 200),
        ]
    };
    let duplicate = ("the-producer", TaskRead, live.as_str(), 200);
    let expected: Vec<_> =
        reads("the-viewer").into_iter().chain(reads("the-producer")).chain(std::iter::once(duplicate)).collect();
    assert_eq!(shown, expected);
    let ids: std::collections::BTreeSet<_> = noted.iter().map(|event| (&*event.caller, event.caller_id)).collect();
    assert_eq!(ids.len(), 2, "one id for each token: {ids:?}");
    assert!(ids.iter().all(|(_, id)| id.is_some()), "{ids:?}");
}
