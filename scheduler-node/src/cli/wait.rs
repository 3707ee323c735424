//! The requests of commands with `--wait`. What they wait for goes on while the nodes that they ask restart, so a
//! silence ends no wait before it is long.

use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use super::client::{Client, Failure, Request};

/// A wait ends when no node answers for this long: a node that restarts is back by then.
const SILENT_LONGEST: Duration = Duration::from_secs(60);

/// Sends a request that may be sent again, until a node answers it or refuses it. `pause`: the time between two tries.
pub(super) async fn answered<T: DeserializeOwned>(
    client: &Client,
    request: &Request<'_>,
    pause: Duration,
) -> Result<T, Failure> {
    answered_within(SILENT_LONGEST, client, request, pause).await
}

async fn answered_within<T: DeserializeOwned>(
    longest: Duration,
    client: &Client,
    request: &Request<'_>,
    pause: Duration,
) -> Result<T, Failure> {
    let since = Instant::now();
    loop {
        match client.send(request).await {
            Err(failure) if failure.may_pass() && since.elapsed() < longest => tokio::time::sleep(pause).await,
            answer => return answer?.read(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use common::wire::Problem;
    use reqwest::Url;
    use serde_json::{Value, json};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;
    use crate::supervise::spawn_child;

    const PAUSE: Duration = Duration::from_millis(10);

    /// An answer with its status. `None`: the node ends the connection without one.
    pub(in crate::cli) type Answer = Option<(u16, Value)>;

    /// A client of a node that gives these answers one after the other, each over a connection of its own.
    pub(in crate::cli) async fn client_of(answers: Vec<Answer>) -> Client {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        spawn_child(async move {
            for answer in answers {
                let (mut asked, _) = listener.accept().await.expect("a connection");
                assert!(asked.read(&mut [0; 1_024]).await.expect("a request") > 0);
                let Some((status, body)) = answer else { continue };
                let body = body.to_string();
                let head = format!("HTTP/1.1 {status} -\r\nconnection: close\r\ncontent-length: {}", body.len());
                asked.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.expect("an answer");
            }
        });
        let node = Url::parse(&format!("http://{address}")).expect("an address");
        Client::new(vec![node], None, Duration::from_secs(60)).expect("a client")
    }

    async fn shards(answers: Vec<Answer>, longest: Duration) -> Result<Value, Failure> {
        answered_within(longest, &client_of(answers).await, &Request::get(&["v1", "shards"]), PAUSE).await
    }

    #[tokio::test]
    async fn a_wait_goes_on_while_no_node_answers_or_one_is_not_ready() {
        let answers = vec![None, Some((503, json!({}))), None, Some((429, json!({}))), Some((200, json!("there")))];
        assert_eq!(shards(answers, SILENT_LONGEST).await.expect("an answer"), json!("there"));
    }

    #[tokio::test]
    async fn a_request_that_is_one_too_many_is_sent_again_when_the_node_takes_it() {
        let too_many = json!(Problem::too_many("later").retry_after(1));
        let client = client_of(vec![Some((429, too_many)), Some((200, json!("done")))]).await;
        let answer = client.send(&Request::post(&["v1", "tasks"]).body("{}".to_owned())).await;
        assert_eq!(answer.expect("an answer").text, "\"done\"");
    }

    #[tokio::test]
    async fn a_refusal_ends_a_wait_at_once_and_so_does_a_silence_that_is_long() {
        let refused = shards(vec![Some((404, json!({}))), Some((200, json!({})))], SILENT_LONGEST).await;
        assert!(refused.is_err_and(|failure| failure.is_refusal()));
        let silent = shards(vec![None, Some((200, json!({})))], Duration::ZERO).await;
        assert!(silent.is_err_and(|failure| failure.may_pass()));
    }
}
