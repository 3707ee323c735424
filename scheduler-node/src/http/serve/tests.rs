mod refused;
mod waiting;

use std::{sync::Arc, time::Duration};

use axum::{
    body::to_bytes,
    extract::Request,
    http::StatusCode,
    routing::{get, post},
};
use prometheus::Registry;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
    task::JoinHandle,
};

use super::*;
use crate::{
    http::reached::Encrypted,
    supervise::{LoopKind, Pulse},
    working_set::failures::tests::Log,
};

/// Much longer than a test takes.
const LONG: Duration = Duration::from_secs(600);

/// What a test waits for comes within this time, however busy the machine is.
const SOON: Duration = Duration::from_secs(60);

/// The types of frames of HTTP/2 (RFC 9113, 6).
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;

/// The head of a request whose body has a megabyte.
const TAKE: &[u8] = b"POST /take HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 1000000\r\n\r\n";

/// A server for tests. A request of `/slow` adds a permit to `entered` and waits for one of `free`; `/take` reads a
/// body and answers with its size.
struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    entered: Arc<Semaphore>,
    free: Arc<Semaphore>,
    served: JoinHandle<()>,
    pulse: Pulse,
}

/// Limits that no test reaches by accident.
fn generous() -> ConnectionLimits {
    ConnectionLimits {
        all: 1_000,
        per_address: 1_000,
        head_within: LONG,
        idle_within: LONG,
        write_within: LONG,
        body: BodyPace { grace: LONG, bytes_per_second: 1, pause: LONG },
        answer: AnswerPace { grace: LONG, bytes_per_second: 1 },
    }
}

async fn take(request: Request) -> (StatusCode, String) {
    match to_bytes(request.into_body(), 64 << 20).await {
        Ok(body) => (StatusCode::OK, format!("{} bytes", body.len())),
        Err(error) => (StatusCode::REQUEST_TIMEOUT, error.to_string()),
    }
}

async fn is_encrypted(request: Request) -> String {
    format!("encrypted: {}", request.extensions().get::<Encrypted>().is_some())
}

async fn running(limits: ConnectionLimits, within: Duration) -> Running {
    running_with(limits, within, None).await
}

async fn running_with(limits: ConnectionLimits, within: Duration, certificate: Option<Arc<Certificate>>) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (entered, free) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (in_handler, may_answer) = (Arc::clone(&entered), Arc::clone(&free));
    let slow = async move || {
        in_handler.add_permits(1);
        let _permit = may_answer.acquire().await;
        "answered"
    };
    let much = async || "x".repeat(64 << 20);
    let stop = CancellationToken::new();
    let router = Router::new()
        .route("/", get(async || "here"))
        .route("/slow", get(slow))
        .route("/much", get(much))
        .route("/take", post(take))
        .route("/encrypted", get(is_encrypted))
        .merge(refused::routes());
    let metrics = ConnectionMetrics::register(&Registry::new()).expect("registered once");
    let server = Server { listener, limits, metrics, certificate };
    let pulse = Pulse::default();
    #[expect(clippy::disallowed_methods, reason = "the test waits for it")]
    let served = tokio::spawn(pulse.run(LoopKind::Http, server.serve_to_the_end(router, stop.clone(), within)));
    Running { address, stop, entered, free, served, pulse }
}

impl Running {
    async fn connected(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("connected")
    }

    async fn sent(&self, bytes: &[u8]) -> TcpStream {
        let mut client = self.connected().await;
        client.write_all(bytes).await.expect("sent");
        client
    }

