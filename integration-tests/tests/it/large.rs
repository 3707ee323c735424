//! Large scale: millions of rows, tens of thousands of queues. Every request of a person or a program is answered
//! within a bound that does not grow with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use integration_tests::{
    client::Client,
    sandbox::{Builder, Sandbox},
};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::{held_up_ms, scenario, until};

/// The bound of one answer on a busy machine. Most take some 10 ms. A request that grows with the rows fails earlier,
/// because PostgreSQL cancels each of its statements after 5 s.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// Requests of one walk: each searches for a second, or returns a page of hits.
const PAGES: usize = 1_000;

/// Runs `$fill` without the indexes of `duetime.task` and `duetime.archive`, which takes a quarter of the time.
pub(crate) fn in_bulk(fill: &str) -> String {
    format!(
        "SET synchronous_commit = off;
         SET maintenance_work_mem = '128MB';
         CREATE TEMP TABLE later AS
         SELECT i.indexrelid::regclass::text AS name, replace(pg_get_indexdef(i.indexrelid), ' ON ONLY ', ' ON ') AS again
           FROM pg_index AS i
          WHERE i.indrelid IN ('duetime.task'::regclass, 'duetime.archive'::regclass) AND NOT i.indisprimary;
         DO $$ DECLARE one record; BEGIN
             FOR one IN SELECT * FROM later LOOP EXECUTE 'DROP INDEX ' || one.name; END LOOP;
         END $$;
         {fill}
         DO $$ DECLARE one record; BEGIN
             FOR one IN SELECT * FROM later LOOP EXECUTE one.again; END LOOP;
         END $$;"
    )
}

/// The id of row `g`: later ids are larger, and the shard exists.
pub(crate) const ID: &str =
    "(lpad(to_hex(1700000000000 + g), 12, '0') || '7000800000000000' || lpad(to_hex(g % 128), 4, '0'))::uuid";

/// 1,000,000 live and 1,000,000 finished tasks of 200 queues. Most have neither key nor partition key. `rare` is the
/// partition key of 7 tasks of either table, and `often` a key that q199 used for each of its finished tasks.
fn two_million() -> String {
    in_bulk(&format!(
        "INSERT INTO duetime.queue (name, policy)
         SELECT 'q' || lpad(g::text, 3, '0'), '{{\"settle\":\"confirm\"}}'::jsonb FROM generate_series(0, 199) AS g;
         UPDATE duetime.meta SET queue_revision = queue_revision + 1;
         INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key, partition_key)
         SELECT {ID}, g % 128, 'q' || lpad((g % 200)::text, 3, '0'), 'scheduled', due, due, '{{}}', 'application/json',
                CASE WHEN g % 10 = 0 THEN 'k' || g END,
                CASE WHEN g % 142857 = 142856 THEN 'rare' WHEN g % 20 = 1 THEN 'p' || g % 1000 END
           FROM generate_series(1, 1000000) AS g, LATERAL (SELECT now() + interval '2 days' + g * interval '100 ms' AS due) AS row;
         INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, key, version, partition_key, attempt,
                                      status_msg, finished_at, drop_on)
         SELECT {ID}, g % 128, 'q' || lpad((g % 200)::text, 3, '0'),
                (CASE WHEN g / 200 % 50 = 7 THEN 'dead' ELSE 'succeeded' END)::duetime.task_state, due, due, '{{}}', 'application/json',
                CASE WHEN g % 200 = 199 THEN 'often' WHEN g % 10 = 0 THEN 'a' || g END, g,
                CASE WHEN g % 142857 = 142856 THEN 'rare' END, 1,
                CASE WHEN g = 1001409 THEN 'rare error' WHEN g / 200 % 50 = 7 THEN 'broken' END, now(),
                (now() AT TIME ZONE 'UTC')::date + 1 + (g % 14)::int
           FROM generate_series(1000001, 2000000) AS g, LATERAL (SELECT now() - (g - 1000000) * interval '80 ms' AS due) AS row;
         INSERT INTO duetime.audit (id, at, who, what, target, status, node)
         SELECT gen_random_uuid(), now() - g * interval '1 s', 'u' || g % 50, 'task.cancel', 't' || g, 200, 'a'
           FROM generate_series(1, 200000) AS g;"
    ))
}

/// The days of the archive that a new database has: today, the 14 for which dead tasks are kept, one more, and three
/// to spare.
const PARTITIONS: i64 = 19;

