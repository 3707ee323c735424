//! Private instances of the real stores and nodes, with their faults as methods.

mod account;
mod authority;
mod binary;
mod builder;
mod clock;
mod cluster;
mod etcd;
mod identity;
mod node;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod programs;
mod prometheus;
mod proxy;
mod rabbit;
mod redis;
mod scratch;
pub mod secret;
pub mod shared;
mod spawner;
#[cfg(test)]
mod tests;

pub use self::redis::{REDIS_SETTINGS, Redis};
pub use account::all_may_enter;
pub use authority::{Authority, CertificateFiles};
pub use binary::{Release, binary, command, hide_variables, last_release, run, run_with};
pub use builder::Builder;
pub use clock::{Clock, may_set_clocks};
pub use cluster::{Links, Sandbox};
pub use etcd::Etcd;
pub use identity::Identity;
pub use node::{DatabaseConfig, HISTORY, Node, NodeConfig, hex_sha256, migrate};
pub use pgbouncer::PgBouncer;
pub use port::free_port;
pub use postgres::{Postgres, may_mount};
pub use process::{Process, Signal, Tether, write_whole};
pub use programs::server_folders;
pub use prometheus::Prometheus;
pub use proxy::Proxy;
pub use rabbit::Rabbit;
pub use scratch::{fresh, scratch, scratch_below};
