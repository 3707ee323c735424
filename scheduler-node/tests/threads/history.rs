//! The count of the lines that a history file lacks.

use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

#[path = "../../src/history/lost.rs"]
mod lost;

use loom::thread;

use self::lost::Lost;

/// The lines that two threads lose.
const LINES: u64 = 3;

#[test]
fn each_lost_line_is_told_once_while_others_are_lost_and_writes_fail() {
    loom::model(|| {
        let lost = Lost::register(&prometheus::Registry::new()).expect("a fresh registry takes it");
        let adders: Vec<_> = [1, LINES - 1]
            .into_iter()
            .map(|lines| {
                let lost = lost.clone();
                thread::spawn(move || lost.add(lines))
            })
            .collect();
        // The disk refuses the first gap.
        let refused = lost.take();
        lost.give_back(refused);
        let mut told = if lost.is_any() { lost.take() } else { 0 };
        adders.into_iter().for_each(|adder| adder.join().expect("it ends"));
        told += lost.take();
        assert_eq!((told, lost.is_any()), (LINES, false));
    });
}