/// Runs a statement once the archive's partitions exist.
pub(crate) async fn run_sql(sandbox: &Sandbox, sql: &str) -> Result<()> {
    let mut connection = PgConnection::connect(&sandbox.database_url(0)).await?;
    let partitions = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'duetime.archive'::regclass";
    until("the archive has its partitions", Duration::from_secs(60), async || {
        let made: i64 = sqlx::query_scalar(partitions).fetch_one(&mut connection).await.ok()?;
        (made >= PARTITIONS).then_some(())
    })
    .await?;
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.context("the tables are filled")?;
    // As autovacuum leaves the tables: otherwise the first reader would write every page that it reads.
    sqlx::raw_sql("VACUUM (ANALYZE) duetime.task").execute(&mut connection).await?;
    sqlx::raw_sql("VACUUM (ANALYZE) duetime.archive").execute(&mut connection).await?;
    Ok(())
}

/// Sends requests and measures their time.
struct Asker {
    client: Client,
    /// The slowest requests, for the log.
    slowest: BTreeMap<Duration, String>,
    /// The cookie of a browser that is signed in.
    cookie: String,
    browser: reqwest::Client,
}

impl Asker {
    async fn new(sandbox: &Sandbox) -> Result<Self> {
        // The bound is what fails, with the request and its time.
        let client = sandbox.client(0).answered_within(ANSWERED_WITHIN * 3);
        let browser = integration_tests::http::stepwise();
        let sign_in = browser
            .post(format!("{}/console/sign-in", client.base()))
            .header("sec-fetch-site", "same-origin")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(format!("token={}", sandbox.node(0).config().token));
        let answer = sign_in.send().await?;
        let cookie = answer.headers().get("set-cookie").context("signed in")?.to_str()?;
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        Ok(Self { client, slowest: BTreeMap::new(), cookie, browser })
    }

    fn took(&mut self, what: &str, started: Instant) -> Result<()> {
        let took = started.elapsed();
        self.slowest.insert(took, what.to_owned());
        if self.slowest.len() > 12 {
            self.slowest.pop_first();
        }
        ensure!(took < ANSWERED_WITHIN + Duration::from_millis(held_up_ms()), "{what}: {took:?}");
        Ok(())
    }

    async fn ask(&mut self, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
        let started = Instant::now();
        let answer = self.client.call(method, path, body).await.with_context(|| path.to_owned())?;
        self.took(path, started)?;
        Ok(answer)
    }

    async fn get(&mut self, path: &str) -> Result<Value> {
        self.ask(Method::GET, path, None).await
    }

    /// A whole answer as text.
    async fn text(&mut self, path: &str) -> Result<String> {
        let started = Instant::now();
        let answer = self.client.send(Method::GET, path, None).await?;
        ensure!(answer.status().is_success(), "{path}: {}", answer.status());
        let text = answer.text().await?;
        self.took(path, started)?;
        Ok(text)
    }

    async fn page(&mut self, path: &str) -> Result<String> {
        let started = Instant::now();
        let asked = self.browser.get(format!("{}{path}", self.client.base())).header("cookie", &self.cookie);
        let answer = asked.send().await?;
        let status = answer.status();
        let html = answer.text().await?;
        ensure!(status.is_success() || status.is_redirection(), "{path}: {status}\n{html}");
        self.took(path, started)?;
        Ok(html)
    }

    /// All pages of the list under `name`.
    async fn walk(&mut self, path: &str, name: &str) -> Result<Vec<Value>> {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        let with = if path.contains('?') { '&' } else { '?' };
        for _ in 0..PAGES {
            let page = self.get(&format!("{path}{cursor}")).await?;
            found.extend(page[name].as_array().with_context(|| page.to_string())?.iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("{with}cursor={next}"),
                None => return Ok(found),
            }
        }
        bail!("{path}: no end after {PAGES} pages")
    }

    /// Runs a bulk operation step by step; returns how many tasks were matched, and done.
    async fn bulk(&mut self, mut request: Value) -> Result<(u64, u64)> {
        let mut sum = (0, 0);
        // A step is one request, and answers within 5 s.
        for _ in 0..PAGES {
            let answer: Value = self.client.call(Method::POST, "/v1/tasks/bulk", Some(&request)).await?;
            ensure!(answer.get("interrupted").is_none(), "{answer}");
            sum.0 += answer["matched"].as_u64().context("matched")?;
            sum.1 += answer["done"].as_u64().context("done")?;
            request["cursor"] = answer["next_cursor"].clone();
            if request["cursor"].is_null() {
                return Ok(sum);
            }
        }
        bail!("{request}: no end after {PAGES} requests")
    }
}

