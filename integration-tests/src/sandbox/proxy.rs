//! A TCP proxy that stands between a node and a store, so that their link can be cut while both live on.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

use super::port::free_port;

const CHUNK_BYTES: usize = 64 * 1_024;
/// Chunks in flight in one direction while the link is slow.
const IN_FLIGHT: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    state: State,
    delay: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// No byte passes and no connection is closed, as if the cable were pulled out.
    Cut,
    /// Requests pass and answers do not: the link is half open.
    Mute,
    /// Connections are closed, and new ones are closed at once, as if the process were gone.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Request,
    Answer,
}

/// Forwards one port of 127.0.0.1 to another. Must be started and used within one runtime.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    link: watch::Sender<Link>,
    taken: Arc<AtomicUsize>,
    work: JoinHandle<()>,
}

impl Proxy {
    pub async fn start(target: u16) -> Result<Self> {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.with_context(|| format!("listening on {port}"))?;
        let (link, seen) = watch::channel(Link { state: State::Open, delay: Duration::ZERO });
        let taken: Arc<AtomicUsize> = Arc::default();
        let count = Arc::clone(&taken);
        let work = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::Relaxed);
                // Ends with the connection, with the runtime, or when the link is refused.
                drop(tokio::spawn(carry(client, target, seen.clone())));
            }
        });
        Ok(Self { port, link, taken, work })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections it has taken.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Silences both directions; connections stay open, new ones are accepted and hear nothing.
    pub fn cut(&self) {
        self.set(State::Cut);
    }

    /// Lets requests pass and holds the answers back.
    pub fn mute(&self) {
        self.set(State::Mute);
    }

    /// Closes every connection, and new ones at once.
    pub fn refuse(&self) {
        self.set(State::Refused);
    }

    /// Lets everything pass again, including the bytes held back while the link was cut.
    pub fn heal(&self) {
        self.link.send_replace(Link { state: State::Open, delay: Duration::ZERO });
    }

    /// Adds this delay to each direction.
    pub fn delay(&self, delay: Duration) {
        self.link.send_modify(|link| link.delay = delay);
    }

    fn set(&self, state: State) {
        self.link.send_modify(|link| link.state = state);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.work.abort();
        self.set(State::Refused);
    }
}

async fn carry(client: TcpStream, target: u16, mut link: watch::Receiver<Link>) -> io::Result<()> {
    passable(&mut link, Way::Request).await?;
    let server = TcpStream::connect(("127.0.0.1", target)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    tokio::select! {
        done = pump(client_in, server_out, link.clone(), Way::Request) => done,
        done = pump(server_in, client_out, link.clone(), Way::Answer) => done,
        () = refused(&mut link) => Ok(()),
    }
}

/// Copies one direction. The end of either ends the connection: no protocol here uses half-closed connections.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut link: watch::Receiver<Link>,
    way: Way,
) -> io::Result<()> {
    let (held, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(IN_FLIGHT);
    let delays = link.clone();
    let reading = async move {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let count = from.read(&mut buffer).await?;
            let at = Instant::now() + delays.borrow().delay;
            if count == 0 || held.send((at, buffer[..count].to_vec())).await.is_err() {
                return io::Result::Ok(());
            }
        }
    };
    let writing = async move {
        while let Some((at, chunk)) = due.recv().await {
            tokio::time::sleep_until(at).await;
            passable(&mut link, way).await?;
            to.write_all(&chunk).await?;
        }
        io::Result::Ok(())
    };
    tokio::try_join!(reading, writing).map(|_| ())
}

/// Waits while the link holds back what goes this way.
async fn passable(link: &mut watch::Receiver<Link>, way: Way) -> io::Result<()> {
    let held = |state: State| state == State::Cut || state == State::Mute && way == Way::Answer;
    match link.wait_for(|link| !held(link.state)).await {
        Ok(link) if link.state != State::Refused => Ok(()),
        Ok(_) | Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

async fn refused(link: &mut watch::Receiver<Link>) {
    // The sender is gone when the proxy is: then nothing passes either.
    link.wait_for(|link| link.state == State::Refused).await.ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that echoes each byte.
    async fn echo() -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = client.split();
                    tokio::io::copy(&mut from, &mut to).await.ok();
                });
            }
        });
        port
    }

    async fn round(client: &mut TcpStream) -> io::Result<Duration> {
        let began = Instant::now();
        client.write_all(b"x").await?;
        client.read_exact(&mut [0]).await?;
        Ok(began.elapsed())
    }

    #[tokio::test]
    async fn a_cut_link_is_silent_and_healing_brings_back_what_was_held() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        round(&mut client).await.unwrap();
        proxy.cut();
        client.write_all(b"y").await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(100), client.read_exact(&mut [0])).await;
        assert!(silent.is_err());
        proxy.heal();
        client.read_exact(&mut [0]).await.unwrap();
        round(&mut client).await.unwrap();
    }

    #[tokio::test]
    async fn a_mute_link_carries_requests_and_holds_their_answers() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        round(&mut client).await.unwrap();
        proxy.mute();
        client.write_all(b"y").await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(100), client.read_exact(&mut [0])).await;
        assert!(silent.is_err());
        proxy.heal();
        client.read_exact(&mut [0]).await.unwrap();
    }

    #[tokio::test]
    async fn a_refused_link_closes_connections_and_a_healed_one_takes_new_ones() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        round(&mut client).await.unwrap();
        proxy.refuse();
        assert_eq!(client.read(&mut [0]).await.unwrap_or(0), 0);
        let mut refused = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        round(&mut refused).await.unwrap_err();
        proxy.heal();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        round(&mut client).await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_link_takes_its_delay_in_each_direction() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap();
        proxy.delay(Duration::from_millis(40));
        assert!(round(&mut client).await.unwrap() >= Duration::from_millis(80));
    }
}
