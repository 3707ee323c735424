//! The next due tasks: the heap, its index of ids, how far ahead it is filled, and how it is emptied.

mod again;
mod buckets;
mod claim_size;
mod floor;
pub mod heap;
mod hearing;
pub mod horizon;
mod index;
mod lead;
mod low_water;
mod part_size;
pub mod quickest;
mod rest;
pub mod turn;

pub use again::again;
pub use claim_size::ClaimSize;
pub use floor::{Floor, LookFrom, SLOW_LOOK};
pub use hearing::Hearing;
pub use lead::Lead;
pub use low_water::LowWater;
pub use part_size::PartSize;
pub use rest::rest;
