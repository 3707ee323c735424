//! Answers to the senders of messages. They have a connection of their own, which opens with the first one: RabbitMQ
//! ends the connection on which a name of direct reply-to cannot be read, or is of one of its nodes that is away.

use std::{sync::Arc, time::Instant};

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

/// Publishes answers until a stop is requested.
pub(super) async fn send_all(login: &Login, stop: &CancellationToken, mut answers: mpsc::Receiver<Answer>) {
    let sending = async {
        let mut endpoints = Endpoints::new(login, Instant::now());
        let mut opened: Option<(Arc<Link>, Instant)> = None;
        while let Some(answer) = answers.recv().await {
            if let Some((_, since)) = opened.take_if(|(link, _)| !link.takes_answers()) {
                if since.elapsed() > SETTLED_AFTER {
                    endpoints.settled();
                }
                endpoints.failed(Instant::now(), rand::random_range(0.5..1.0));
            }
            if opened.is_none() {
                match open(&mut endpoints).await {
                    Ok(link) => opened = Some((link, Instant::now())),
                    Err(error) => {
                        endpoints.failed(Instant::now(), rand::random_range(0.5..1.0));
                        tracing::debug!(error = error.explained(), "an answer to a consumer is lost");
                    }
                }
            }
            if let Some((link, _)) = &opened {
                link.send_answer(&answer.queue, &answer.correlation_id, &answer.body);
            }
        }
    };
    // The keeper of the publishing connection says why a broker cannot be reached.
    stop.run_until_cancelled(sending).await;
}

async fn open(endpoints: &mut Endpoints) -> Result<Arc<Link>, Error> {
    let not_before = endpoints.turn(Instant::now());
    tokio::time::sleep_until(not_before.into()).await;
    let (link, _events) = Link::open(endpoints.login(), "duetime: answers", MemoryHold::unlimited()).await?;
    link.open_answers().await?;
    Ok(link)
}
