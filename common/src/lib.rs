//! Duetime's nouns and decisions: everything that holds without PostgreSQL, etcd and RabbitMQ.
//!
//! Nothing here waits, reads a clock, opens a socket or rolls a die; moments and dice are arguments. A decision is a
//! value that a loop acts on and a log can print.
//!
//! In reading order:
//! - [`ids`], [`time`], [`outcome`], [`field`]: the types that everything else is written in.
//! - [`queue`]: a named kind of task with its policy.
//! - [`access`]: the caller and the queues the caller may know; [`grant`]: the role that a claim of an identity
//!   provider gives; [`limit`]: how many tasks, bytes and requests are allowed.
//! - [`task`]: a task's content and its deliveries; [`task::state`], its states, with [`task::oracle`], the table that the
//!   tests check every statement against; [`task::retry`], when a
//!   failed attempt is tried again; [`task::verdict`], what a confirm, a silence, a rejection or a report means.
//! - [`schedule`]: [`schedule::calendar`], when it fires; [`schedule::turn`], which fire times get a task.
//! - [`shard`]: [`shard::route`], where a new task lives; [`shard::range`], which database holds it;
//!   [`shard::assign`], which node should own it.
//! - [`cluster`]: [`cluster::view`], what etcd holds at one moment; [`cluster::membership`], when not to trust it;
//!   [`cluster::ownership`], what a node has to do about its shards.
//! - [`delay`]: [`delay::heap`], the next due entries; [`delay::horizon`], which part of the future to read into it.
//! - [`wire`]: requests, answers and messages over HTTP and AMQP.
//! - [`relay`]: what the end of a call means to a consumer that turns tasks into calls, and when it leaves its target
//!   alone.

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
