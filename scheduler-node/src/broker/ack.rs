//! The answer to one message that a node has read.

use std::sync::Arc;

use futures::FutureExt;
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions},
};

use super::hold::HeldBytes;

/// Acknowledges one message on the connection over which it came. Once that connection is gone, the handle does
/// nothing and the message comes again. A handle dropped unused keeps its place in the prefetch until the
/// connection ends; then the message comes again.
#[derive(Debug)]
pub struct AckHandle {
    channel: Arc<Channel>,
    delivery_tag: u64,
    /// The memory that the message takes until it is answered.
    _held: Option<HeldBytes>,
}

impl AckHandle {
    pub(super) fn new(channel: &Arc<Channel>, delivery_tag: u64, held: Option<HeldBytes>) -> Self {
        Self { channel: Arc::clone(channel), delivery_tag, _held: held }
    }

    /// Whether the connection of the message is gone, so that the message comes again.
    pub fn is_lost(&self) -> bool {
        !self.channel.status().connected()
    }

    /// Rejects the message: the broker moves it, complete and unchanged, to its queue's dead-letter exchange.
    pub async fn reject(self) {
        let _ = self.channel.basic_reject(self.delivery_tag, BasicRejectOptions { requeue: false }).now_or_never();
    }

    /// Returns the message to its queue: it comes again, to any node.
    pub async fn requeue(self) {
        let options = BasicNackOptions { requeue: true, ..Default::default() };
        let _ = self.channel.basic_nack(self.delivery_tag, options).now_or_never();
    }

    /// Returns once the ack is queued behind all earlier ones. It may still be lost together with the connection.
    pub async fn ack(self) {
        // The first poll queues the frame. A wait for the socket would cost a thread's wake-up for each message.
        let _ = self.channel.basic_ack(self.delivery_tag, BasicAckOptions::default()).now_or_never();
    }
}