    async fn ask_slowly(&self) -> TcpStream {
        let client = self.sent(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await;
        self.entered.acquire().await.expect("asked").forget();
        client
    }

    /// Sends requests on new connections until one is served.
    async fn until_served(&self) {
        let served = async {
            while !self.ask().await.ends_with("here") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(SOON, served).await.expect("a request is served");
    }

    /// Sends requests on new connections until one is answered. Returns its connection, which stays open.
    async fn until_answered(&self) -> TcpStream {
        let answered = async {
            loop {
                let mut client = self.sent(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
                let mut answer = Vec::new();
                while client.read_buf(&mut answer).await.is_ok_and(|read| read > 0) {
                    if answer.ends_with(b"here") {
                        return client;
                    }
                }
            }
        };
        tokio::time::timeout(SOON, answered).await.expect("a request is answered")
    }

    /// Sends whole bodies on new connections until one is taken.
    async fn until_taken(&self) {
        let taken = async {
            loop {
                let mut client = self.sent(TAKE).await;
                // A machine that stands still may use up the time of the body.
                let _ = client.write_all(&vec![b'x'; 1_000_000]).await;
                if rest(&mut client).await.ends_with("1000000 bytes") {
                    return;
                }
            }
        };
        tokio::time::timeout(SOON, taken).await.expect("a body is taken");
    }

    /// Sends a request on a connection of its own and returns the answer.
    async fn ask(&self) -> String {
        let mut client = self.sent(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        rest(&mut client).await
    }
}

/// Sends a request on a connection that stays open, and reads the answer.
async fn ask_on(client: &mut TcpStream) {
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
    read_until(client, b"here").await;
}

/// Reads until the last bytes of an answer.
async fn read_until(client: &mut TcpStream, last: &[u8]) {
    let mut bytes = Vec::new();
    let read = async {
        while !bytes.ends_with(last) {
            assert_ne!(client.read_buf(&mut bytes).await.expect("an answer"), 0, "the connection has ended");
        }
    };
    tokio::time::timeout(SOON, read).await.expect("the answer comes");
}

/// Reads until the server closes the connection; fails if it does not.
async fn rest(client: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(SOON, client.read_to_end(&mut bytes)).await;
    // Closing a connection with unread bytes resets it.
    let _ = read.expect("the server closes the connection");
    // HTTP/2 begins with frames, which are not text.
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(start_paused = true)]
async fn a_lack_of_file_descriptors_is_one_error_in_the_log() {
    let (log, mut last_failed) = (Log::keep(), None);
    // EMFILE
    let mut fail = async || accepted_or_pause(Err(io::Error::from_raw_os_error(24)), &mut last_failed).await;
    for _ in 0..10 {
        assert!(fail().await.is_none());
    }
    assert_eq!(log.count("cannot accept connections"), 1);
    tokio::time::advance(TROUBLE_OVER).await;
    assert!(fail().await.is_none());
    assert_eq!(log.count("cannot accept connections"), 2);
}

#[tokio::test]
async fn each_accepted_connection_is_a_unit_of_work_and_a_request_is_none() {
    let server = running(generous(), LONG).await;
    let slow = server.ask_slowly().await;
    server.ask().await;
    assert_eq!(server.pulse.begun(), 2);
    assert!(server.pulse.stalled(std::time::Instant::now() + LONG).is_empty(), "a request under way stalls no loop");
    drop(slow);
}

#[tokio::test]
async fn a_request_that_has_begun_is_answered_after_the_stop() {
    let server = running(generous(), Duration::from_secs(60)).await;
    let mut client = server.ask_slowly().await;
    server.stop.cancel();
    server.free.add_permits(1);
    assert!(rest(&mut client).await.ends_with("answered"));
    server.served.await.expect("no panic");
    assert!(TcpStream::connect(server.address).await.is_err(), "the port is closed");
}

#[tokio::test]
async fn a_request_that_does_not_end_does_not_hold_up_the_stop() {
    let server = running(generous(), Duration::from_millis(10)).await;
    let _client = server.ask_slowly().await;
    server.stop.cancel();
    server.served.await.expect("no panic");
}

#[tokio::test]
async fn half_sent_heads_are_ended_and_others_are_served_meanwhile() {
    let limits = ConnectionLimits { head_within: Duration::from_millis(500), ..generous() };
    let server = running(limits, LONG).await;
    let mut half = Vec::new();
    for number in 0..200 {
        // Some clients send nothing at all, and some announce HTTP/2.
        let bytes: &[u8] = match number % 4 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ",
            2 => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _ => b"PRI * HT",
        };
        half.push(server.sent(bytes).await);
    }
    server.until_served().await;
    for client in &mut half {
        rest(client).await;
    }
    server.until_served().await;
}

#[tokio::test]
async fn a_head_that_drips_after_an_answer_is_ended_and_an_idle_connection_is_kept() {
    let limits = ConnectionLimits { head_within: Duration::from_millis(300), ..generous() };
    let server = running(limits, LONG).await;
    let mut client = server.until_answered().await;
    // The deadline for heads does not apply to an idle connection: it is still open afterwards.
    let waited = tokio::time::timeout(Duration::from_millis(900), client.read(&mut [0])).await;
    assert!(waited.is_err(), "an idle connection stays open");
    client.write_all(b"G").await.expect("sent");
    rest(&mut client).await;
}

#[tokio::test]
async fn an_idle_connection_is_ended_in_time() {
    let limits = ConnectionLimits { idle_within: Duration::from_millis(300), ..generous() };
    let server = running(limits, LONG).await;
    let mut client = server.sent(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(rest(&mut client).await.ends_with("here"));
}

#[tokio::test]
async fn a_body_that_drips_is_ended_and_one_that_flows_is_taken() {
    let body = BodyPace { grace: Duration::from_millis(500), bytes_per_second: 1 << 20, pause: LONG };
    let server = running(ConnectionLimits { body, ..generous() }, LONG).await;
    server.until_taken().await;
    let mut slow = server.sent(TAKE).await;
    // Each byte comes well within the longest pause, but the whole body would take hours.
    let mut answer = vec![0; 4_096];
    let deadline = tokio::time::Instant::now() + SOON;
    let read = loop {
        assert!(tokio::time::Instant::now() < deadline, "the slow body is ended");
        let _ = slow.write_all(b"x").await;
        if let Ok(read) = tokio::time::timeout(Duration::from_millis(20), slow.read(&mut answer)).await {
            break read.expect("an answer");
        }
    };
    assert!(answer[..read].starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer[..read]));
}

#[tokio::test]
async fn a_body_that_stops_is_ended_although_it_was_fast() {
    let body = BodyPace { grace: LONG, bytes_per_second: 1, pause: Duration::from_millis(300) };
    let server = running(ConnectionLimits { body, ..generous() }, LONG).await;
    let mut stopped = server.sent(TAKE).await;
    stopped.write_all(&vec![b'x'; 900_000]).await.expect("sent");
    assert!(rest(&mut stopped).await.starts_with("HTTP/1.1 408"));
}

#[tokio::test]
async fn a_client_that_does_not_read_its_answer_is_ended() {
    let limits = ConnectionLimits { write_within: Duration::from_millis(300), ..generous() };
    let server = running(limits, Duration::from_millis(1)).await;
    let _deaf = server.sent(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let one_place = running(ConnectionLimits { all: 1, ..limits }, LONG).await;
    let mut deaf = one_place.sent(b"GET /much HTTP/1.1\r\nHost: x\r\n\r\n").await;
    deaf.read_exact(&mut [0]).await.expect("the answer has begun");
    // Its place is free again only after the connection has ended.
    one_place.until_served().await;
    drop(deaf);
}

#[tokio::test]
async fn an_http2_client_that_opens_no_window_for_its_answer_is_ended() {
    /// The setting of a stream's first window.
    const INITIAL_WINDOW: [u8; 2] = 4_u16.to_be_bytes();
    let answer = AnswerPace { grace: Duration::from_millis(300), bytes_per_second: 1 << 40 };
    let server = running(ConnectionLimits { answer, ..generous() }, LONG).await;
    for window in [0_u32, 1] {
        let mut client = server.sent(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        let settings = [&INITIAL_WINDOW[..], &window.to_be_bytes()].concat();
        // GET http://x/much
        let get = b"\x82\x86\x44\x05/much\x41\x01x";
        let sent = [frame(SETTINGS, 0, 0, &settings), frame(HEADERS, 0x5, 1, get)].concat();
        client.write_all(&sent).await.expect("sent");
        rest(&mut client).await;
    }
}

/// Whether an HTTP/2 client that waits for the node for three times the grace of an answer gets its answer.
async fn is_answered_after_a_wait(answer: AnswerPace) -> bool {
    let server = running(ConnectionLimits { answer, ..generous() }, LONG).await;
    let mut client = server.sent(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let get = b"\x82\x86\x44\x05/slow\x41\x01x";
    let sent = [frame(SETTINGS, 0, 0, b""), frame(HEADERS, 0x5, 1, get)].concat();
    client.write_all(&sent).await.expect("sent");
    server.entered.acquire().await.expect("asked").forget();
    tokio::time::sleep(answer.grace * 3).await;
    if client.write_all(&frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes())).await.is_err() {
        return false;
    }
    server.free.add_permits(1);
    let mut bytes = Vec::new();
    while client.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        if bytes.windows(8).any(|part| part == b"answered") {
            return true;
        }
    }
    false
}

/// The client tries again, because a machine that stands still may use up the time of an answer.
#[tokio::test]
async fn an_http2_client_that_waits_for_the_node_may_wait() {
    let answer = AnswerPace { grace: Duration::from_millis(300), bytes_per_second: 1 << 40 };
    let answered = async { while !is_answered_after_a_wait(answer).await {} };
    tokio::time::timeout(SOON, answered).await.expect("the answer comes");
}

#[tokio::test]
async fn a_connection_without_a_place_is_closed_at_once() {
    for limits in [ConnectionLimits { all: 2, ..generous() }, ConnectionLimits { per_address: 2, ..generous() }] {
        let server = running(limits, LONG).await;
        let first = server.ask_slowly().await;
        let _second = server.ask_slowly().await;
        assert_eq!(rest(&mut server.connected().await).await, "");
        drop(first);
        server.until_served().await;
    }
}

#[tokio::test]
async fn a_new_connection_takes_the_place_of_the_one_that_is_idle_the_longest() {
    for limits in [ConnectionLimits { all: 2, ..generous() }, ConnectionLimits { per_address: 2, ..generous() }] {
        let server = running(limits, LONG).await;
        let (mut first, mut second) = (server.connected().await, server.connected().await);
        ask_on(&mut second).await;
        ask_on(&mut first).await;
        let mut third = server.connected().await;
        ask_on(&mut third).await;
        assert_eq!(rest(&mut second).await, "");
        ask_on(&mut first).await;
        ask_on(&mut third).await;
    }
}

#[tokio::test]
async fn a_request_under_way_keeps_its_place_however_old_it_is() {
    let server = running(ConnectionLimits { all: 2, ..generous() }, LONG).await;
    let mut slow = server.ask_slowly().await;
    let mut idle = server.connected().await;
    ask_on(&mut idle).await;
    ask_on(&mut server.connected().await).await;
    assert_eq!(rest(&mut idle).await, "");
    server.free.add_permits(1);
    read_until(&mut slow, b"answered").await;
}

#[tokio::test]
async fn a_connection_without_a_whole_head_gives_its_place_to_a_new_one() {
    let server = running(ConnectionLimits { all: 1, ..generous() }, LONG).await;
    // The last one is the beginning of HTTP/2: its preface, and an empty frame of settings.
    for bytes in [&b""[..], b"GET / HTTP/1.1\r\nX-Half: ", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
        let mut waiting = server.sent(bytes).await;
        assert!(server.ask().await.ends_with("here"), "{bytes:?}");
        rest(&mut waiting).await;
    }
}

/// A frame of HTTP/2: its type, flags, stream and payload (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The types and payloads of the frames in `bytes`.
fn frames(mut bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut found = Vec::new();
    while let [l0, l1, l2, kind, _flags, _, _, _, _, rest @ ..] = bytes {
        let len = u32::from_be_bytes([0, *l0, *l1, *l2]) as usize;
        let Some((payload, after)) = rest.split_at_checked(len) else { break };
        found.push((*kind, payload));
        bytes = after;
    }
    found
}

#[tokio::test]
async fn an_http2_client_hears_its_limits_and_is_ended_when_it_resets_what_it_opens() {
    const GO_AWAY: u8 = 7;
    /// The error code of h2 against a client that makes it work for nothing.
    const ENHANCE_YOUR_CALM: [u8; 4] = 11_u32.to_be_bytes();
    let server = running(generous(), LONG).await;
    let mut client = server.sent(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    let mut sent = frame(SETTINGS, 0, 0, b"");
    for stream in (1..2_000).step_by(2) {
        // GET http://x/ and its reset.
        sent.extend(frame(1, 0x5, stream, b"\x82\x86\x84\x41\x01x"));
        sent.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    client.write_all(&sent).await.expect("sent");
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(SOON, client.read_to_end(&mut bytes)).await;
    let _ = read.expect("the server closes the connection");
    let frames = frames(&bytes);
    let (_, settings) = frames.iter().find(|(kind, _)| *kind == SETTINGS).expect("settings");
    let says = |number: u16, value: u32| {
        let setting = [&number.to_be_bytes()[..], &value.to_be_bytes()].concat();
        assert!(settings.chunks(6).any(|sent| sent == setting), "setting {number} is {value}: {settings:?}");
    };
    // The settings: concurrent streams, the window of each, the size of a head.
    says(3, 64);
    says(4, 64 << 10);
    says(6, 32 << 10);
    let (_, end) = frames.iter().find(|(kind, _)| *kind == GO_AWAY).expect("the server says why it ends");
    assert_eq!(end.get(4..8), Some(&ENHANCE_YOUR_CALM[..]), "{end:?}");
}

#[tokio::test]
async fn with_a_certificate_the_node_speaks_tls_and_a_handshake_that_does_not_end_is_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = tls::tests::make(folder.path());
    let certificate = Arc::new(Certificate::read(files.clone()).expect("a certificate"));
    let server = running_with(generous(), LONG, Some(Arc::clone(&certificate))).await;
    let output = tokio::process::Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60", "--cacert"])
        .arg(&files.cert)
        .args(["", "encrypted"].map(|path| format!("https://localhost:{}/{path}", server.address.port())))
        .output()
        .await
        .expect("curl runs");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "hereencrypted: true",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!server.ask().await.contains("here"), "a request in the clear is not answered");
    let limits = ConnectionLimits { head_within: Duration::from_millis(300), ..generous() };
    let hasty = running_with(limits, LONG, Some(certificate)).await;
    rest(&mut hasty.sent(b"").await).await;
}
