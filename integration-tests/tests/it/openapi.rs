//! The OpenAPI document against real nodes. Every operation is called, with good and with bad requests, and every
//! answer fits its description. A described operation that is not called here fails the scenario.

#[path = "../openapi/document.rs"]
mod document;

use std::{cell::RefCell, collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use document::{Answer, Document, Operation};
use integration_tests::{client::Client, sandbox::Sandbox};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{in_state, language, moves, scenario, until};

/// An id that no task has.
const NOBODY: &str = "0199f3a0-0000-7000-8000-000000000005";
/// Later than the scenario ends, so that no task comes due by itself.
const LATER_MS: i64 = 3_600_000;

/// Sends requests, and checks each answer against the document.
struct Asker {
    client: Client,
    document: Document,
    done: RefCell<BTreeSet<String>>,
    refused: RefCell<BTreeSet<String>>,
}

impl Asker {
    async fn of(client: Client) -> Result<Self> {
        let text = client.send(Method::GET, "/openapi.json", None).await?.text().await?;
        let document = Document(serde_json::from_str(&text)?);
        Ok(Self { client, document, done: RefCell::default(), refused: RefCell::default() })
    }

    async fn asked(&self, method: &str, path: &str, body: Option<&Value>) -> Result<(Operation<'_>, u16, Value)> {
        let operation = self.document.operation(method, path)?;
        let body = body.map(|body| body.to_string().into_bytes());
        let answer = self.client.send(method.to_uppercase().parse()?, path, body).await?;
        let status = answer.status().as_u16();
        let content_type =
            answer.headers().get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let content_type = content_type.split(';').next().unwrap_or_default().to_owned();
        let answer = Answer { status, content_type, text: answer.text().await? };
        self.document.check_answer(operation, &answer)?;
        let called = if status < 400 { &self.done } else { &self.refused };
        called.borrow_mut().insert(operation.to_string());
        Ok((operation, status, serde_json::from_str(&answer.text).unwrap_or(Value::Null)))
    }

    /// Sends a described request, which must succeed.
    async fn does(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (operation, status, answer) = self.asked(method, path, body).await?;
        ensure!(status < 400, "{method} {path} {body:?}: {status} {answer}");
        if let (Some(schema), Some(body)) = (operation.request(), body) {
            self.document.check(schema, body)?;
        }
        self.check_query(operation, path)?;
        Ok(answer)
    }

    /// Refuses a parameter of a query that is not described. A query is text, its schemas may say numbers.
    fn check_query(&self, operation: Operation<'_>, path: &str) -> Result<()> {
        let query = path.split_once('?').map_or("", |(_, query)| query);
        let told = operation.told["parameters"].as_array().into_iter().flatten();
        let told = told.map(|one| self.document.resolved(one)).collect::<Result<Vec<_>>>()?;
        for (name, text) in form_urlencoded::parse(query.as_bytes()) {
            let found = told.iter().find(|one| one["in"] == "query" && one["name"] == *name);
            let schema = &found.with_context(|| format!("{operation} has no parameter `{name}`"))?["schema"];
            let read = serde_json::from_str(&text).unwrap_or(Value::Null);
            self.document.check(schema, &json!(text)).or_else(|error| {
                self.document.check(schema, &read).map_err(|_| error.context(format!("{operation}: `{name}`")))
            })?;
        }
        Ok(())
    }

    /// Sends a described request, which must be refused.
    async fn refuses(&self, expected: u16, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let (_, status, answer) = self.asked(method, path, body).await?;
        ensure!(status == expected, "{method} {path} {body:?}: {status} instead of {expected}: {answer}");
        ensure!(answer["status"] == expected, "{answer}");
        Ok(answer)
    }

    /// Sends a body that neither the document nor a node allows.
    async fn refuses_body(&self, method: &str, path: &str, body: &Value) -> Result<()> {
        let answer = self.refuses(422, method, path, Some(body)).await?;
        let schema = self.document.operation(method, path)?.request().context("it takes a body")?;
        ensure!(self.document.check(schema, body).is_err(), "{method} {path}: the document allows {body}: {answer}");
        Ok(())
    }

    /// Submits a task of a queue, which waits unless `more` says otherwise.
    async fn task(&self, queue: &str, more: &Value) -> Result<String> {
        let mut task = json!({ "queue": queue, "delay_ms": LATER_MS });
        for (name, value) in more.as_object().into_iter().flatten() {
            task[name] = value.clone();
        }
        let task = self.does("post", "/v1/tasks", Some(&task)).await?;
        Ok(task["id"].as_str().context("an id")?.to_owned())
    }

    /// Submits a task and waits until it is delivered: attempt 1 is with the broker.
    async fn delivered(&self) -> Result<String> {
        let id = self.task("work", &json!({ "delay_ms": 0, "max_attempts": 1 })).await?;
        in_state(&self.client, &id, "delivered").await?;
        Ok(id)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_answers_as_the_document_says() {
    scenario(Sandbox::builder().nodes(2).databases(2), async |sandbox| {
        let asker = Asker::of(sandbox.client(1)).await?;
        let kept = std::fs::read_to_string(language::root().join("scheduler-node/src/http/openapi.json"))?;
        ensure!(asker.document.0 == serde_json::from_str::<Value>(&kept)?, "a node answers with another document");
        // No longer than succeeded tasks are kept: a new database has no partition yet for tasks that are kept for
        // two weeks.
        let work = json!({ "settle": "result", "keep_dead_ms": 86_400_000 });
        sandbox.put_queues(&[("work", work)]).await?;

        the_examples_are_accepted(&asker).await?;
        tasks_are_described(&asker).await?;
        keys_and_many_tasks_are_described(&asker).await?;
        queues_and_schedules_are_described(&asker).await?;
        tokens_and_deeds_are_described(&asker).await?;
        the_node_is_described(&asker, sandbox).await?;
        shards_and_databases_are_described(&asker, sandbox).await?;
        refusals_are_described(&asker).await?;
        bodies_that_are_not_described_are_refused(&asker).await?;

        let all: BTreeSet<String> = asker.document.operations().iter().map(ToString::to_string).collect();
        let silent: Vec<_> = all.difference(&asker.done.borrow()).cloned().collect();
        // A database is removed once all its shards have moved, which takes longer than this scenario. And here no
        // server has lost a commit; the failover scenarios accept a loss.
        let elsewhere = ["DELETE /v1/databases/{name}", "POST /v1/databases/{name}/accept-loss"];
        ensure!(silent == elsewhere, "described but not called here: {silent:?}");
        // These take no input that could be wrong, and need no token.
        let willing: Vec<_> = all.difference(&asker.refused.borrow()).cloned().collect();
        ensure!(willing == ["GET /healthz", "GET /readyz"], "described but never refused here: {willing:?}");
        Ok(())
    })
    .await;
}

/// Sends every request example of the document unchanged, to objects made for it.
async fn the_examples_are_accepted(asker: &Asker) -> Result<()> {
    for operation in asker.document.operations() {
        if operation.path == "/v1/shards/moves" {
            // Its target is no database of this cluster: `shards_and_databases_are_described` sends such requests.
            continue;
        }
        let reported = asker.delivered().await?;
        for (number, (_, example)) in operation.examples().enumerate() {
            let path = match operation.path {
                "/v1/tasks/{id}" => format!("/v1/tasks/{}", asker.task("examples", &json!({})).await?),
                "/v1/tasks/{id}/result" => format!("/v1/tasks/{reported}/result"),
                "/v1/queues/{queue}/keys/{key}" => {
                    asker.task("examples", &json!({ "key": "k" })).await?;
                    "/v1/queues/examples/keys/k".to_owned()
                }
                path => path.replace("{queue}", &format!("q{number}")).replace("{name}", &format!("s{number}")),
            };
            asker.does(operation.method, &path, Some(example)).await?;
        }
    }
    Ok(())
}

async fn tasks_are_described(asker: &Asker) -> Result<()> {
    let id = asker
        .task(
            "mails",
            &json!({ "key": "a", "headers": { "x": "y" }, "partition_key": "p", "expires_after_ms": 2 * LATER_MS }),
        )
        .await?;
    let again =
        asker.does("post", "/v1/tasks", Some(&json!({ "queue": "mails", "key": "a", "partition_key": "p" }))).await?;
    ensure!(again["duplicate"] == true, "{again}");
    let waits = asker.task("mails", &json!({ "partition_key": "p", "depends_on": ["a", "nothing"] })).await?;
    let shown = asker.does("get", &format!("/v1/tasks/{waits}"), None).await?;
    ensure!(shown["depends_on"].as_array().is_some_and(|all| all.len() == 2), "{shown}");

    let page = "/v1/tasks?queue=mails&state=scheduled&key=a&partition_key=p&due_after=0&due_before=2099-01-01T00:00:00Z&limit=1";
    let page = asker.does("get", page, None).await?;
    ensure!(page["tasks"][0]["id"] == id.as_str(), "{page}");
    let first = asker.does("get", "/v1/tasks?limit=1", None).await?;
    let cursor = first["next_cursor"].as_str().context("more than one task")?;
    asker.does("get", &format!("/v1/tasks?limit=1&cursor={cursor}"), None).await?;

    let bytes = asker
        .task("mails", &json!({ "payload_base64": "AP8=", "content_type": "image/png", "max_attempts": 2 }))
        .await?;
    asker.does("get", &format!("/v1/tasks/{bytes}"), None).await?;
    asker.does("delete", &format!("/v1/tasks/{bytes}"), None).await?;
    asker.does("post", &format!("/v1/tasks/{}/stop", asker.task("mails", &json!({})).await?), None).await?;
    asker.does("post", &format!("/v1/tasks/{}/run", asker.task("mails", &json!({})).await?), None).await?;

    let dead = asker.delivered().await?;
    let stopping = asker.does("post", &format!("/v1/tasks/{dead}/stop"), None).await?;
    ensure!(stopping["outcome"] == "stopping", "{stopping}");
    let dead = asker.delivered().await?;
    let failed =
        json!({ "attempt": 1, "status": "discard", "status_msg": "no use", "status_code": 7, "retry_in_ms": 0 });
    asker.does("post", &format!("/v1/tasks/{dead}/result"), Some(&failed)).await?;
    let shown = asker.does("get", &format!("/v1/tasks/{dead}"), None).await?;
    ensure!(shown["state"] == "dead" && shown["attempts"].as_array().is_some_and(|all| !all.is_empty()), "{shown}");
    asker.does("post", &format!("/v1/tasks/{dead}/retry"), None).await?;
    Ok(())
}

async fn keys_and_many_tasks_are_described(asker: &Asker) -> Result<()> {
    let place = "/v1/queues/mails/keys/b%20c?partition_key=p";
    asker.task("mails", &json!({ "key": "b c", "partition_key": "p" })).await?;
    asker.does("get", place, None).await?;
    asker.does("patch", place, Some(&json!({ "priority": 1 }))).await?;
    asker.does("delete", place, None).await?;

    let batch = json!([{ "queue": "many", "delay_ms": LATER_MS }, { "queue": "many", "priority": 9 }, { "queue": "many", "delay_ms": LATER_MS, "retry": { "kind": "immediate" }, "max_attempts": 2 }]);
    let answers = asker.client.batch(batch.as_array().context("a list")?).await?;
    ensure!(answers.iter().map(Result::is_ok).collect::<Vec<_>>() == [true, false, true], "{answers:?}");
    // The refused task violates the schema, so the whole request skips the check against it.
    let (_, status, _) = asker.asked("post", "/v1/tasks/batch", Some(&batch)).await?;
    ensure!(status == 200, "{status}");
    asker.does("get", "/v1/tasks/export?queue=many&error=x", None).await?;
    asker.does("get", "/v1/tasks/export", None).await?;
    let out = asker.delivered().await?;
    let all = asker
        .does("post", "/v1/tasks/bulk", Some(&json!({ "action": "cancel", "filter": { "queue": "work" } })))
        .await?;
    ensure!(all["refused"]["in_flight"].as_u64() >= Some(1), "{out} is in flight: {all}");
    let part = asker
        .does("post", "/v1/tasks/bulk", Some(&json!({ "action": "cancel", "filter": { "queue": "many" }, "limit": 1 })))
        .await?;
    let rest = json!({ "action": "cancel", "filter": { "queue": "many" }, "cursor": part["next_cursor"] });
    asker.does("post", "/v1/tasks/bulk", Some(&rest)).await?;
    Ok(())
}

async fn queues_and_schedules_are_described(asker: &Asker) -> Result<()> {
    for call in ["pause", "resume"] {
        asker.does("post", &format!("/v1/queues/work/{call}"), None).await?;
        asker.does("post", &format!("/v1/schedules/s0/{call}"), None).await?;
    }
    asker.does("get", "/v1/queues", None).await?;
    asker.does("get", "/v1/queues/work", None).await?;
    asker.does("put", "/v1/queues/gone", Some(&json!({}))).await?;
    asker.does("delete", "/v1/queues/gone", None).await?;

    // A second put: the schedule exists already.
    asker
        .does("put", "/v1/schedules/s1", Some(&json!({ "queue": "beats", "every_ms": LATER_MS, "paused": false })))
        .await?;
    asker.does("post", "/v1/schedules/s1/run", None).await?;
    asker.does("get", "/v1/schedules/s0?next=2", None).await?;
    let page = asker.does("get", "/v1/schedules?limit=1", None).await?;
    let cursor = page["next_cursor"].as_str().context("more than one schedule")?;
    asker.does("get", &format!("/v1/schedules?cursor={cursor}"), None).await?;
    asker.does("delete", "/v1/schedules/s1", None).await?;
    Ok(())
}

async fn tokens_and_deeds_are_described(asker: &Asker) -> Result<()> {
    asker.does("delete", "/v1/tokens/shop-1", None).await?;
    let page = asker.does("get", "/v1/tokens?limit=1", None).await?;
    let cursor = page["next_cursor"].as_str().context("more than one token")?;
    asker.does("get", &format!("/v1/tokens?cursor={cursor}"), None).await?;
    asker.refuses(409, "post", "/v1/tokens", Some(&json!({ "name": "ann", "role": "viewer" }))).await?;
    let revoked = "/v1/audit?who=operator&what=token.revoke&target=shop-1&after=0&before=2099-01-01T00:00:00Z&limit=1";
    let told = until("the deed is in the audit", Duration::from_secs(30), || async {
        let page = asker.does("get", revoked, None).await.ok()?;
        page["next_cursor"].as_str().map(str::to_owned)
    });
    let cursor = told.await?;
    asker.does("get", &format!("/v1/audit?cursor={cursor}"), None).await?;
    Ok(())
}

async fn the_node_is_described(asker: &Asker, sandbox: &Sandbox) -> Result<()> {
    for path in ["/v1/cluster", "/healthz", "/readyz", "/metrics", "/openapi.json"] {
        asker.does("get", path, None).await?;
    }
    let (one, other) = (sandbox.node(0).name(), sandbox.node(1).name());
    asker.does("post", &format!("/v1/cluster/nodes/{one}/drain"), None).await?;
    asker.refuses(409, "post", &format!("/v1/cluster/nodes/{other}/drain"), None).await?;
    asker.does("post", &format!("/v1/cluster/nodes/{one}/undrain"), None).await?;
    let stranger = Asker::of(sandbox.client(0)).await?;
    let stranger = Asker { client: stranger.client.with_token(None), ..stranger };
    for operation in asker.document.operations() {
        let path = operation.path.replace("{id}", NOBODY).replace(['{', '}'], "");
        let (_, status, _) = stranger.asked(operation.method, &path, None).await?;
        ensure!(status == if operation.told["x-roles"].is_null() { 200 } else { 401 }, "{operation}: {status}");
    }
    asker.refused.borrow_mut().append(&mut stranger.refused.borrow_mut());
    Ok(())
}

/// Requests of operators about shards and databases. Every move is called off, and none reaches its cut before.
async fn shards_and_databases_are_described(asker: &Asker, sandbox: &Sandbox) -> Result<()> {
    let _held_up = (moves::hold_up(sandbox, 0).await?, moves::hold_up(sandbox, 1).await?);
    asker.does("get", "/v1/shards?estimates=true", None).await?;
    let databases = asker.does("get", "/v1/databases?estimates=true", None).await?;
    let (first, second) = (&databases["databases"][0], &databases["databases"][1]);
    let (home, other) = (first["name"].as_str().context("a name")?, second["name"].as_str().context("a name")?);
    ensure!(first["first"] == true && first["shards"] == "0-63" && second["shards"] == "64-127", "{databases}");
    let request = json!({ "shards": "0-1,64", "to": other });
    let moving = asker.does("post", "/v1/shards/moves", Some(&request)).await?;
    ensure!(moving == json!({ "shards": "0-1", "to": other, "already": "64" }), "{moving}");
    asker.refuses(409, "post", "/v1/shards/moves", Some(&request)).await?;
    let list = asker.does("get", "/v1/shards/moves", None).await?;
    ensure!(list["moves"].as_array().is_some_and(|all| all.len() == 2), "{list}");
    let off = asker.does("delete", "/v1/shards/moves?shards=0-2", None).await?;
    ensure!(off == json!({ "called_off": "0-1", "too_late": "", "not_moving": "2" }), "{off}");
    for (status, body) in [
        (422, json!({ "shards": "0", "to": "nowhere" })),
        (422, json!({ "shards": "900", "to": other })),
        (409, json!({ "shards": "64-70", "to": other })),
    ] {
        asker.refuses(status, "post", "/v1/shards/moves", Some(&body)).await?;
    }
    asker.refuses(404, "delete", "/v1/shards/moves?shards=9", None).await?;
    asker.refuses(422, "delete", "/v1/shards/moves", None).await?;
    let drained = asker.does("post", &format!("/v1/databases/{other}/drain"), None).await?;
    ensure!(drained["standing"] == "draining" && drained["leaving"] == "64-127", "{drained}");
    asker.refuses(409, "post", &format!("/v1/databases/{home}/drain"), None).await?;
    asker.refuses(409, "delete", &format!("/v1/databases/{other}"), None).await?;
    asker.refuses(409, "delete", &format!("/v1/databases/{home}"), None).await?;
    asker.does("post", &format!("/v1/databases/{other}/undrain"), None).await?;
    asker.does("delete", "/v1/shards/moves?shards=64-127", None).await?;
    Ok(())
}

/// Valid requests that cannot be carried out.
async fn refusals_are_described(asker: &Asker) -> Result<()> {
    for operation in asker.document.operations().into_iter().filter(|operation| operation.path.contains('{')) {
        // These create the missing object.
        if operation.method == "put" {
            continue;
        }
        let path = operation.path.replace("{id}", NOBODY).replace(['{', '}'], "");
        let body = operation.examples().next().map(|(_, example)| example);
        asker.refuses(404, operation.method, &path, body).await?;
    }
    let out = asker.delivered().await?;
    let problem = asker.refuses(409, "delete", &format!("/v1/tasks/{out}"), None).await?;
    ensure!(problem["type"] == "urn:duetime:problem:in_flight" && problem["state"] == "delivered", "{problem}");
    asker.refuses(409, "patch", &format!("/v1/tasks/{out}"), Some(&json!({ "priority": 1 }))).await?;
    for call in ["run", "retry"] {
        asker.refuses(409, "post", &format!("/v1/tasks/{out}/{call}"), None).await?;
    }
    asker.refuses(422, "post", &format!("/v1/tasks/{out}/run"), Some(&json!({ "delay_ms": 1 }))).await?;
    let stale = json!({ "attempt": 7, "status": "succeeded" });
    asker.refuses(409, "post", &format!("/v1/tasks/{out}/result"), Some(&stale)).await?;
    asker.refuses(409, "delete", "/v1/queues/work", None).await?;
    asker.refuses(409, "put", "/v1/queues/work", Some(&json!({ "placement": "single" }))).await?;
    asker.task("mails", &json!({ "key": "d", "version": 3 })).await?;
    let taken = |more: Value| json!({ "queue": "mails", "key": "d", "on_duplicate": more });
    asker.refuses(409, "post", "/v1/tasks", Some(&taken(json!("reject")))).await?;
    let stale = asker.refuses(409, "post", "/v1/tasks", Some(&taken(json!("version")))).await?;
    ensure!(stale["type"] == "urn:duetime:problem:stale_version", "{stale}");
    let large = json!({ "queue": "mails", "payload": "x".repeat(300_000) });
    asker.refuses(413, "post", "/v1/tasks", Some(&large)).await?;
    for path in [
        "/v1/tasks?limit=0",
        "/v1/tasks?colour=red",
        "/v1/tasks/export?state=done",
        "/v1/schedules?limit=x",
        "/v1/tokens?limit=0",
        "/v1/audit?who=",
        "/v1/schedules/s0?next=101",
        "/v1/shards?estimates=maybe",
        "/v1/databases?colour=red",
        "/v1/cluster?colour=red",
        "/v1/shards/moves?colour=red",
    ] {
        asker.refuses(422, "get", path, None).await?;
    }
    Ok(())
}

/// Bodies that the document does not allow: a node refuses each of them.
async fn bodies_that_are_not_described_are_refused(asker: &Asker) -> Result<()> {
    let id = asker.task("mails", &json!({})).await?;
    let out = asker.delivered().await?;
    let (task, result) = (format!("/v1/tasks/{id}"), format!("/v1/tasks/{out}/result"));
    let cases = [
        (
            "post",
            "/v1/tasks",
            json!([{}, { "queue": "a b" }, { "queue": "a", "colour": 1 }, { "queue": "a", "priority": 6 },
            { "queue": "a", "version": 1 }, { "queue": "a", "payload": 1, "payload_base64": "" }, { "queue": "a", "delay_ms": "1" },
            { "queue": "a", "delay_ms": 1, "due_at": 1 }, { "queue": "a", "due_at": "tomorrow" }, { "queue": "a", "key": "" },
            { "queue": "a", "headers": { "x-a": "b" } }, { "queue": "a", "headers": { "a": 1 } }, { "queue": "a", "retry": { "kind": "fixed" } },
            { "queue": "a", "retry": { "kind": "fixed", "delay_ms": 1, "factor": 2.0 } }, { "queue": "a", "max_attempts": 0 },
            { "queue": "a", "on_duplicate": "maybe", "key": "k" }, { "queue": "a", "depends_on": [1] }]),
        ),
        ("post", "/v1/tasks/batch", json!([{}, { "task": [] }, 5])),
        (
            "post",
            "/v1/tasks/bulk",
            json!([{}, { "action": "stop" }, { "action": "run", "all": true, "limit": 0 },
            { "action": "move", "all": true, "shift_ms": 0 }, { "action": "run", "filter": { "colour": "red" } }]),
        ),
        ("patch", task.as_str(), json!([{}, { "queue": "b" }, { "priority": 0 }])),
        (
            "post",
            result.as_str(),
            json!([{}, { "attempt": 0, "status": "failed" }, { "attempt": 1, "status": "done" },
            { "attempt": 1, "status": "running", "progress": 101 }, { "attempt": 1, "status": "running", "colour": 1 }]),
        ),
        (
            "put",
            "/v1/queues/q",
            json!([{ "settle": "maybe" }, { "colour": 1 }, { "ordered": true }, { "max_running": 1 }, { "timeout_ms": 0 },
            { "format": "celery", "settle": "result" }, { "max_pending": -1 }, { "max_submits_per_second": 0 }, { "priority_weights": [] }, { "rate_per_second": 0 }]),
        ),
        (
            "post",
            "/v1/tokens",
            json!([{}, { "name": "a b", "role": "viewer" }, { "name": "a", "role": "root" }, { "name": "a", "role": "viewer", "queues": [] },
            { "name": "a", "role": "metrics", "queues": ["a"] },
            { "name": "a", "role": "viewer", "expires_after_ms": 0 }, { "name": "a", "role": "viewer", "limits": { "pending": -1 } }, { "name": "a", "role": "viewer", "colour": 1 }]),
        ),
        (
            "post",
            "/v1/shards/moves",
            json!([{}, { "shards": "0" }, { "shards": "a", "to": "main" }, { "shards": [0], "to": "main" }, { "shards": "", "to": "main" },
            { "shards": "0", "to": "main", "colour": 1 }]),
        ),
        ("post", "/v1/shards/rebalance", json!([{ "tolerance_percent": 101 }, { "dry_run": "yes" }, { "colour": 1 }])),
        (
            "put",
            "/v1/schedules/s",
            json!([{ "queue": "a" }, { "cron": "@daily" }, { "queue": "a", "every_ms": 1 }, { "queue": "a", "cron": "@daily", "every_ms": 60_000 },
            { "queue": "a", "every_ms": 60_000, "time_zone": "UTC" }, { "queue": "a", "cron": "@daily", "overlap": "maybe" }, { "queue": "a", "cron": "@daily", "delay_ms": 1 }]),
        ),
    ];
    for (method, path, bodies) in &cases {
        for body in bodies.as_array().into_iter().flatten() {
            asker.refuses_body(method, path, body).await?;
        }
    }
    asker.refuses(422, "patch", "/v1/queues/mails/keys/d", Some(&json!({ "key": "e" }))).await?;
    Ok(())
}
