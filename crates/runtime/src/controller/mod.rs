//! A controller: the steps of a reconcile for one kind of object.
//!
//! ```text
//! observe      read the observed state from the stores, and from outside of Kubernetes
//! plan         decide the desired state from the observed state alone
//! components   return the plan as objects
//! (apply       the runtime writes what differs)
//! report       return the status; the runtime writes what changed
//! act          do what is planned outside of Kubernetes, once there is nothing left to write
//! ```
//!
//! Validation is the first step of `plan` or the last of `observe`: invalid fields are values, not errors.

mod adoption;
mod finalization;
mod interface;
mod reconcile;
mod running;
#[cfg(test)]
mod tests;

pub use self::{
    interface::{Controller, Finalize, FinalizeStep, Suspension},
    reconcile::AnyController,
    running::{Running, reference},
};
