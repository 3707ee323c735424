//! The listener: takes connections until told to stop, then lets the requests at hand finish.

use std::{io, net::SocketAddr, time::Duration};

use axum::{Router, serve::ListenerExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Requests that take longer to finish once the node stops are cut off. What they had accepted is durable.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// Serves until `stop` is cancelled and what is being answered then is finished.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> io::Result<()> {
    serve_to_the_end(listener, router, stop, FINISH_WITHIN).await
}

async fn serve_to_the_end(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
    within: Duration,
) -> io::Result<()> {
    let listener = listener.tap_io(|connection| {
        // Answers are small and complete: waiting to fill a packet would only make them late.
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "cannot switch off delayed sending");
        }
    });
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(within).await;
    };
    let served = axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    tokio::select! {
        ended = served => ended,
        () = late => {
            tracing::warn!("requests still unanswered at the stop were cut off");
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        sync::Semaphore,
        task::JoinHandle,
    };

    use super::*;

    /// A server whose only answer waits until `free` is given a permit; `entered` is given one when it was asked.
    struct Slow {
        address: SocketAddr,
        stop: CancellationToken,
        entered: Arc<Semaphore>,
        free: Arc<Semaphore>,
        served: JoinHandle<io::Result<()>>,
    }

    async fn slow(within: Duration) -> Slow {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (entered, free) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (asked, may_answer) = (Arc::clone(&entered), Arc::clone(&free));
        let answer = async move || {
            asked.add_permits(1);
            let _permit = may_answer.acquire().await;
            "answered"
        };
        let stop = CancellationToken::new();
        let router = Router::new().route("/", get(answer));
        #[expect(clippy::disallowed_methods, reason = "the test waits for it")]
        let served = tokio::spawn(serve_to_the_end(listener, router, stop.clone(), within));
        Slow { address, stop, entered, free, served }
    }

    impl Slow {
        async fn ask(&self) -> TcpStream {
            let mut client = TcpStream::connect(self.address).await.expect("connected");
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("sent");
            self.entered.acquire().await.expect("asked").forget();
            client
        }
    }

    #[tokio::test]
    async fn a_request_that_has_begun_is_answered_after_the_stop() {
        let server = slow(Duration::from_secs(60)).await;
        let mut client = server.ask().await;
        server.stop.cancel();
        server.free.add_permits(1);
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("read to the end");
        assert!(answer.ends_with("answered"), "{answer}");
        server.served.await.expect("no panic").expect("served");
        assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
    }

    #[tokio::test]
    async fn a_request_that_does_not_end_does_not_hold_up_the_stop() {
        let server = slow(Duration::from_millis(10)).await;
        let _client = server.ask().await;
        server.stop.cancel();
        server.served.await.expect("no panic").expect("served");
    }
}
