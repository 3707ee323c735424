//! One connection to the broker, and the certainty that it is over.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::AsFd,
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_rs::{Runtime, Tokio};
use futures::{StreamExt, TryFutureExt, stream::BoxStream};
use lapin::{
    AsyncTcpStream, BasicProperties, Channel, Connection, ConnectionProperties, Event,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    uri::{AMQPScheme, AMQPUri},
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    addresses,
    error::{Error, answer},
    hold::MemoryHold,
    login::{self, CertificateRequest, Login},
    screened::{self, Screened},
};

/// The longest time from the first packet to the end of the handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// The longest wait for one answer of the broker: to open a channel, declare a queue, close.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The pause before a close in order. With a channel RabbitMQ forgets the acks that it has not passed on to a quorum
/// queue. A thousand take it some ten milliseconds, more when disks are slow.
const ACKS_PASSED_WITHIN: Duration = Duration::from_millis(500);
/// The heartbeat interval. A silent broker is given up after twice this. Lower values lose connections to long
/// garbage collections.
const HEARTBEAT_S: u16 = 5;
/// A routing key to which no queue is bound: a message published to it without `mandatory` is confirmed and gone.
pub(super) const NOWHERE: &str = "duetime.nowhere";

/// A connection that is used until the first doubt and then dropped. It is never recovered.
pub(super) struct Link {
    connection: Connection,
    /// The user of the login, where this side knows it.
    user: Option<String>,
    socket: Socket,
    /// The messages that the connection has brought and that are not answered yet.
    hold: Arc<MemoryHold>,
    over: CancellationToken,
    reason: OnceLock<String>,
}

/// The socket beneath the client. To close it is the one way to be sure that nothing in the client's buffers is
/// sent, whatever state the client is in.
#[derive(Clone, Default)]
struct Socket(Arc<Mutex<Option<TcpStream>>>);

impl Socket {
    fn hold(&self, stream: &tokio::net::TcpStream) -> io::Result<()> {
        // Data that is not sent when the socket closes must not be sent afterwards.
        stream.set_zero_linger()?;
        *self.0.lock() = Some(stream.as_fd().try_clone_to_owned()?.into());
        Ok(())
    }

