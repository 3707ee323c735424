//! A connection as the AMQP client sees it: `common::wire::screen` checks every byte before the client reads it.

use std::{
    io::{self, IoSlice, Read, Write},
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use async_rs::{Runtime, Tokio, traits::Reactor, util::RuntimeParts};
use common::wire::screen::Screen;
use futures::{AsyncRead, AsyncWrite, Stream};
use lapin::AsyncTcpStream;

use super::hold::MemoryHold;

/// The number of bytes read from the socket at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The socket type of the runtime beneath.
pub(super) type Plain = AsyncTcpStream<<Tokio as Reactor>::TcpStream>;
/// The runtime type that the client uses.
pub(super) type Screening = Runtime<RuntimeParts<Tokio, Sockets>>;

/// The node's own runtime, with screened sockets.
pub(super) fn runtime() -> Screening {
    Runtime::new(RuntimeParts::new(Tokio::current(), Sockets(Tokio::current())))
}

/// One connection, screened.
pub(super) struct Screened {
    socket: Plain,
    screen: Screen,
    hold: Arc<MemoryHold>,
    chunk: Box<[u8]>,
    /// Screened bytes. The client has read them up to `read`.
    screened: Vec<u8>,
    read: usize,
}

impl Screened {
    pub(super) fn new(socket: Plain, hold: &Arc<MemoryHold>) -> Self {
        Self {
            socket,
            screen: Screen::default(),
            hold: Arc::clone(hold),
            chunk: vec![0; CHUNK_BYTES].into(),
            screened: Vec::new(),
            read: 0,
        }
    }
}

impl AsyncRead for Screened {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        while this.read == this.screened.len() {
            let count = ready!(Pin::new(&mut this.socket).poll_read(context, &mut this.chunk))?;
            if count == 0 {
                return Poll::Ready(Ok(0));
            }
            this.screened.clear();
            this.read = 0;
            let hold = &this.hold;
            this.screen.feed(&this.chunk[..count], &mut this.screened, |arrival| hold.arrives(arrival));
        }
        let there = &this.screened[this.read..];
        let count = there.len().min(buffer.len());
        buffer[..count].copy_from_slice(&there[..count]);
        this.read += count;
        Poll::Ready(Ok(count))
    }
}

impl AsyncWrite for Screened {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write_vectored(context, slices)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_close(context)
    }
}

/// The runtime's own reactor, with screened connections in place of its own.
#[derive(Clone, Debug)]
pub(super) struct Sockets(Tokio);

impl Reactor for Sockets {
    type TcpStream = Screened;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, wait: Duration) -> Self::Sleep {
        self.0.sleep(wait)
    }

    fn interval(&self, every: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(every)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connecting = self.0.tcp_connect_addr(address);
        async move { Ok(Screened::new(AsyncTcpStream::Plain(connecting.await?), &Arc::new(MemoryHold::unlimited()))) }
    }
}