async fn played(builder: Builder, story: impl AsyncFnOnce(&mut Asker, &Sandbox) -> Result<()>) {
    scenario(builder, async |sandbox| {
        let mut asker = Asker::new(sandbox).await?;
        let told = story(&mut asker, sandbox).await;
        println!("the slowest answers: {:#?}", asker.slowest);
        // The next scenario that kills this server must not wait for the recovery of these rows.
        sandbox.postgres(0).execute("CHECKPOINT").await?;
        told
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn among_two_million_tasks_everything_answers_within_a_bound() {
    played(Sandbox::builder().nodes(1).unwatched(), async |asker, sandbox| {
        let started = Instant::now();
        run_sql(sandbox, &two_million()).await?;
        println!("filled in {:?}", started.elapsed());
        let client = sandbox.client(0);
        until("the queues are known", Duration::from_secs(60), || async { client.queue("q199").await.ok() }).await?;
        lists(asker).await?;
        walks(asker).await?;
        keys(asker).await?;
        exports(asker).await?;
        everything_else(asker).await?;
        bulk(asker).await
    })
    .await;
}

/// The first page of every filter, alone and combined, with all, some or no hits.
async fn lists(asker: &mut Asker) -> Result<()> {
    const STATES: [&str; 11] = [
        "waiting",
        "scheduled",
        "ready",
        "dispatching",
        "delivered",
        "running",
        "succeeded",
        "dead",
        "cancelled",
        "superseded",
        "expired",
    ];
    const FILTERS: [&str; 14] = [
        "",
        "&queue=q007",
        "&queue=nothing",
        "&key=k500",
        "&key=often",
        "&key=nothing",
        "&partition_key=p1",
        "&partition_key=nothing",
        "&error=broken",
        "&error=nothing",
        "&due_after=2000-01-01T00:00:00Z&due_before=2000-01-02T00:00:00Z",
        "&queue=q199&key=often",
        "&queue=q007&partition_key=nothing",
        "&queue=q007&error=nothing&key=nothing",
    ];
    for filter in FILTERS {
        // A page without hits searches on for a second, so not every filter is combined with every state.
        let states: &[&str] = if ["", "&queue=q007"].contains(&filter) { &STATES } else { &["ready", "dead"] };
        for state in states.iter().map(|state| format!("&state={state}")).chain([String::new()]) {
            let page = asker.get(&format!("/v1/tasks?limit=100{filter}{state}")).await?;
            let tasks = page["tasks"].as_array().context("tasks")?;
            ensure!(tasks.len() <= 100, "{filter}{state}: {} tasks", tasks.len());
            let found =
                matches!((filter, state.as_str()), ("" | "&queue=q007", "" | "&state=scheduled" | "&state=succeeded"));
            ensure!(!found || tasks.len() == 100, "{filter}{state}: {} tasks", tasks.len());
        }
    }
    Ok(())
}

/// Walks lists to their ends, and checks that they return every task.
async fn walks(asker: &mut Asker) -> Result<()> {
    let all = asker.walk("/v1/tasks?queue=q007&limit=1000", "tasks").await?;
    let ids: BTreeSet<&str> = all.iter().filter_map(|task| task["id"].as_str()).collect();
    ensure!((all.len(), ids.len()) == (10_000, 10_000), "{} tasks, {} ids", all.len(), ids.len());
    let dead = asker.walk("/v1/tasks?state=dead&limit=1000", "tasks").await?;
    ensure!(dead.len() == 20_000, "{} dead", dead.len());
    let one = asker.walk("/v1/tasks?state=dead&error=rare", "tasks").await?;
    ensure!(one.len() == 1, "{} with that error", one.len());
    let rare = asker.walk("/v1/tasks?partition_key=rare", "tasks").await?;
    ensure!(rare.len() == 14, "{} of the partition", rare.len());
    let deeds = asker.walk("/v1/audit?target=t199999", "deeds").await?;
    ensure!(deeds.len() == 1, "{} deeds", deeds.len());
    ensure!(asker.walk("/v1/audit?who=nobody", "deeds").await?.is_empty());
    Ok(())
}

async fn keys(asker: &mut Asker) -> Result<()> {
    for (queue, key) in [("q000", "k200"), ("q000", "a1000200"), ("q199", "often")] {
        let task = asker.get(&format!("/v1/queues/{queue}/keys/{key}")).await?;
        ensure!(task["key"] == key, "{task}");
        let listed = asker.walk(&format!("/v1/tasks?key={key}&limit=1000"), "tasks").await?;
        let expected = if key == "often" { 5_000 } else { 1 };
        ensure!(listed.len() == expected, "{key}: {}", listed.len());
    }
    let newest = asker.get("/v1/queues/q199/keys/often").await?;
    ensure!(newest["version"] == 1_999_999, "{newest}");
    let missing = asker.client.call::<Value>(Method::GET, "/v1/queues/q000/keys/nothing", None).await;
    ensure!(missing.as_ref().is_err_and(|failure| failure.status() == Some(404)), "{missing:?}");
    Ok(())
}

async fn exports(asker: &mut Asker) -> Result<()> {
    for (filter, tasks) in [("queue=q006", 10_000), ("state=dead", 20_000), ("queue=q008&key=nothing", 0)] {
        let lines = asker.text(&format!("/v1/tasks/export?{filter}")).await?;
        let last: Value = serde_json::from_str(lines.lines().last().context("an end")?)?;
        ensure!(last["exported"] == tasks && lines.lines().count() == tasks + 1, "{filter}: {last}");
    }
    // Hits are rare among two million, so the end may take long; the answer begins at once, and stays empty until the
    // first hit.
    let started = Instant::now();
    let answer = asker.client.send(Method::GET, "/v1/tasks/export?partition_key=rare", None).await?;
    asker.took("the head of an export", started)?;
    let lines = answer.text().await?;
    ensure!(lines.lines().count() == 15 && lines.trim_end().ends_with('}'), "{lines}");
    Ok(())
}

async fn everything_else(asker: &mut Asker) -> Result<()> {
    let queues = asker.walk("/v1/queues?limit=70", "queues").await?;
    ensure!(queues.len() == 200, "{} queues", queues.len());
    let page = asker.get("/v1/queues").await?;
    ensure!(page["queues"].as_array().map(Vec::len) == Some(100) && page["next_cursor"] == "q099", "{page}");
    let queue = asker.get("/v1/queues/q007").await?;
    ensure!(queue["counts"]["scheduled"] == 5_000, "{queue}");
    for path in [
        "/v1/cluster",
        "/v1/schedules",
        "/v1/tokens",
        "/v1/audit",
        "/v1/audit?limit=1000&what=nothing",
        "/openapi.json",
    ] {
        asker.get(path).await?;
    }
    for path in ["/metrics", "/readyz", "/healthz"] {
        asker.text(path).await?;
    }
    let overview = asker.page("/console").await?;
    ensure!(overview.contains('≈'), "the tasks are counted by an estimate\n{overview}");
    for path in [
        "/console/tasks",
        "/console/tasks?state=scheduled",
        "/console/tasks?state=ready",
        "/console/tasks?state=dead&error=rare",
        "/console/tasks?queue=q007",
        "/console/tasks?key=nothing",
        "/console/tasks?partition_key=nothing",
        "/console/find?q=k200",
        "/console/dead",
        "/console/queues",
        "/console/queues?cursor=q099",
        "/console/queues/q007",
        "/console/bulk",
        "/console/schedules",
        "/console/cluster",
        "/console/audit",
        "/console/audit?target=nothing",
        "/console/tokens",
    ] {
        asker.page(path).await?;
    }
    Ok(())
}

/// Each action, first as a dry run and then for real; the filter's hits lie among all other tasks.
async fn bulk(asker: &mut Asker) -> Result<()> {
    let request = |action: &str, filter: Value, dry_run: bool| {
        let mut request = json!({ "action": action, "filter": filter, "dry_run": dry_run });
        if action == "move" {
            request["shift_ms"] = json!(3_600_000);
        }
        request
    };
    for (action, filter, tasks) in [
        ("cancel", json!({ "queue": "q002" }), 5_000),
        ("cancel", json!({ "partition_key": "rare" }), 7),
        ("move", json!({ "queue": "q003" }), 5_000),
        ("run", json!({ "queue": "q010", "key": "k210" }), 1),
        ("retry", json!({ "queue": "q007", "state": "dead", "due_after": "2000-01-01T00:00:00Z" }), 100),
        ("retry", json!({ "error": "rare error" }), 1),
    ] {
        // The second dry run on all dead tasks sees those that the first retry has left.
        for dry_run in [true, false] {
            let (matched, done) = asker.bulk(request(action, filter.clone(), dry_run)).await?;
            ensure!(
                action == "retry" && !dry_run || (matched, done) == (tasks, tasks),
                "{action} {filter}: {matched} {done}"
            );
        }
    }
    Ok(())
}

/// Too many queues for a node to read, list or label all of them at once.
const QUEUES: usize = 50_000;

/// Two live and two finished tasks of each queue; those of the last queue are of the partition `rare`.
fn many_queues() -> String {
    in_bulk(&format!(
        "INSERT INTO duetime.queue (name, policy)
         SELECT 'q' || lpad(g::text, 5, '0'), '{{\"settle\":\"confirm\"}}'::jsonb FROM generate_series(1, {QUEUES}) AS g;
         UPDATE duetime.meta SET queue_revision = queue_revision + 1;
         INSERT INTO duetime.task (id, shard, queue, state, wake_at, due_at, payload, content_type, key)
         SELECT {ID}, g % 128, 'q' || lpad((g % {QUEUES} + 1)::text, 5, '0'), 'scheduled', due, due, '{{}}', 'application/json', 'k' || g
           FROM generate_series(1, 2 * {QUEUES}) AS g, LATERAL (SELECT now() + interval '2 days' + g * interval '1 s' AS due) AS row;
         INSERT INTO duetime.archive (id, shard, queue, state, wake_at, due_at, payload, content_type, attempt, finished_at, drop_on)
         SELECT {ID}, g % 128, 'q' || lpad((g % {QUEUES} + 1)::text, 5, '0'),
                (CASE WHEN g % 2 = 0 THEN 'dead' ELSE 'succeeded' END)::duetime.task_state, due, due, '{{}}', 'application/json', 1, now(),
                (now() AT TIME ZONE 'UTC')::date + 1 + (g % 14)::int
           FROM generate_series(1000001, 1000000 + 2 * {QUEUES}) AS g, LATERAL (SELECT now() - g * interval '1 s' AS due) AS row;"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn among_fifty_thousand_queues_everything_answers_within_a_bound() {
    let builder = Sandbox::builder().nodes(2).unwatched().config("[queues]\nmax = 60000\n");
    played(builder, async |asker, sandbox| {
        run_sql(sandbox, &many_queues()).await?;
        let client = sandbox.client(0);
        until("the queues are known", Duration::from_secs(60), || async {
            client.list("limit=1000").await.ok().filter(|tasks| tasks.len() == 1_000)
        })
        .await?;
        let queues = asker.walk("/v1/queues?limit=1000", "queues").await?;
        ensure!(queues.len() == QUEUES, "{} queues", queues.len());
        let tasks = asker.walk("/v1/tasks?limit=1000", "tasks").await?;
        let ids: BTreeSet<&str> = tasks.iter().filter_map(|task| task["id"].as_str()).collect();
        // The two tables share no ids.
        ensure!((tasks.len(), ids.len()) == (4 * QUEUES, 4 * QUEUES), "{} tasks, {} ids", tasks.len(), ids.len());
        ensure!(asker.walk("/v1/tasks?key=k777", "tasks").await?.len() == 1);
        ensure!(asker.walk("/v1/tasks?state=running", "tasks").await?.is_empty());
        for path in ["/v1/tasks?state=dead", "/v1/tasks?key=nothing", "/v1/queues", "/v1/queues/q00007", "/v1/cluster"]
        {
            asker.get(path).await?;
        }
        for path in [
            "/console",
            "/console/tasks",
            "/console/queues",
            "/console/queues/q00007",
            "/console/dead",
            "/console/bulk",
        ] {
            asker.page(path).await?;
        }
        let exposition = asker.text("/metrics").await?;
        let labelled = exposition.lines().filter(|line| line.starts_with("duetime_publishes_total{")).count();
        ensure!(labelled <= 501, "{labelled} queues have a label");
        changes(asker, sandbox).await
    })
    .await;
}

/// A queue that is created or changed on one node applies on the other, which reads that queue and not all.
async fn changes(asker: &mut Asker, sandbox: &Sandbox) -> Result<()> {
    let other = sandbox.client(1);
    let reads = async || {
        let text = other.send(Method::GET, "/metrics", None).await?.text().await?;
        let read = text.lines().find(|line| {
            line.starts_with("duetime_database_statement_seconds_count") && line.contains("op=\"queue_read\"")
        });
        anyhow::Ok(read.context("the reads are counted")?.to_owned())
    };
    let before = reads().await?;
    for nth in 0..20 {
        let queue = format!("new-{nth}");
        asker
            .ask(Method::PUT, &format!("/v1/queues/{queue}"), Some(&json!({ "settle": "confirm", "paused": true })))
            .await?;
        asker
            .ask(Method::POST, "/v1/tasks", Some(&json!({ "queue": format!("own-{nth}"), "delay_ms": 86_400_000 })))
            .await?;
    }
    until("the other node knows the queue", Duration::from_secs(60), || async {
        let task = other.submit(&json!({ "queue": "new-19" })).await.ok()?;
        other.get(&task.id).await.ok().filter(|task| task.state == "ready")
    })
    .await?;
    ensure!(before == reads().await?, "a node that misses a change read every queue: {before}");
    Ok(())
}