    fn cut(&self) {
        if let Some(stream) = self.0.lock().take() {
            // The call fails only when the connection is gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Link {
    /// Connects and shakes hands. The broker lists the connection under `name`; `hold` bounds the messages that
    /// it brings.
    pub(super) async fn open(
        login: &Login,
        name: &str,
        hold: MemoryHold,
    ) -> Result<(Arc<Self>, BoxStream<'static, Event>), Error> {
        let mut uri = login.uri()?;
        uri.query.heartbeat.get_or_insert(HEARTBEAT_S);
        let (user, request) = (login::user(&uri), CertificateRequest::default());
        let (socket, hold) = (Socket::default(), Arc::new(hold));
        let tried = OnceLock::new();
        let connect = Self::shake_hands((login, uri), (&request, &tried), name, &socket, &hold);
        let connected = tokio::time::timeout(CONNECT_WITHIN, connect)
            .await
            .unwrap_or_else(|_| Err(Error::Silent { doing: "connect".to_owned(), within: CONNECT_WITHIN }));
        if let Some(address) = tried.get() {
            login.failed.note(*address, connected.is_err());
        }
        let connection = connected.map_err(|error| {
            socket.cut();
            if request.is_received() { error.or_no_certificate() } else { error }
        })?;
        let events = connection.events_listener().boxed();
        let link = Self { connection, user, socket, hold, over: CancellationToken::new(), reason: OnceLock::new() };
        Ok((Arc::new(link), events))
    }

    /// Connects the socket here rather than in the client. The client leaves a thread's worth of memory behind
    /// for every failed attempt, and sometimes never answers. `tried` gets the address that took the connection.
    async fn shake_hands(
        (login, uri): (&Login, AMQPUri),
        (request, tried): (&CertificateRequest, &OnceLock<SocketAddr>),
        name: &str,
        socket: &Socket,
        hold: &Arc<MemoryHold>,
    ) -> Result<Connection, Error> {
        let beneath = Runtime::new(Tokio::current());
        let host = uri.authority.host.clone();
        let connecting = async {
            let mut addresses = addresses::look_up(&host, uri.authority.port).await?;
            login.failed.put_last(&mut addresses);
            let connect = |address: SocketAddr| {
                AsyncTcpStream::connect(&beneath, vec![address]).map_ok(move |stream| (address, stream))
            };
            let (address, stream) = addresses::first_to_answer(&addresses, CONNECT_WITHIN / 2, connect).await?;
            let _ = tried.set(address);
            if let AsyncTcpStream::Plain(plain) = &stream {
                socket.hold(plain.get_ref())?;
            }
            match uri.scheme {
                AMQPScheme::AMQP => Ok(stream),
                AMQPScheme::AMQPS => stream.into_rustls(&login.tls.connector(request).await?, &host).await,
            }
        };
        let stream = connecting.await.map_err(|error: io::Error| Error::Connect(error.into()))?;
        let connected = Mutex::new(Some(AsyncTcpStream::Plain(Screened::new(stream, hold))));
        let hand_over = async move |_, _| {
            Ok(connected.lock().take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?)
        };
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        Connection::connector(uri, screened::runtime(), hand_over, properties).await.map_err(Error::Connect)
    }

    /// Opens a channel. A failure costs the connection: the client keeps the number of a channel that did not open.
    pub(super) async fn channel(&self) -> Result<Channel, Error> {
        let opened = answer(|| "open a channel".to_owned(), ANSWER_WITHIN, self.connection.create_channel()).await;
        opened.inspect_err(|error| self.cut(error.explained()))
    }

    /// Opens a channel on which every publish is confirmed.
    pub(super) async fn confirming_channel(&self) -> Result<Channel, Error> {
        let channel = self.channel().await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        answer(|| "enable publisher confirms".to_owned(), ANSWER_WITHIN, select).await?;
        Ok(channel)
    }

    pub(super) const fn hold(&self) -> &Arc<MemoryHold> {
        &self.hold
    }

    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The number of channels that the broker allows on this connection.
    pub(super) fn channels_allowed(&self) -> usize {
        usize::from(self.connection.configuration().channel_max())
    }

    /// Finds out whether the broker takes messages. RabbitMQ blocks only connections that have published, so a fresh
    /// connection does not show that the broker is out of memory. One message to no queue makes the broker say so.
    pub(super) async fn sound_out(&self, events: &mut BoxStream<'static, Event>) -> Result<(), Error> {
        let channel = self.confirming_channel().await?;
        let confirmed = async {
            let options = BasicPublishOptions::default();
            channel.basic_publish("".into(), NOWHERE.into(), options, &[], BasicProperties::default()).await?.await
        };
        tokio::pin!(confirmed);
        let sounded = async {
            loop {
                tokio::select! {
                    done = &mut confirmed => return done.map(drop),
                    Some(event) = events.next() => if matches!(event, Event::ConnectionBlocked(_)) {
                        return Ok(());
                    },
                }
            }
        };
        answer(|| "publish".to_owned(), ANSWER_WITHIN, sounded).await
    }

    /// Whether the broker has asked this connection to send nothing for now.
    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connection.status().connected() && !self.over.is_cancelled()
    }

    /// Ends the connection at once: not one more byte of it is sent. The outcomes of messages in flight stay unknown.
    pub(super) fn cut(&self, reason: impl Into<String>) {
        // Only the first reason counts.
        let _ = self.reason.set(reason.into());
        self.socket.cut();
        self.over.cancel();
    }

    /// Waits until the connection is cut.
    pub(super) async fn over(&self) -> Error {
        self.over.cancelled().await;
        Error::Lost { reason: self.reason() }
    }

    pub(super) fn reason(&self) -> String {
        self.reason.get().cloned().unwrap_or_else(|| "it was closed".to_owned())
    }

    /// Gives the broker the time to pass the acks on that were sent before. Their channels must live as long.
    pub(super) async fn pass_acks(&self) {
        tokio::time::sleep(ACKS_PASSED_WITHIN).await;
    }

    /// Closes the connection in order.
    pub(super) async fn close(&self) {
        let close = self.connection.close(200, "OK".into());
        if let Err(error) = answer(|| "close".to_owned(), ANSWER_WITHIN, close).await {
            tracing::debug!(error = error.explained(), "the connection to the broker did not close cleanly");
        }
        self.cut("it was closed");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Channels that outlive the link must not keep its connection open.
        self.cut("it was dropped");
    }
}
