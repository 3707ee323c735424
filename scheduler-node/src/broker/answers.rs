//! Answers to the senders of messages. They have a connection of their own, which opens with the first one: RabbitMQ
//! ends the connection on which a name of direct reply-to cannot be read, or is of one of its nodes that is away.

use std::{sync::Arc, time::Instant};

use futures::FutureExt;
use lapin::{BasicProperties, Channel, options::BasicPublishOptions};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    connection::Link,
    endpoints::{Endpoints, SETTLED_AFTER},
    error::Error,
    hold::MemoryHold,
    login::Login,
};

/// The most answers that wait for the connection. Others are lost: a consumer asks again with its next sign of life.
pub(super) const WAITING: usize = 64;

/// An answer, which may be lost.
#[derive(Debug)]
pub(super) struct Answer {
    pub queue: String,
    pub correlation_id: String,
    pub body: Vec<u8>,
}

/// The connection of the answers, and its channel.
struct Open {
    link: Arc<Link>,
    channel: Channel,
    since: Instant,
}

impl Open {
    async fn next(endpoints: &mut Endpoints) -> Result<Self, Error> {
        let not_before = endpoints.turn(Instant::now());
        tokio::time::sleep_until(not_before.into()).await;
        let (link, _events) = Link::open(endpoints.login(), "duetime: answers", MemoryHold::unlimited()).await?;
        let channel = link.channel().await?;
        Ok(Self { link, channel, since: Instant::now() })
    }

    fn is_lost(&self) -> bool {
        !(self.link.is_connected() && self.channel.status().connected())
    }

    /// Publishes without a wait. While the broker blocks the connection, the answer is left out.
    fn send(&self, answer: &Answer) {
        if self.link.is_blocked() {
            return;
        }
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_correlation_id(answer.correlation_id.as_str().into());
        let (queue, options) = (answer.queue.as_str().into(), BasicPublishOptions::default());
        let _ = self.channel.basic_publish("".into(), queue, options, &answer.body, properties).now_or_never();
    }
}

/// Publishes answers until a stop is requested.
pub(super) async fn send_all(login: &Login, stop: &CancellationToken, mut answers: mpsc::Receiver<Answer>) {
    let sending = async {
        let mut endpoints = Endpoints::new(login, Instant::now());
        let mut open: Option<Open> = None;
        while let Some(answer) = answers.recv().await {
            if let Some(lost) = open.take_if(|open| open.is_lost()) {
                if lost.since.elapsed() > SETTLED_AFTER {
                    endpoints.settled();
                }
                endpoints.failed(Instant::now(), rand::random_range(0.5..1.0));
            }
            if open.is_none() {
                match Open::next(&mut endpoints).await {
                    Ok(next) => open = Some(next),
                    Err(error) => {
                        endpoints.failed(Instant::now(), rand::random_range(0.5..1.0));
                        tracing::debug!(error = error.explained(), "an answer to a consumer is lost");
                    }
                }
            }
            if let Some(open) = &open {
                open.send(&answer);
            }
        }
    };
    // The keeper of the publishing connection says why a broker cannot be reached.
    stop.run_until_cancelled(sending).await;
}
