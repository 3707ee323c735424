//! Tests with a real RabbitMQ, one for the whole test process; each test has a virtual host of its own.

pub(crate) mod bench;
mod certificates;
mod cluster;
mod exchanges;
mod faults;
mod incoming;
mod poison;
mod publishing;
mod refused;
mod throughput;
