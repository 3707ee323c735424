//! Tests of an import, with a node that answers as each test wants.

use std::{
    fs::File,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use super::*;
use crate::cli::client::tests::client_of;

/// As many tasks as one chunk takes.
const CHUNK: usize = 1_000;

const TASK: &[u8] = br#"{"id":"00000000-0000-0000-0000-00000abc0005","queue":"q","state":"scheduled","due_at":"2033-05-18T03:33:20Z","created_at":"1970-01-01T00:00:00Z","attempt":0,"priority":3,"payload":1,"content_type":"application/json"}
"#;

fn source(lines: &[u8]) -> Source<&[u8]> {
    let choice = Choice::new(false, false);
    Source { lines, choice, from_line: 1, number: 0, tasks: 0, end: None, over: false, broken: None }
}

#[tokio::test]
async fn a_line_that_is_not_utf8_is_refused_and_its_neighbours_are_sent() {
    let text = [TASK, b"\xff\n", TASK].concat();
    let chunk = source(&text).chunk().await.expect("read").expect("lines");
    assert_eq!(chunk.lines.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(chunk.refused.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn the_lines_before_one_that_cannot_be_read_are_sent_first() {
    let text = [TASK, &vec![b'x'; LINE_BYTES + 1], TASK].concat();
    let mut source = source(&text);
    let chunk = source.chunk().await.expect("read").expect("a line");
    assert_eq!(chunk.lines.len(), 1);
    let error = source.chunk().await.expect_err("refused");
    assert!(error.to_string().starts_with("line 2 cannot be read"), "{error}");
}

/// Tasks with the payloads from 1 on.
fn tasks(count: usize) -> Vec<u8> {
    let task = String::from_utf8(TASK.to_vec()).expect("UTF-8");
    (1..=count).map(|n| task.replace("\"payload\":1", &format!("\"payload\":{n}"))).collect::<String>().into_bytes()
}

/// A client of a node that answers a batch by its first payload and its length.
async fn client<A: Future<Output = (StatusCode, String)> + Send + 'static>(
    answer: impl Fn(usize, usize) -> A + Clone + Send + Sync + 'static,
) -> Client {
    client_of("/v1/tasks/batch", move |body| {
        let tasks: Vec<Value> = serde_json::from_str(&body).expect("a batch");
        let first = tasks[0]["payload"].as_u64().expect("a number");
        answer(usize::try_from(first).expect("small"), tasks.len())
    })
    .await
}

fn accepted(count: usize) -> (StatusCode, String) {
    (StatusCode::OK, json!({ "results": vec![json!({}); count] }).to_string())
}

fn problem(problem: &Problem) -> (StatusCode, String) {
    (StatusCode::from_u16(problem.status).expect("a status"), serde_json::to_string(problem).expect("JSON"))
}

/// Imports these lines. Returns how many lines have an answer, and the error.
async fn imported(client: &Client, lines: &[u8], counts: &mut ImportCounts, stop: &CancellationToken) -> (u64, Error) {
    let error = send_lines(client, source(lines), counts, stop).await.expect_err("it ends early");
    (counts.lines(), error)
}

#[tokio::test]
async fn the_answers_to_chunks_under_way_count_although_one_fails() {
    let (others, requests) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let asked = Arc::clone(&requests);
    let client = client(move |first, count| {
        let others = Arc::clone(&others);
        asked.fetch_add(1, Ordering::Relaxed);
        async move {
            if first > 1 {
                others.add_permits(1);
                return accepted(count);
            }
            // All that is under way is committed before the first chunk fails.
            let _all = others.acquire_many(3).await.expect("open");
            problem(&Problem::unavailable("the database is away"))
        }
    })
    .await;
    let lines = tasks(6 * CHUNK);
    let (done, error) = imported(&client, &lines, &mut ImportCounts::default(), &CancellationToken::new()).await;
    let text = error.to_string();
    assert!(text.starts_with("lines 1 to 1000: the database is away; "), "{text}");
    assert!(text.contains("--from-line 1, and leave out lines 1001 to 4000"), "{text}");
    assert_eq!((done, requests.load(Ordering::Relaxed), error.exit_code()), (3_000, IN_FLIGHT, 3));
}

#[tokio::test]
async fn a_request_that_is_refused_as_a_whole_says_where_to_go_on() {
    for refusal in [Problem::unauthorized("send a token"), Problem::forbidden("not here"), Problem::too_many("later")] {
        let refused = refusal.clone();
        let client = client(move |_, _| std::future::ready(problem(&refused))).await;
        let lines = tasks(2 * CHUNK);
        let (done, error) = imported(&client, &lines, &mut ImportCounts::default(), &CancellationToken::new()).await;
        let text = error.to_string();
        assert_eq!((done, error.exit_code()), (0, 3), "{text}");
        assert!(text.starts_with("lines 1 to 2000: ") && text.contains(&refusal.detail), "{text}");
        assert!(text.ends_with("--from-line 1"), "{text}");
    }
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_tells_where_to_go_on() {
    let client = client(|_, _| std::future::ready((StatusCode::OK, "[]".to_owned()))).await;
    let lines = tasks(1);
    let (done, error) = imported(&client, &lines, &mut ImportCounts::default(), &CancellationToken::new()).await;
    assert_eq!((done, error.exit_code()), (0, 3));
    assert!(error.to_string().contains("--from-line 1"), "{error}");
}

#[tokio::test]
async fn refused_lines_that_cannot_be_kept_end_an_import_with_its_counts() {
    let no = json!({ "error": Problem::too_many("no") });
    let client = client(move |first, count| {
        let mut results = vec![json!({}); count];
        if first == 1 {
            results[6] = no.clone();
        }
        std::future::ready((StatusCode::OK, json!({ "results": results }).to_string()))
    })
    .await;
    let full_disk = || File::options().write(true).open("/dev/full").expect("a device");
    let lines = tasks(6 * CHUNK);
    let mut counts = ImportCounts::on(full_disk());
    let (done, error) = imported(&client, &lines, &mut counts, &CancellationToken::new()).await;
    // The first chunk's answer is known while three others are under way.
    assert_eq!((done, error.exit_code()), (4_000, 3));
    let text = error.to_string();
    assert!(text.contains("`--refused` cannot be written") && text.contains("--from-line 4001"), "{text}");

    // An import that is through has nothing to go on with, and is no success.
    let mut counts = ImportCounts::on(full_disk());
    send_lines(&client, source(&tasks(CHUNK)), &mut counts, &CancellationToken::new()).await.expect("through");
    assert_eq!(counts.end(Form::Json, None).expect_err("it lacks a line").exit_code(), 3);
}

#[tokio::test]
async fn a_signal_ends_an_import_after_the_chunks_under_way() {
    let (received, mut receives) = mpsc::channel(IN_FLIGHT);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let client = client(move |_, count| {
        let (received, stopped) = (received.clone(), stopped.clone());
        async move {
            received.send(()).await.expect("received");
            stopped.cancelled().await;
            accepted(count)
        }
    })
    .await;
    let lines = tasks(6 * CHUNK);
    let mut counts = ImportCounts::default();
    let ((done, error), ()) = tokio::join!(imported(&client, &lines, &mut counts, &stop), async {
        for _ in 0..IN_FLIGHT {
            receives.recv().await.expect("a chunk");
        }
        stop.cancel();
    });
    let text = error.to_string();
    assert_eq!((done, error.exit_code()), (4_000, 3), "{text}");
    assert!(text.starts_with("stopped by a signal; ") && text.ends_with("--from-line 4001"), "{text}");
}
