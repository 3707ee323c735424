use super::*;

#[test]
fn after_an_outage_deadlines_wait_for_the_messages_that_came_meanwhile() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    assert_eq!(Hearing::default().wait(start), Duration::ZERO);
    let mut hearing = Hearing::away();
    assert_eq!(hearing.wait(at(60)), HEAR_FIRST);
    for s in [60, 61, 65] {
        hearing.begin(at(s));
        assert_eq!(hearing.wait(at(s)), HEAR_FIRST - Duration::from_secs(s - 60), "it answers all the time");
    }
    assert_eq!(hearing.wait(at(71)), Duration::ZERO);
    hearing.begin_again(at(80));
    hearing.begin(at(81));
    assert_eq!(hearing.wait(at(84)), HEAR_FIRST - Duration::from_secs(4));
    hearing.end();
    hearing.begin_again(at(90));
    assert_eq!(hearing.wait(at(99)), HEAR_FIRST, "the database is still away");
    hearing.begin(at(100));
    assert_eq!(hearing.wait(at(104)), HEAR_FIRST - Duration::from_secs(4));
}

#[test]
fn after_a_stop_of_the_process_deadlines_wait_for_the_messages_that_came_meanwhile() {
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let mut hearing = Hearing::default();
    for s in [0, 1, 2, 3, 6] {
        hearing.runs(at(s));
        assert_eq!(hearing.wait(at(s)), Duration::ZERO, "a busy machine delays it");
    }
    for s in [60, 61, 62] {
        hearing.runs(at(s));
        assert_eq!(hearing.wait(at(s)), HEAR_FIRST - Duration::from_secs(s - 60));
    }
    let mut hearing = Hearing::away();
    for s in [0, 60] {
        hearing.runs(at(s));
        assert_eq!(hearing.wait(at(s)), HEAR_FIRST, "the database is still away");
    }
}
