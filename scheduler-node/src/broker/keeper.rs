//! Keeps one connection. The keeper connects, declares and serves; at the first doubt it drops the connection,
//! waits and begins anew. It never recovers a connection.

use std::{
    future::pending,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use common::ids::ClusterId;
use futures::{StreamExt, stream::BoxStream};
use lapin::Event;

use super::{
    connection::Link,
    consumer::Subscriptions,
    endpoints::{Endpoints, SETTLED_AFTER},
    error::Error,
    hold::{HELD_BYTES, MemoryHold},
    intake::Intake,
    login::Login,
    shared::Shared,
    state::Role,
    topology::{claim_vhost, declare_own},
};
use crate::supervise::at_work;

/// The interval of a check for a connection lost in silence. The client reports every other loss.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct Keeper {
    shared: Arc<Shared>,
    role: Role,
}

/// A connection that is ready for its work.
struct Session {
    link: Arc<Link>,
    events: BoxStream<'static, Event>,
    /// The subscriptions of the consuming connection. `None` for the publishing one.
    subscriptions: Option<Subscriptions>,
}

impl Keeper {
    pub(super) fn new(shared: &Arc<Shared>, role: Role) -> Self {
        Self { shared: Arc::clone(shared), role }
    }

    /// Runs until a stop is requested.
    pub(super) async fn run(self) {
        let mut endpoints = Endpoints::new(&self.shared.login, Instant::now());
        let mut was_up = false;
        loop {
            let opened = tokio::select! {
                () = self.shared.stop.cancelled() => break,
                opened = self.open_next(&mut endpoints) => opened,
            };
            let error = match opened {
                Ok(session) => {
                    let broker = endpoints.login().place();
                    tracing::info!(broker, "connected to the broker for {}", self.role.text());
                    if std::mem::replace(&mut was_up, true) {
                        self.shared.metrics.reconnects.inc();
                    }
                    endpoints.connected();
                    let since = Instant::now();
                    let Err(error) = self.serve(session).await else {
                        break;
                    };
                    if since.elapsed() > SETTLED_AFTER {
                        endpoints.settled();
                    }
                    error
                }
                Err(error) => error,
            };
            endpoints.failed(Instant::now(), rand::random_range(0.5..1.0));
            self.complain(error.explained(), &mut endpoints);
        }
        self.shared.board.down(self.role, "it was closed".to_owned());
    }

    /// Logs a reason once, however often it repeats. The connection counts as down when no other broker is left to
    /// try at once.
    fn complain(&self, reason: String, endpoints: &mut Endpoints) {
        let (role, reason) = (self.role.text(), endpoints.named(reason));
        if endpoints.is_news(&reason) {
            tracing::warn!(error = reason, "no connection to the broker for {role}; retrying");
        } else {
            tracing::debug!(error = reason, "still no connection to the broker for {role}");
        }
        if !endpoints.has_another(Instant::now()) {
            self.shared.board.down(self.role, reason);
        }
    }

    /// Waits until the next broker may be tried, and connects to it.
    async fn open_next(&self, endpoints: &mut Endpoints) -> Result<Session, Error> {
        let cluster = self.shared.cluster(self.role).await;
        let not_before = endpoints.turn(Instant::now());
        tokio::time::sleep_until(not_before.into()).await;
        self.open(endpoints.login(), cluster).await
    }

    /// Connects and makes sure of everything that the work needs.
    async fn open(&self, login: &Login, cluster: Option<ClusterId>) -> Result<Session, Error> {
        let _work = at_work();
        let name = format!("duetime: {}", self.role.text());
        let hold = match self.role {
            Role::Publishing => MemoryHold::unlimited(),
            Role::Consuming => MemoryHold::of(HELD_BYTES),
        };
        let (link, mut events) = Link::open(login, &name, hold).await?;
        if let Some(cluster) = cluster {
            claim_vhost(&link, cluster, &self.shared.strangers).await?;
        }
        declare_own(&link, &self.shared.strangers).await?;
        let subscriptions = match self.role {
            Role::Publishing => {
                link.sound_out(&mut events).await?;
                None
            }
            Role::Consuming => {
                let Shared { delay_exchanges, strangers, exchange_troubles, holds_more, .. } = &*self.shared;
                let intake =
                    Intake::open(&link, delay_exchanges.subscribe(), strangers, exchange_troubles, holds_more).await?;
                Some(Subscriptions::open(&link, intake, holds_more, &self.shared.answers).await?)
            }
        };
        Ok(Session { link, events, subscriptions })
    }

    /// Does the connection's work until it is lost or a stop is requested; on a stop, closes it in order.
    async fn serve(&self, session: Session) -> Result<(), Error> {
        let Session { link, events, subscriptions } = session;
        if self.role == Role::Publishing {
            // The publisher must be there before the board reports the broker as up.
            self.shared.offer_publisher(&link);
        }
        self.shared.board.up(self.role, link.is_blocked());
        // It lives until the connection is closed: its end would close the channels, and the acks with them.
        let mut reading = pin!(async {
            match subscriptions {
                Some(subscriptions) => subscriptions.forward(&self.shared.incoming, &self.shared.received).await,
                None => pending().await,
            }
        });
        let end = tokio::select! {
            error = &mut reading => Err(error),
            end = self.watch(&link, events) => end,
        };
        if let Err(error) = &end {
            // The board must report the loss before a batch finds no publisher and takes that for a fault of its own.
            self.shared.board.down(self.role, error.explained());
        }
        if self.role == Role::Publishing {
            self.shared.publisher.store(None);
        }
        match &end {
            Ok(()) => {
                if self.role == Role::Consuming {
                    link.pass_acks().await;
                }
                link.close().await;
            }
            Err(error) => link.cut(error.explained()),
        }
        end
    }

    /// Watches the connection until it is lost or a stop is requested.
    async fn watch(&self, link: &Link, mut events: BoxStream<'static, Event>) -> Result<(), Error> {
        let mut look = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                () = self.shared.stop.cancelled() => return Ok(()),
                error = link.over() => return Err(error),
                event = events.next() => match event {
                    Some(Event::ConnectionBlocked(reason)) => {
                        tracing::warn!(reason, "the broker has blocked the connection");
                        self.shared.board.up(self.role, true);
                    }
                    Some(Event::ConnectionUnblocked) => {
                        tracing::info!("the broker has unblocked the connection");
                        self.shared.board.up(self.role, false);
                    }
                    // The user of a channel handles its errors.
                    Some(Event::Error(error)) if !link.is_connected() => link.cut(error.to_string()),
                    Some(_) => {}
                    None => link.cut("the AMQP client closed it"),
                },
                _ = look.tick() => if !link.is_connected() {
                    link.cut("it was lost");
                },
            }
        }
    }
}
