//! `duetime submit`: submits one task from the command line, or many from a file.

mod batch;

use std::{collections::BTreeMap, path::PathBuf};

use base64::{Engine, engine::general_purpose::STANDARD};
use common::{time::UnixMicros, wire::check::JSON};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_with::skip_serializing_none;
use tokio::io::AsyncReadExt;

use super::{
    client::Request,
    distinct::require_distinct,
    error::Error,
    invocation::Invocation,
    moment,
    task::{Due, json_text, moved},
};

/// No configuration allows a larger payload than 1 MiB. What is larger than this is refused before it is read whole.
const READ_BYTES: u64 = 2 << 20;

/// The task, or the file with many.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Queue of the task.
    #[arg(required_unless_present = "batch")]
    queue: Option<String>,
    /// Body of the message, as JSON.
    #[arg(long, value_name = "JSON", value_parser = json_text, group = "body")]
    payload: Option<Box<RawValue>>,
    /// File with the message's body, `-` for standard input: JSON, or any bytes with --content-type.
    #[arg(long, value_name = "FILE", group = "body")]
    payload_file: Option<PathBuf>,
    /// Body of the message, any bytes in base64.
    #[arg(long, value_name = "BASE64", group = "body")]
    data_base64: Option<String>,
    /// Media type of a body that is not JSON.
    #[arg(long, value_name = "TYPE", conflicts_with = "payload")]
    content_type: Option<String>,
    #[command(flatten)]
    due: Due,
    /// Priority, from 1 (first) to 5.
    #[arg(long, value_name = "1-5")]
    priority: Option<i16>,
    /// Tasks with the same partition key live on one shard.
    #[arg(long, value_name = "KEY")]
    partition_key: Option<String>,
    /// Business key: at most one unfinished task has it, in its queue and partition.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Version of the key; used with --on-duplicate version.
    #[arg(long, value_name = "NUMBER", requires = "key")]
    key_version: Option<i64>,
    /// What to do when the key exists already: keep, reject, replace or version.
    #[arg(long, value_name = "MODE", requires = "key")]
    on_duplicate: Option<String>,
    /// A task that has to succeed first, by its key or as QUEUE/KEY, in the same partition; can be given again.
    #[arg(long = "depends-on", value_name = "KEY")]
    depends_on: Vec<String>,
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<i32>,
    /// How long a delivered attempt may go without a report (--timeout is how long this command waits for its
    /// answer).
    #[arg(long, value_name = "TIME", value_parser = moment::duration_ms)]
    attempt_timeout: Option<i64>,
    /// The task expires if it is not claimed within this time, and is never delivered.
    #[arg(long, value_name = "TIME", value_parser = moment::duration_ms)]
    expires_in: Option<i64>,
    /// Header of the message; can be given again.
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = pair)]
    headers: Vec<(String, String)>,
    /// File with many tasks, one JSON object a line, as the API takes them; `-` for standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["queue", "body", "content_type", "Due", "priority",
        "partition_key", "key", "depends_on", "max_attempts", "attempt_timeout", "expires_in", "headers"])]
    batch: Option<PathBuf>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// The request for one task.
#[skip_serializing_none]
#[derive(Debug, Serialize)]
struct Task<'a> {
    queue: &'a str,
    #[serde(flatten)]
    body: Body,
    delay_ms: Option<i64>,
    due_at: Option<UnixMicros>,
    priority: Option<i16>,
    partition_key: Option<&'a str>,
    key: Option<&'a str>,
    version: Option<i64>,
    on_duplicate: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    depends_on: Vec<Other<'a>>,
    max_attempts: Option<i32>,
    timeout_ms: Option<i64>,
    expires_after_ms: Option<i64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'a str, &'a str>,
}

/// A dependency: a task that has to succeed first.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Other<'a> {
    Key(&'a str),
    Named { queue: &'a str, key: &'a str },
}

impl<'a> Other<'a> {
    /// Splits at a slash, which no queue's name has.
    fn of(text: &'a str) -> Self {
        text.split_once('/').map_or(Self::Key(text), |(queue, key)| Self::Named { queue, key })
    }
}

/// The body of the message.
#[skip_serializing_none]
#[derive(Debug, Default, Serialize)]
struct Body {
    payload: Option<Box<RawValue>>,
    payload_base64: Option<String>,
    content_type: Option<String>,
}

pub(super) async fn submit(invocation: &Invocation<Args>) -> Result<(), Error> {
    let args = &invocation.args;
    if let Some(file) = &args.batch {
        return batch::submit(&invocation.client()?, invocation.form(), file).await;
    }
    let body = body(args).await?;
    let request = Request::post(&["v1", "tasks"]).body(written(args, body)?);
    invocation.print(&invocation.client()?.send(&request).await?, moved)
}

async fn body(args: &Args) -> Result<Body, Error> {
    let content_type = args.content_type.clone();
    if let Some(file) = &args.payload_file {
        return of_bytes(read(file).await?, content_type);
    }
    Ok(Body { payload: args.payload.clone(), payload_base64: args.data_base64.clone(), content_type })
}

fn of_bytes(bytes: Vec<u8>, content_type: Option<String>) -> Result<Body, Error> {
    if content_type.as_deref().is_some_and(|content_type| content_type != JSON) {
        return Ok(Body { payload: None, payload_base64: Some(STANDARD.encode(bytes)), content_type });
    }
    let json = String::from_utf8(bytes).map_err(|error| error.to_string()).and_then(|text| json_text(&text));
    let refuse = |why| Error::Usage(format!("`--payload-file`: {why}; name its type with --content-type"));
    Ok(Body { payload: Some(json.map_err(refuse)?), ..Body::default() })
}

