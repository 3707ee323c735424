//! Explores the model of claims, which the checker of histories uses too.

use integration_tests::models::claim::Claims;

use super::search::explore;

#[test]
fn claims_publishes_and_settles_hold_under_takeovers_and_unknown_outcomes() {
    explore::<Claims>();
}
