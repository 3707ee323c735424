//! From a row that comes due to its message at the broker: preload, claim, publish.

pub mod claims;
pub mod dispatcher;
pub mod preloader;
pub mod publisher;
pub mod ready_starter;
