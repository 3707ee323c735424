//! What all callers share of a node, over the API and in the console.

use std::sync::Arc;

use axum::{body::Body, http::HeaderMap};

use super::{Limits, body::UnreadBody, memory::BodyMemory};

/// The limits of requests, and what is taken of them at the moment.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    pub(super) limits: Limits,
    pub(super) bodies: Arc<BodyMemory>,
}

impl Shares {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, bodies: Arc::new(BodyMemory::new(limits.bodies_bytes)) }
    }

    /// The body of a request from `caller`, which takes its memory from the caller's share.
    pub(crate) fn body(&self, headers: HeaderMap, body: Body, caller: Arc<str>) -> UnreadBody {
        UnreadBody { headers, body, memory: Arc::clone(&self.bodies), caller }
    }

    /// The bytes that all bodies have reserved.
    #[cfg(test)]
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.bodies.reserved_bytes()
    }
}
