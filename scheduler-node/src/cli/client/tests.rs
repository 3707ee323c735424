//! Tests of the client, and a client of a node that tests make up.

use axum::{Router, http::StatusCode, routing::post};
use percent_encoding::percent_decode_str;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::*;
use crate::supervise;

/// An answer takes as long as the test lets it take, and no test waits for this.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

/// A client of a node that gives these answers to the bodies of requests to `path`.
pub(in crate::cli) async fn client_of<A: Future<Output = (StatusCode, String)> + Send + 'static>(
    path: &str,
    answer: impl Fn(String) -> A + Clone + Send + Sync + 'static,
) -> Client {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let node = url(&listener);
    let app = Router::new().route(path, post(answer));
    supervise::spawn_child(async move { axum::serve(listener, app).await });
    Client::new(vec![node], None, ANSWERS_WITHIN).expect("a client")
}

/// A listener that drops each further connection, as a host behind a firewall does: it accepts none, and its
/// backlog is full.
async fn silent() -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    let listener = socket.listen(1).expect("it listens");
    let address = listener.local_addr().expect("an address");
    let mut waiting = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_secs(1), TcpStream::connect(address)).await {
        waiting.push(connected.expect("a connection"));
    }
    (listener, waiting)
}

fn url(listener: &TcpListener) -> Url {
    let address = listener.local_addr().expect("an address");
    Url::parse(&format!("http://{address}")).expect("an address")
}

/// Sends a request to the silent host, and to a node that answers.
async fn asked_beside(silent: &TcpListener) -> Result<Response, Failure> {
    let node = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let client = Client::new(vec![url(silent), url(&node)], None, CONNECTS_WITHIN).expect("a client");
    let answers = async {
        let (mut asked, _) = node.accept().await?;
        if asked.read(&mut [0; 1_024]).await? > 0 {
            asked.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await?;
        }
        std::io::Result::Ok(asked)
    };
    let request = Request::post(&["v1", "tasks"]).body("{}".to_owned());
    // A client that gives up leaves nothing to accept. The connection stays open until it has its answer.
    let (answer, _asked) = tokio::join!(client.send(&request), tokio::time::timeout(3 * CONNECTS_WITHIN, answers));
    answer
}

#[tokio::test]
async fn a_host_that_drops_packets_is_passed_over_however_short_the_timeout() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (silent, _waiting) = silent().await;
    let mut answer = asked_beside(&silent).await;
    // On a machine that stands still for longer than the timeout, a client does not know what became of its request.
    for _ in 0..2 {
        if answer.is_err() {
            answer = asked_beside(&silent).await;
        }
    }
    assert_eq!(answer.expect("an answer").text, "{}");
}

#[tokio::test]
async fn a_node_that_does_not_answer_in_time_is_not_said_to_be_out_of_reach() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    // The system accepts the connection, and no program answers.
    let (mute, free) = (TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await);
    let (mute, closed) = (mute.expect("a free port"), url(&free.expect("a free port")));
    let asked = async |nodes: Vec<Url>, within: Duration| {
        let client = Client::new(nodes, None, within).expect("a client");
        client.send(&Request::get(&["v1", "cluster"])).await.expect_err("no answer").to_string()
    };
    let text = asked(vec![url(&mute), closed.clone()], Duration::from_secs(1)).await;
    assert!(text.contains("did not answer within 1s") && !text.contains("--url"), "{text}");
    let text = asked(vec![closed], ANSWERS_WITHIN).await;
    assert!(text.contains("no node can be reached") && text.contains("--url"), "{text}");
}

#[test]
fn names_that_lead_elsewhere_in_a_path_are_refused() {
    assert!(["", ".", ".."].iter().all(|name| path_part(name).is_err()));
    assert_eq!(path_part("west"), Ok("west".to_owned()));
}

#[test]
fn a_part_of_a_path_arrives_as_it_is_given() {
    let node = Url::parse("http://a:1/behind").expect("an address");
    for part in [
        "order\t7",
        "\torder7\t",
        "a\r\nb",
        "50%",
        "%09",
        "%2e",
        "%2F",
        "a/b\\c",
        "/",
        "...",
        ".a",
        " a b ",
        "a+b",
        "größe €",
        "?q#f;p=1&x",
        "a:b@c",
        "'\"<>`{|}^[]",
        "\u{1}\u{7f}",
    ] {
        let url = Request::get(&["v1", "queues", "q", "keys", part]).url(&node);
        let (before, last) = url.path().rsplit_once('/').expect("a path");
        let last = percent_decode_str(last).decode_utf8().expect("UTF-8");
        assert_eq!((before, &*last), ("/behind/v1/queues/q/keys", part), "{url}");
        assert!(url.query().is_none() && url.fragment().is_none(), "{url}");
    }
}

#[test]
fn a_path_is_put_together_from_its_parts_and_nothing_breaks_out_of_them() {
    let url = |node: &str, path: &[&str]| Request::get(path).url(&Url::parse(node).expect("an address")).to_string();
    assert_eq!(url("http://a:1", &["v1", "tasks"]), "http://a:1/v1/tasks");
    assert_eq!(url("http://a:1/behind/", &["v1", "tasks"]), "http://a:1/behind/v1/tasks");
    assert_eq!(url("http://a:1", &["v1", "queues", "a/b?c"]), "http://a:1/v1/queues/a%2Fb%3Fc");
    let query = Request::get(&["v1", "tasks"]).query(vec![("partition_key", "a b&c".to_owned())]);
    let url = query.url(&Url::parse("http://a:1").expect("an address"));
    assert_eq!(url.as_str(), "http://a:1/v1/tasks?partition_key=a+b%26c");
}
