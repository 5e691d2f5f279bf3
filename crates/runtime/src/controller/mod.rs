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
//! An object that is being deleted passes the same steps, if it has the finalizer of the controller. The runtime removes
//! the finalizer when the plan says so.
//!
//! Validation is the first step of `plan` or the last of `observe`: invalid fields are values, not errors.

mod adoption;
mod builder;
mod finalization;
mod interface;
mod reconcile;
mod running;
#[cfg(test)]
mod tests;

pub use self::{
    builder::ControllerBuilder,
    interface::{Controller, Suspension},
    reconcile::AnyController,
    running::{Running, reference},
};
