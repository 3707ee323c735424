//! One trace for each task, across nodes and their failures, and log lines that name it.

mod collector;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use integration_tests::{client::Client, clock::now_ms, sandbox::Sandbox};
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    message::BasicGetMessage,
    options::{BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions},
    types::{AMQPValue, FieldTable},
};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use self::collector::{Collector, Span};
use crate::{in_state, scenario, until};

const SOON: Duration = Duration::from_secs(60);

fn config(endpoint: &str) -> String {
    format!("[telemetry]\nlog = \"info,scheduler_node=debug\"\nformat = \"json\"\notlp_endpoint = {endpoint:?}\n")
}

/// A caller's own span, in a trace of its own.
fn traceparent(trace: u128) -> String {
    format!("00-{:032x}-00f067aa0ba902b7-01", trace + 0x4bf9_2f35_77b3_4da6)
}

fn trace_id(traceparent: &str) -> &str {
    &traceparent[3..35]
}

/// Submits with the caller's trace context, if given; returns the id.
async fn submit(sandbox: &Sandbox, node: usize, caller: Option<&str>, task: &Value) -> Result<String> {
    let config = sandbox.node(node).config();
    let mut request = integration_tests::http::plain()
        .post(format!("{}/v1/tasks", config.url()))
        .bearer_auth(&config.token)
        .json(task);
    if let Some(caller) = caller {
        request = request.header("traceparent", caller);
    }
    let answer: Value = request.send().await?.error_for_status()?.json().await?;
    Ok(answer["id"].as_str().context("an id")?.to_owned())
}

async fn submit_batch(sandbox: &Sandbox, caller: &str, tasks: &[Value]) -> Result<()> {
    let config = sandbox.node(0).config();
    let request = integration_tests::http::plain().post(format!("{}/v1/tasks/batch", config.url()));
    let request = request.bearer_auth(&config.token).header("traceparent", caller).json(&json!({ "tasks": tasks }));
    let answer: Value = request.send().await?.error_for_status()?.json().await?;
    let results = answer["results"].as_array().context("results")?;
    ensure!(results.iter().all(|result| result["id"].is_string()), "{answer}");
    Ok(())
}

/// A consumer that continues the trace of the messages it takes.
struct Hand {
    url: String,
    _connection: Connection,
    channel: Channel,
}

impl Hand {
    async fn open(sandbox: &Sandbox) -> Result<Self> {
        Self::connect(sandbox.amqp_url()).await
    }

    async fn connect(url: String) -> Result<Self> {
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { url, _connection: connection, channel })
    }

    /// Takes the next message of `queue`, which comes into being with its first one.
    async fn take(&mut self, queue: &str) -> Result<BasicGetMessage> {
        until(&format!("a message comes out of {queue}"), SOON, async || {
            match self.channel.basic_get(queue.into(), BasicGetOptions::default()).await {
                Ok(taken) => taken,
                // The queue does not exist yet. The client reconnects, because the broker soon closes a connection
                // whose channels fail repeatedly.
                Err(_) => {
                    *self = Self::connect(self.url.clone()).await.ok()?;
                    None
                }
            }
        })
        .await
    }

    async fn publish(&self, to: &str, body: &Value, properties: BasicProperties) -> Result<()> {
        let body = body.to_string();
        let options = BasicPublishOptions::default();
        self.channel.basic_publish("".into(), to.into(), options, body.as_bytes(), properties).await?.await?;
        Ok(())
    }

    /// Reports with its own trace context, if given, and acks.
    async fn answer(&self, message: &BasicGetMessage, caller: Option<&str>, report: &Value) -> Result<()> {
        let mut headers = FieldTable::default();
        let attempt = header(message, "duetime-attempt").context("an attempt")?;
        headers.insert("duetime-attempt".into(), attempt);
        if let Some(caller) = caller {
            headers.insert("traceparent".into(), AMQPValue::LongString(caller.into()));
        }
        let task = message.properties.correlation_id().clone().context("a task")?;
        let properties = BasicProperties::default().with_correlation_id(task).with_headers(headers);
        self.publish("duetime.results", report, properties).await?;
        message.acker.ack(BasicAckOptions::default()).await?;
        Ok(())
    }
}

fn header(message: &BasicGetMessage, name: &str) -> Option<AMQPValue> {
    message.properties.headers().as_ref()?.inner().get(name).cloned()
}

fn traceparent_of(message: &BasicGetMessage) -> Option<String> {
    match header(message, "traceparent")? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        other => Some(format!("{other:?}")),
    }
}