async fn read(file: &PathBuf) -> Result<Vec<u8>, Error> {
    let refuse = |error| Error::Usage(format!("`--payload-file {}` cannot be read: {error}", file.display()));
    let mut bytes = Vec::new();
    if file.as_os_str() == "-" {
        tokio::io::stdin().take(READ_BYTES).read_to_end(&mut bytes).await.map_err(refuse)?;
    } else {
        let opened = tokio::fs::File::open(file).await.map_err(refuse)?;
        opened.take(READ_BYTES).read_to_end(&mut bytes).await.map_err(refuse)?;
    }
    if bytes.len() as u64 == READ_BYTES {
        let why = format!("`--payload-file {}` is larger than any payload may be: 1 MiB", file.display());
        return Err(Error::Usage(why));
    }
    Ok(bytes)
}

fn written(args: &Args, body: Body) -> Result<String, Error> {
    require_distinct("header", &args.headers)?;
    let task = Task {
        queue: args.queue.as_deref().unwrap_or_default(),
        body,
        delay_ms: args.due.delay,
        due_at: args.due.at,
        priority: args.priority,
        partition_key: args.partition_key.as_deref(),
        key: args.key.as_deref(),
        version: args.key_version,
        on_duplicate: args.on_duplicate.as_deref(),
        depends_on: args.depends_on.iter().map(|other| Other::of(other)).collect(),
        max_attempts: args.max_attempts,
        timeout_ms: args.attempt_timeout,
        expires_after_ms: args.expires_in,
        headers: args.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
    };
    serde_json::to_string(&task).map_err(Error::Unwritable)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use common::wire::TaskRequest;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, Parser)]
    struct Submitted {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Result<Args, clap::Error> {
        Submitted::try_parse_from([&["submit"], words].concat()).map(|submitted| submitted.args)
    }

    async fn sent(words: &[&str]) -> String {
        let args = args(words).expect("understood");
        let body = body(&args).await.expect("a body");
        written(&args, body).expect("a task")
    }

    #[tokio::test]
    async fn every_option_becomes_its_field() {
        let text = sent(&[
            "mails",
            "--payload",
            "{\"n\": 1.10}",
            "--delay",
            "30m",
            "--priority",
            "1",
            "--partition-key",
            "p",
            "--max-attempts",
            "3",
            "--attempt-timeout",
            "1m",
            "--expires-in",
            "2h",
            "--header",
            "a=b=c",
            "--key",
            "k",
            "--key-version",
            "2",
            "--on-duplicate",
            "version",
            "--depends-on",
            "a",
            "--depends-on",
            "pay/b/c",
        ])
        .await;
        assert!(text.contains("{\"n\": 1.10}"), "byte for byte: {text}");
        let task: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            task,
            json!({
                "queue": "mails", "payload": {"n": 1.10}, "delay_ms": 1_800_000, "priority": 1, "partition_key": "p",
                "max_attempts": 3, "timeout_ms": 60_000, "expires_after_ms": 7_200_000, "headers": {"a": "b=c"}, "key": "k", "version": 2, "on_duplicate": "version",
                "depends_on": ["a", { "queue": "pay", "key": "b/c" }],
            })
        );
        assert!(TaskRequest::parse(&text).is_ok(), "{text}");
        assert_eq!(sent(&["mails"]).await, r#"{"queue":"mails"}"#);
    }

    #[test]
    fn a_header_that_is_given_twice_is_a_mistake_of_the_caller() {
        let args = args(&["mails", "--header", "a=1", "--header", "b=1", "--header", "a=2"]).expect("understood");
        let error = written(&args, Body::default()).expect_err("refused");
        assert_eq!((error.exit_code(), error.to_string().as_str()), (2, "the header `a` is given twice"));
    }

    #[test]
    fn a_file_is_json_unless_it_is_said_to_be_something_else() {
        let body = of_bytes(b" {\"a\": 1}\n".to_vec(), None).expect("JSON");
        assert_eq!(body.payload.expect("a payload").get(), "{\"a\": 1}");
        let body = of_bytes(vec![0, 255], Some("image/png".into())).expect("bytes");
        assert_eq!((body.payload_base64.as_deref(), body.content_type.as_deref()), (Some("AP8="), Some("image/png")));
        assert_eq!(of_bytes(vec![0, 255], None).expect_err("not JSON").exit_code(), 2);
    }

    #[tokio::test]
    async fn a_file_that_is_too_large_is_said_to_be_so() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "7".repeat(3 << 20)).expect("written");
        let error = read(&file.path().to_path_buf()).await.expect_err("refused");
        assert!(error.to_string().contains("larger than any payload") && error.exit_code() == 2, "{error}");
    }

    #[test]
    fn what_does_not_go_together_is_a_mistake_of_the_caller() {
        for words in [
            [].as_slice(),
            &["mails", "--delay", "1s", "--at", "5"],
            &["mails", "--delay", "soon"],
            &["mails", "--payload", "{"],
            &["mails", "--payload", "1", "--data-base64", "AA=="],
            &["mails", "--header", "nothing"],
            &["mails", "--batch", "-"],
            &["--batch", "-", "--delay", "1s"],
        ] {
            assert_eq!(args(words).expect_err("refused").exit_code(), 2, "{words:?}");
        }
    }
}
