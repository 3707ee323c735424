use proptest::prelude::*;

use super::*;

const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn a_new_bucket_is_empty_and_saves_one_permit_at_low_rates() {
    let start = Instant::now();
    let mut bucket = Bucket::empty(start);
    assert_eq!(bucket.permits(2.0, start), 0);
    assert_eq!(bucket.ask_again_at(2.0, LONG), start + Duration::from_millis(500));
    assert_eq!(bucket.permits(2.0, start + Duration::from_millis(499)), 0);
    assert_eq!(bucket.permits(2.0, start + Duration::from_secs(60)), 1);
    bucket.take(1);
    assert_eq!(bucket.permits(2.0, start + Duration::from_secs(60)), 0);
}

#[test]
fn at_high_rates_a_look_late_by_some_milliseconds_spills_nothing() {
    let start = Instant::now();
    let mut bucket = Bucket::empty(start);
    assert_eq!(bucket.permits(1_000.0, start + Duration::from_millis(40)), 40);
    assert_eq!(bucket.permits(1_000.0, start + LONG), 50);
}

#[test]
fn the_wait_is_bounded_however_low_the_rate() {
    let start = Instant::now();
    assert_eq!(Bucket::empty(start).ask_again_at(1e-5, Duration::from_secs(1)), start + Duration::from_secs(1));
}

proptest! {
    #[test]
    fn no_span_of_time_has_more_starts_than_its_rate_and_what_was_saved(
        per_second in 0.1_f64..5_000.0,
        looks in prop::collection::vec(0_u64..200, 1..100),
    ) {
        let start = Instant::now();
        let mut bucket = Bucket::empty(start);
        let (mut now, mut started) = (start, Vec::new());
        for wait_ms in looks {
            now += Duration::from_millis(wait_ms);
            let permits = bucket.permits(per_second, now);
            bucket.take(permits);
            started.push((now, permits));
        }
        let saved = (per_second * 0.05).max(1.0);
        for (from, (begin, _)) in started.iter().enumerate() {
            let mut sum = 0;
            for (end, permits) in &started[from..] {
                sum += permits;
                let most = end.duration_since(*begin).as_secs_f64() * per_second + saved;
                prop_assert!(sum as f64 <= most + 1e-6, "{sum} in {:?} at {per_second}", end.duration_since(*begin));
            }
        }
    }
}
