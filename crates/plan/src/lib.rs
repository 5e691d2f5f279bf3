//! The decisions of Messina, as pure functions from the observed state to the desired state.
//!
//! There is no I/O here, no clock and no randomness: times, random strings and generated keys are passed as values. So
//! a decision can be tested with its inputs alone, and the same inputs always give the same result.
//!
//! Each kind has a module with the same steps. The object is validated, which gives a typed value or the list of its
//! invalid fields. That value and all else that was observed go into `plan`, which returns the desired objects, the
//! objects to leave unchanged and what the operator waits for. The status is computed from the same observed state and
//! that plan.

pub mod datacenter;
pub mod defaulting;
pub mod etcd_task;
mod metadata;
pub mod node;
pub mod outcome;
pub mod preview;
mod quantity;
mod version;
