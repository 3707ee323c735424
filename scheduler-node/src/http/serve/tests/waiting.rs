//! Bodies of one HTTP/2 connection that wait for memory.

use axum::body::Body;
use futures::{StreamExt, future::join_all, stream::FuturesUnordered};
use hyper::{
    Request,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus::IntCounter;

use super::*;
use crate::{
    http::{Limits, Shares, refusal::Refusal},
    supervise::spawn_child,
};

const MIB: usize = 1 << 20;

/// A connection to a server that reads bodies. These wait for memory as long as it takes.
struct Client {
    address: SocketAddr,
    requests: SendRequest<Body>,
    shares: Shares,
}

impl Client {
    async fn connected(memory_bytes: usize) -> Self {
        let limits = Limits { bodies_bytes: memory_bytes, ..Limits::of_payload(1_000, 0) };
        let shares = Shares::patient(limits, IntCounter::new("beyond_rate", "none").expect("a counter"));
        let of_handler = shares.clone();
        let read = move |request: Request<Body>| {
            let shares = of_handler.clone();
            async move {
                let (parts, body) = request.into_parts();
                let unread = shares.body(parts, body, "ops".into());
                unread.text(8 * MIB).await.map(|_| "read").map_err(Refusal::from)
            }
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let metrics = ConnectionMetrics::register(&Registry::new()).expect("registered once");
        let server = Server { listener, limits: generous(), metrics, certificate: None };
        spawn_child(server.serve(Router::new().route("/", post(read)), CancellationToken::new()));
        let stream = TcpStream::connect(address).await.expect("connected");
        let (requests, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("a connection of HTTP/2");
        spawn_child(connection);
        Self { address, requests, shares }
    }

    /// Sends a body, and returns the status of the answer.
    async fn send(&self, bytes: usize) -> u16 {
        let body = Body::from(vec![b'x'; bytes]);
        let request = Request::post(format!("http://{}/", self.address)).body(body).expect("a request");
        let answer = self.requests.clone().send_request(request).await;
        answer.expect("an answer").status().as_u16()
    }
}

#[tokio::test]
async fn of_one_http2_connection_three_bodies_wait_for_memory_and_the_others_arrive() {
    let client = Client::connected(64 * MIB).await;
    // This leaves 8 MiB, for bodies up to 2 MiB only.
    let held = [("a", 32), ("b", 24)].map(|(caller, size)| client.shares.reserve_body(caller, size * MIB));
    let mut large: FuturesUnordered<_> = (0..4).map(|_| client.send(3 * MIB)).collect();
    let first = tokio::time::timeout(SOON, large.next()).await.expect("one of four does not wait");
    assert_eq!(first, Some(503));
    let small = join_all((0..8).map(|_| client.send(1_000)));
    assert_eq!(tokio::time::timeout(SOON, small).await.expect("small ones arrive"), [200; 8]);
    drop(held);
    let others = tokio::time::timeout(SOON, large.collect::<Vec<_>>()).await.expect("the three go on");
    assert_eq!(others, [200; 3]);
}

#[tokio::test]
async fn bodies_that_have_arrived_as_a_whole_all_wait_for_memory() {
    let client = Client::connected(64 * MIB).await;
    let large = [("a", 32), ("b", 24)].map(|(caller, size)| client.shares.reserve_body(caller, size * MIB));
    let small = [(); 4].map(|()| client.shares.reserve_body("c", 2 * MIB));
    let mut waiting: FuturesUnordered<_> = (0..8).map(|_| client.send(1_000)).collect();
    tokio::select! {
        first = waiting.next() => panic!("{first:?}"),
        // Their handlers have begun when later requests are answered.
        answers = join_all((0..8).map(|_| client.send(0))) => assert_eq!(answers, [200; 8]),
    }
    drop((large, small));
    let answers = tokio::time::timeout(SOON, waiting.collect::<Vec<_>>()).await.expect("they go on");
    assert_eq!(answers, [200; 8]);
}

#[tokio::test]
async fn bodies_of_one_http2_connection_that_are_too_large_together_do_not_stand_still() {
    // The caller's share is 40 MiB, and the bodies take 64.
    let client = Client::connected(80 * MIB).await;
    let sent = join_all((0..16).map(|_| client.send(4 * MIB)));
    let statuses = tokio::time::timeout(SOON, sent).await.expect("none waits until others give up");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&200), "{statuses:?}");
    assert_eq!(client.shares.reserved_bytes(), 0);
}
