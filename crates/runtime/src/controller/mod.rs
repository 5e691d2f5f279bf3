//! A controller: five steps for one kind of object.
//!
//! ```text
//! observe   read what the object depends on, from the stores (and from outside)
//! plan      decide, from that alone, what there should be
//! parts     say it as objects
//! (apply    the runtime writes what differs)
//! report    say how the object stands; the runtime writes what changed
//! act       do what is to be done outside, once there is nothing left to write
//! ```
//!
//! Validation is the first thing that planning does, or the last that observing does: its faults are values, not errors.

mod adoption;
mod finalization;
mod interface;
mod reconcile;
mod running;
#[cfg(test)]
mod tests;

pub use self::{
    interface::{Controller, Finalize, FinalizeStep, Hold},
    reconcile::AnyController,
    running::{Running, reference},
};
