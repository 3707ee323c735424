//! What comes due next: the heap, how ids are found in it, and how far ahead it is filled.

pub mod heap;
pub mod horizon;
mod index;

pub use heap::{DelayHeap, Entry, Pushed, WakeKind};
pub use horizon::Horizon;