/// Waits until the trace has `count` spans, and returns them.
async fn spans(collector: &Collector, caller: &str, count: usize) -> Result<Vec<Span>> {
    until("the trace is whole", SOON, || async {
        Some(collector.of_trace(trace_id(caller))).filter(|spans| spans.len() >= count)
    })
    .await
    .with_context(|| format!("{:#?}", collector.of_trace(trace_id(caller))))
}

/// Checks that every span's parent is another span of the trace, or the caller's.
fn ensure_one_tree(caller: &str, spans: &[Span]) -> Result<()> {
    let root = &caller[36..52];
    for span in spans {
        let is_below = span.parent == root || spans.iter().any(|other| other.span_id == span.parent);
        ensure!(is_below, "{} has no parent: {spans:#?}", span.name);
        ensure!(spans.iter().filter(|other| other.span_id == span.span_id).count() == 1, "{spans:#?}");
        ensure!(span.took_ns >= 0, "{span:?}");
    }
    Ok(())
}

fn named<'a>(spans: &'a [Span], name: &str) -> Result<Vec<&'a Span>> {
    let found: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
    ensure!(!found.is_empty(), "no {name}: {spans:#?}");
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trace_of_a_task_is_one_tree_although_its_owner_dies() {
    let collector = Collector::start().await.expect("a collector");
    scenario(Sandbox::builder().config(&config(&collector.endpoint())), async |sandbox| {
        sandbox.put_queues(&[("sums", json!({ "settle": "result" }))]).await?;
        let caller = traceparent(1);
        let task = json!({ "queue": "sums", "delay_ms": 9_000, "payload": 1 });
        let id = submit(sandbox, 0, Some(&caller), &task).await?;
        // The task is due soon, so it lives on a shard of the node that accepted it. That node exports the span of
        // the submission and dies.
        until("the submission is logged", SOON, || async { (!collector.of_task(&id).is_empty()).then_some(()) })
            .await?;
        sandbox.kill(0);

        let mut hand = Hand::open(sandbox).await?;
        let message = hand.take("sums").await?;
        let parent = traceparent_of(&message).context("the message names its trace")?;
        let own = "00000000000000aa";
        collector.consumed(&parent, own).await?;
        let below = format!("{}-{own}-01", &parent[..35]);
        hand.answer(&message, Some(&below), &json!({ "status": "succeeded" })).await?;
        in_state(&sandbox.client(1), &id, "succeeded").await?;

        let spans = spans(&collector, &caller, 4).await?;
        ensure!(spans.len() == 4, "{spans:#?}");
        ensure_one_tree(&caller, &spans)?;
        let [submitted, published, processed, settled] =
            ["submit sums", "publish sums", "process", "settle sums"].map(|name| named(&spans, name));
        let (submitted, published, processed, settled) = (submitted?[0], published?[0], processed?[0], settled?[0]);
        ensure!(submitted.parent == caller[36..52] && submitted.kind == SpanKind::Server, "{submitted:?}");
        ensure!(submitted.instance.starts_with("node-1#") && submitted.service == "duetime", "{submitted:?}");
        ensure!(published.parent == submitted.span_id && published.kind == SpanKind::Producer, "{published:?}");
        ensure!(["node-2#", "node-3#"].iter().any(|node| published.instance.starts_with(node)), "{published:?}");
        ensure!(published.span_id == parent[36..52], "the message names the publish: {parent}, {published:?}");
        ensure!(processed.parent == published.span_id && settled.parent == processed.span_id, "{spans:#?}");
        ensure!(settled.kind == SpanKind::Consumer && !settled.is_error, "{settled:?}");
        for (name, value) in [
            ("messaging.system", "rabbitmq"),
            ("messaging.operation.type", "send"),
            ("messaging.destination.name", "duetime"),
            ("messaging.message.id", &format!("{id}:1")),
            ("duetime.task.id", &id),
            ("duetime.queue", "sums"),
            ("duetime.attempt", "1"),
        ] {
            ensure!(published.attribute(name) == value, "{name} is not {value}: {published:?}");
        }
        ensure!(published.attribute("duetime.lateness_ms").parse::<f64>().is_ok_and(|late| late >= 0.0));
        ensure!(settled.attribute("duetime.outcome") == "succeeded", "{settled:?}");
        log_lines(sandbox, trace_id(&caller), &id)
    })
    .await;
}

