//! What would still be true if PostgreSQL, etcd and RabbitMQ did not exist: Duetime's nouns and decisions.
//!
//! Nothing here waits, reads a clock, opens a socket or rolls a die; moments and dice are arguments. Decisions come back
//! as values that a loop acts on and a log can print.
//!
//! In reading order:
//! - [`ids`], [`time`], [`outcome`], [`field`]: the words everything else is written in.
//! - [`queue`]: a named kind of task with its policy.
//! - [`access`]: who asks, and which queues that is for; [`grant`], what an identity provider's word is worth;
//!   [`limit`], how much there may be.
//! - [`task`]: what is asked for and handed over; [`task::state`], the one table of states; [`task::retry`], when a failed
//!   attempt is tried again; [`task::verdict`], what a confirm, a silence, a rejection or a report means.
//! - [`schedule`]: [`schedule::calendar`], when it fires; [`schedule::turn`], what a look at it comes to.
//! - [`shard`]: [`shard::route`], where a new task lives; [`shard::range`], which database holds it; [`shard::assign`],
//!   which node should own it.
//! - [`cluster`]: [`cluster::view`], what etcd holds at one moment; [`cluster::membership`], when not to trust it;
//!   [`cluster::ownership`], what a node has to do about its shards.
//! - [`delay`]: [`delay::heap`], what comes due next; [`delay::horizon`], what to read into it.
//! - [`wire`]: what is said over HTTP and AMQP.
//! - [`relay`]: what the end of a call means to a consumer that turns tasks into calls, and when it leaves its target alone.

pub mod field;
pub mod ids;
pub mod outcome;
pub mod time;

pub mod access;
pub mod grant;
pub mod limit;
pub mod queue;
pub mod schedule;
pub mod task;

pub mod shard;

pub mod cluster;

pub mod delay;

pub mod wire;

pub mod relay;
