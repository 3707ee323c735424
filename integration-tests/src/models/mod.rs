//! The models that both the test of the models and the checker of histories use.

pub mod claim;
pub mod search;
