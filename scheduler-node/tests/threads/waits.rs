//! Waits for what other threads make true.

use std::task::{Poll, Waker};

use loom::{
    future::block_on,
    sync::{Arc, Mutex},
    thread,
};

#[path = "../../src/until.rs"]
mod until;

use self::until::until;

/// A source of notices with the contract of `tokio::sync::Notify`: a listener gets each notice to all that is given
/// after it began to listen, also before it waits.
#[derive(Default)]
struct Notices(Mutex<(u64, Vec<Waker>)>);

impl Notices {
    fn listen(&self) -> impl Future<Output = ()> {
        let begun = self.0.lock().expect("no panic").0;
        std::future::poll_fn(move |context| {
            let mut notices = self.0.lock().expect("no panic");
            if notices.0 > begun {
                return Poll::Ready(());
            }
            notices.1.push(context.waker().clone());
            Poll::Pending
        })
    }

    fn notify_all(&self) {
        let mut notices = self.0.lock().expect("no panic");
        notices.0 += 1;
        let wakers = std::mem::take(&mut notices.1);
        drop(notices);
        wakers.into_iter().for_each(Waker::wake);
    }
}

#[test]
fn a_wait_ends_whenever_its_condition_comes_true() {
    loom::model(|| {
        let shared = Arc::new((Notices::default(), Mutex::new(1)));
        let enders: Vec<_> = (0..1)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    *shared.1.lock().expect("no panic") -= 1;
                    shared.0.notify_all();
                })
            })
            .collect();
        // loom reports a wait that nothing ends.
        block_on(until(|| shared.0.listen(), || (*shared.1.lock().expect("no panic") == 0).then_some(())));
        enders.into_iter().for_each(|ender| ender.join().expect("it ends"));
    });
}
