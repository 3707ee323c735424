//! A measurement rather than a test: prints how many messages a second go through.

use std::time::{Duration, Instant};

use futures::future::join_all;

use super::bench::{Bench, batch, route, tally};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn messages_a_second_with_eight_lanes_of_two_hundred() {
    let bench = Bench::alone(Duration::from_secs(30)).await;
    let hand = bench.hand().await;
    let route = route("mail");
    for _ in 0..3 {
        let begun = Instant::now();
        let lane = || async {
            let mut done = 0;
            while begun.elapsed() < Duration::from_secs(5) {
                done += tally(&bench.broker.publish(&route, batch("mail", 200)).await).done;
            }
            done
        };
        let done: usize = join_all((0..8).map(|_| lane())).await.into_iter().sum();
        let rate = f64::from(u32::try_from(done).unwrap()) / begun.elapsed().as_secs_f64();
        report(&format!("{rate:.0} messages a second"));
        hand.channel.queue_purge("mail".into(), Default::default()).await.unwrap();
    }
}

#[expect(clippy::print_stdout, reason = "the test is run by hand")]
fn report(text: &str) {
    println!("{text}");
}
