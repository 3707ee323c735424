//! The publish channels of one connection. Each carries one batch at a time, so that everything the broker
//! sends back on a channel belongs to that batch.

use std::{sync::Arc, time::Instant};

use lapin::Channel;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedSemaphorePermit, Semaphore};

use super::{connection::Link, error::Error};

/// The most batches in flight at once. Each channel costs the broker a process.
const CHANNELS: usize = 256;
/// The channels that are left for declarations, of those a broker allows on one connection (2,047 by default).
const SPARE: usize = 32;

pub(super) struct Channels {
    link: Arc<Link>,
    free: Mutex<Vec<Channel>>,
    places: Arc<Semaphore>,
    /// Held while channels are opened ahead, so that all who want some open no more than one of them wants.
    opening: AsyncMutex<()>,
}

impl Channels {
    pub(super) fn new(link: Arc<Link>) -> Self {
        let places = CHANNELS.min(link.channels_allowed().saturating_sub(SPARE)).max(1);
        Self { link, free: Mutex::default(), places: Arc::new(Semaphore::new(places)), opening: AsyncMutex::default() }
    }

    /// Leases a channel for exclusive use. Waits while all are taken.
    pub(super) async fn lease(self: &Arc<Self>) -> Result<Lease, Error> {
        let place = Arc::clone(&self.places).acquire_owned().await.expect("the semaphore is never closed");
        let channel = match self.pop() {
            Some(channel) => channel,
            None => self.link.confirming_channel().await?,
        };
        Ok(Lease { channel, channels: Arc::clone(self), in_use: false, _place: place })
    }

    /// Adds a channel, which shows whether the broker still reads the connection. If it does not, the
    /// connection is given up. One for which no batch has a place is closed again.
    pub(super) async fn add(&self) -> Result<(), Error> {
        let channel = self.link.confirming_channel().await?;
        let mut free = self.free.lock();
        if free.len() < self.places.available_permits() {
            free.push(channel);
        }
        Ok(())
    }

    /// Whether `wanted` channels are free, or as many as there are places for batches.
    pub(super) fn has_free(&self, wanted: usize) -> bool {
        self.count_free() >= wanted.min(self.places.available_permits())
    }

    /// Adds channels until so many are free. None is begun after `until`.
    pub(super) async fn add_until_free(&self, wanted: usize, until: Instant) -> Result<(), Error> {
        let _turn = self.opening.lock().await;
        while Instant::now() < until && !self.has_free(wanted) {
            self.add().await?;
        }
        Ok(())
    }

    /// The channels that are free. Those that the broker has closed meanwhile are forgotten.
    pub(super) fn count_free(&self) -> usize {
        let mut free = self.free.lock();
        free.retain(|channel| channel.status().connected());
        free.len()
    }

    fn pop(&self) -> Option<Channel> {
        let mut free = self.free.lock();
        // The broker may have closed a channel in the meantime.
        std::iter::from_fn(|| free.pop()).find(|channel| channel.status().connected())
    }
}

/// One channel for one batch. A lease dropped while in use cuts the whole connection: a channel closed over
/// frames that still wait to be written would leave them to the next channel with its number.
pub(super) struct Lease {
    channel: Channel,
    channels: Arc<Channels>,
    in_use: bool,
    _place: OwnedSemaphorePermit,
}

impl Lease {
    /// Marks the channel as used: from here on, frames may be on their way.
    pub(super) fn begin(&mut self) -> &Channel {
        self.in_use = true;
        &self.channel
    }

    /// Returns the channel for the next batch. Every message sent on it has been answered.
    pub(super) fn give_back(mut self) {
        self.in_use = false;
        self.channels.free.lock().push(self.channel.clone());
    }

    /// Ends the lease without returning the channel. No more of this batch can be sent on it, and no other
    /// batch can use it.
    pub(super) fn discard(mut self) -> Channel {
        self.in_use = false;
        self.channel.clone()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.in_use {
            self.channels.link.cut("a batch was abandoned half way");
        }
    }
}
