//! Keeps one connection. The keeper connects, declares and serves; at the first doubt it drops the connection,
//! waits and begins anew. It never recovers a connection.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream::BoxStream};
use lapin::Event;

use super::{
    connection::Link,
    consumer::Subscriptions,
    error::Error,
    hold::{HELD_BYTES, MemoryHold},
    intake::Intake,
    shared::Shared,
    state::Role,
    topology::declare_own,
};
use crate::supervise::at_work;

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The age at which a connection is settled: a later failure starts again at the shortest wait.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
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

    /// Runs until told to stop.
    pub(super) async fn run(self) {
        let mut wait = FIRST_WAIT;
        let mut complaint = None;
        let mut was_up = false;
        loop {
            let opened = tokio::select! {
                () = self.shared.stop.cancelled() => break,
                opened = self.open() => opened,
            };
            let error = match opened {
                Ok(session) => {
                    tracing::info!("connected to the broker for {}", self.role.text());
                    if std::mem::replace(&mut was_up, true) {
                        self.shared.metrics.reconnects.inc();
                    }
                    complaint = None;
                    let since = Instant::now();
                    let Err(error) = self.serve(session).await else {
                        break;
                    };
                    if since.elapsed() > SETTLED_AFTER {
                        wait = FIRST_WAIT;
                    }
                    error
                }
                Err(error) => error,
            };
            self.complain(error.explained(), &mut complaint);
            tokio::select! {
                () = self.shared.stop.cancelled() => break,
                () = tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..1.0))) => {}
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        self.shared.board.down(self.role, "it was closed".to_owned());
    }

    /// Logs a reason once, however often it repeats.
    fn complain(&self, reason: String, last_reason: &mut Option<String>) {
        let role = self.role.text();
        if last_reason.as_ref() == Some(&reason) {
            tracing::debug!(error = reason, "still no connection to the broker for {role}");
        } else {
            tracing::warn!(error = reason, "no connection to the broker for {role}; retrying");
            *last_reason = Some(reason.clone());
        }
        self.shared.board.down(self.role, reason);
    }

    /// Connects and makes sure of everything that the work needs.
    async fn open(&self) -> Result<Session, Error> {
        let _work = at_work();
        let name = format!("duetime: {}", self.role.text());
        let hold = match self.role {
            Role::Publishing => MemoryHold::unlimited(),
            Role::Consuming => MemoryHold::of(HELD_BYTES),
        };
        let (link, mut events) = Link::open(&self.shared.login, &name, hold).await?;
        declare_own(&link, &self.shared.strangers).await?;
        let subscriptions = match self.role {
            Role::Publishing => {
                link.sound_out(&mut events).await?;
                None
            }
            Role::Consuming => {
                let Shared { delay_exchanges, strangers, exchange_troubles, .. } = &*self.shared;
                let intake = Intake::open(&link, delay_exchanges, strangers, exchange_troubles).await?;
                Some(Subscriptions::open(&link, intake).await?)
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
        let end = match subscriptions {
            None => self.watch(&link, events).await,
            Some(subscriptions) => tokio::select! {
                error = subscriptions.forward(&self.shared.incoming, &self.shared.received) => Err(error),
                end = self.watch(&link, events) => end,
            },
        };
        if let Err(error) = &end {
            // The board must report the loss before a batch finds no publisher and takes that for a fault of its own.
            self.shared.board.down(self.role, error.explained());
        }
        if self.role == Role::Publishing {
            self.shared.publisher.store(None);
        }
        match &end {
            Ok(()) => link.close().await,
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