/// Checks the field names that the page on logs promises.
fn log_lines(sandbox: &Sandbox, trace_id: &str, task: &str) -> Result<()> {
    let mut traced = Vec::new();
    for node in sandbox.nodes() {
        for line in std::fs::read_to_string(node.log())?.lines() {
            let line: Value = serde_json::from_str(line).with_context(|| format!("no JSON: {line}"))?;
            let text = |name: &str| line[name].as_str().filter(|text| !text.is_empty());
            for name in ["timestamp", "level", "target", "message"] {
                ensure!(text(name).is_some(), "{name} is missing in {line}");
            }
            ensure!(text("node") == Some(node.name()), "{line}");
            if text("trace_id") == Some(trace_id) {
                ensure!(text("task") == Some(task) && text("queue") == Some("sums"), "{line}");
                ensure!(text("span_id").is_some_and(|id| id.len() == 16), "{line}");
                traced.push(text("message").unwrap_or_default().to_owned());
            }
        }
    }
    for message in ["task submitted", "task confirmed", "task settled"] {
        ensure!(traced.iter().any(|said| said == message), "{message:?} names no trace: {traced:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_an_attempt_are_one_hop_although_the_first_publisher_died_without_a_word() {
    let collector = Collector::start().await.expect("a collector");
    let nodes = Sandbox::builder().config(&config(&collector.endpoint())).failpoints(0, "after_confirm=return");
    scenario(nodes, async |sandbox| {
        sandbox.put_queues(&[("sums", json!({ "settle": "result" }))]).await?;
        let caller = traceparent(7);
        let id = submit(sandbox, 0, Some(&caller), &json!({ "queue": "sums", "delay_ms": 8_000 })).await?;
        until("the submission is logged", SOON, || async { (!collector.of_task(&id).is_empty()).then_some(()) })
            .await?;
        let mut hand = Hand::open(sandbox).await?;
        let first = hand.take("sums").await?;
        sandbox.node(0).wait_ended(SOON).await?;
        let second = hand.take("sums").await?;
        ensure!(header(&second, "duetime-redelivered") == Some(AMQPValue::Boolean(true)), "{second:?}");
        ensure!(traceparent_of(&first).is_some() && traceparent_of(&first) == traceparent_of(&second), "{first:?}");
        hand.answer(&second, None, &json!({ "status": "succeeded" })).await?;
        let spans = spans(&collector, &caller, 3).await?;
        ensure_one_tree(&caller, &spans)?;
        let published = named(&spans, "publish sums")?[0];
        ensure!(!published.instance.starts_with("node-1#"), "{published:?}");
        ensure!(published.attribute("duetime.redelivered") == "true", "{published:?}");
        ensure!(named(&spans, "settle sums")?[0].parent == published.span_id, "{spans:#?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_carries_its_trace_in_and_each_attempt_is_a_hop_of_it() {
    let collector = Collector::start().await.expect("a collector");
    scenario(Sandbox::builder().config(&config(&collector.endpoint())), async |sandbox| {
        let retry = json!({ "kind": "fixed", "delay_ms": 200 });
        sandbox.put_queues(&[("sums", json!({ "settle": "result", "retry": retry }))]).await?;
        let mut hand = Hand::open(sandbox).await?;
        let caller = traceparent(2);
        let mut headers = FieldTable::default();
        headers.insert("duetime-queue".into(), AMQPValue::LongString("sums".into()));
        headers.insert("traceparent".into(), AMQPValue::LongString(caller.as_str().into()));
        headers.insert("tracestate".into(), AMQPValue::LongString("vendor=7".into()));
        let properties = BasicProperties::default().with_headers(headers);
        hand.publish("duetime.submit", &json!(1), properties).await?;
        // Neither report names a trace: the attempt decides where it belongs.
        let first = hand.take("sums").await?;
        hand.answer(&first, None, &json!({ "status": "failed", "status_msg": "not today" })).await?;
        let second = hand.take("sums").await?;
        hand.answer(&second, None, &json!({ "status": "succeeded" })).await?;
        ensure!(header(&second, "tracestate") == Some(AMQPValue::LongString("vendor=7".into())), "{second:?}");

        let spans = spans(&collector, &caller, 5).await?;
        ensure!(spans.len() == 5, "{spans:#?}");
        ensure_one_tree(&caller, &spans)?;
        let submitted = named(&spans, "submit sums")?[0];
        ensure!(submitted.kind == SpanKind::Consumer && submitted.parent == caller[36..52], "{submitted:?}");
        for (attempt, message, is_error) in [("1", &first, true), ("2", &second, false)] {
            let of_attempt = |name: &str| {
                named(&spans, name)?
                    .into_iter()
                    .find(|span| span.attribute("duetime.attempt") == attempt)
                    .context("each attempt")
            };
            let (published, settled) = (of_attempt("publish sums")?, of_attempt("settle sums")?);
            ensure!(published.parent == submitted.span_id && settled.parent == published.span_id, "{spans:#?}");
            ensure!(settled.is_error == is_error, "{settled:?}");
            ensure!(traceparent_of(message).is_some_and(|text| text[36..52] == published.span_id), "{message:?}");
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_without_a_trace_says_nothing_of_one_and_a_quiet_one_stays_quiet() {
    let collector = Collector::start().await.expect("a collector");
    scenario(Sandbox::builder().config(&config(&collector.endpoint())), async |sandbox| {
        sandbox.put_queues(&[("sums", json!({ "settle": "result" }))]).await?;
        let mut hand = Hand::open(sandbox).await?;
        let quiet = traceparent(3).replace("-01", "-00");
        let (task, done) = (json!({ "queue": "sums", "payload": 1 }), json!({ "status": "succeeded" }));
        let mut untraced = Vec::new();
        for (caller, carried) in
            [(None, None), (Some("00-nonsense"), None), (Some(quiet.as_str()), Some(quiet.clone()))]
        {
            let id = submit(sandbox, 0, caller, &task).await?;
            let message = hand.take("sums").await?;
            ensure!(traceparent_of(&message) == carried, "{message:?}");
            hand.answer(&message, None, &done).await?;
            in_state(&sandbox.client(1), &id, "succeeded").await?;
            untraced.push(id);
        }
        // Each node exports its spans in their order. So when a later span of each has come, so have all of the tasks
        // above.
        for (node, trace) in [8, 9, 10].into_iter().enumerate() {
            let caller = traceparent(trace);
            submit(sandbox, node, Some(&caller), &task).await?;
            let message = hand.take("sums").await?;
            hand.answer(&message, None, &done).await?;
            spans(&collector, &caller, 3).await?;
        }
        ensure!(collector.of_trace(trace_id(&quiet)).is_empty());
        ensure!(untraced.iter().all(|id| collector.of_task(id).is_empty()), "a span was exported");
        until("the three spans of each later task are counted, and no more", SOON, || async {
            let mut exported = 0.0;
            for client in sandbox.clients() {
                exported += client.metric("duetime_spans_exported_total").await.ok()??;
            }
            (exported == 9.0).then_some(())
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_a_hop_above_its_tasks_and_linked_to_those_of_other_traces() {
    let collector = Collector::start().await.expect("a collector");
    scenario(Sandbox::builder().nodes(1).config(&config(&collector.endpoint())), async |sandbox| {
        let (caller, other) = (traceparent(5), traceparent(6));
        let task = json!({ "queue": "mail", "delay_ms": 3_600_000 });
        let of_other = json!({ "queue": "mail", "delay_ms": 3_600_000, "headers": { "traceparent": other } });
        submit_batch(sandbox, &caller, &[task.clone(), of_other, task]).await?;
        let mine = spans(&collector, &caller, 3).await?;
        ensure_one_tree(&caller, &mine)?;
        let batch = named(&mine, "submit batch")?[0];
        ensure!(batch.attribute("messaging.batch.message_count") == "3" && batch.kind == SpanKind::Server, "{batch:?}");
        ensure!(batch.links == [trace_id(&other)], "{batch:?}");
        let below = named(&mine, "submit mail")?;
        ensure!(below.len() == 2 && below.iter().all(|span| span.parent == batch.span_id), "{mine:#?}");
        let others = spans(&collector, &other, 1).await?;
        ensure!(others[0].parent == other[36..52] && others[0].kind == SpanKind::Internal, "{others:#?}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_never_answers_slows_and_stops_nobody() {
    // A collector that accepts connections and never answers.
    let dead_end = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let endpoint = format!("http://{}", dead_end.local_addr().expect("an address"));
    scenario(Sandbox::builder().nodes(1).config(&config(&endpoint)), async |sandbox| {
        sandbox.put_queues(&[("mail", json!({ "settle": "confirm" }))]).await?;
        let client = sandbox.client(0);
        let task = json!({ "queue": "mail", "due_at": now_ms(), "headers": { "traceparent": traceparent(4) } });
        for answer in client.batch(&vec![task; 5_000]).await? {
            answer.map_err(|problem| anyhow::anyhow!("{problem}"))?;
        }
        until("all are handed over", SOON, || async { (finished(&client).await == Some(5_000.0)).then_some(()) })
            .await?;
        let dropped = client.metric("duetime_spans_dropped_total").await?;
        ensure!(dropped.is_some_and(|count| count > 0.0), "{dropped:?} are counted");
        let began = Instant::now();
        let status = sandbox.node(0).stop(Duration::from_secs(20)).await?;
        ensure!(status.success(), "{status}");
        ensure!(began.elapsed() < Duration::from_secs(18), "it left after {:?}", began.elapsed());
        Ok(())
    })
    .await;
    drop(dead_end);
}

async fn finished(client: &Client) -> Option<f64> {
    let metrics = client.send(Method::GET, "/metrics", None).await.ok()?.text().await.ok()?;
    let series = "duetime_tasks_finished_total{outcome=\"succeeded\",queue=\"mail\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(series))?.parse().ok()
}
