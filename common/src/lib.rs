//! Duetime's nouns and decisions: everything that holds without PostgreSQL, etcd and RabbitMQ.
//!
//! Nothing here waits, reads a clock, opens a socket or rolls a die; moments and dice are arguments. A decision is a
//! value that a loop acts on and a log can print.
//!
//! The modules form a one-way order. From the bottom to the top, each imports only modules that are listed before it:
//! - [`outcome`], [`field`], [`ids`], [`time`], `json` and [`labelled!`]: the types that everything else is written in,
//!   and how they are read from JSON.
//! - [`priority`]: how many tasks of each priority start first; [`retry`]: when a failed attempt is tried again.
//! - [`limit`]: how many tasks, bytes and requests are allowed, and how many are used.
//! - [`queue`]: a named kind of task with its policy.
//! - [`access`]: the caller and the queues the caller may know; [`grant`]: the role that a claim of an identity
//!   provider gives.
//! - [`task`]: a task's content and its deliveries; [`task::state`], its states; [`task::report`], what a consumer
//!   reports; [`task::verdict`], what a confirm, a silence, a rejection or a report means;
//!   `task::oracle`, the table that the tests check every statement against.
//! - [`schedule`]: when it fires, and which fire times get a task.
//! - [`shard`]: [`shard::route`], where a new task lives; [`shard::range`], which database holds it;
//!   [`shard::assign`], which node should own it.
//! - [`cluster`]: [`cluster::ClusterView`], what etcd holds at one moment; [`cluster::Freeze`], when not to trust it;
//!   [`cluster::ownership`], what a node has to do about its shards.
//! - [`delay`]: [`delay::heap`], the next due entries; [`delay::horizon`], which part of the future to read into it.
//! - [`outbox`]: which claimed messages leave for the broker next, and how many are under way to it.
//! - [`relay`]: what the end of a call means to a consumer that turns tasks into calls, and when it leaves its target
//!   alone.
//! - [`wire`]: requests, answers and messages over HTTP and AMQP.

pub mod access;
pub mod cluster;
pub mod delay;
pub mod field;
pub mod grant;
pub mod hint;
pub mod ids;
mod json;
mod labelled;
pub mod limit;
pub mod outbox;
pub mod outcome;
pub mod priority;
pub mod queue;
pub mod relay;
pub mod retry;
pub mod schedule;
pub mod shard;
pub mod task;
pub mod time;
pub mod wire;
