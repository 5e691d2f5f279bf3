//! The generic controller runtime. It knows Kubernetes, and nothing of ScyllaDB or etcd.
//!
//! [`conditions`] says how an object stands, [`queue`] says which object is next, [`lease`] says whether this process
//! leads, and [`fence`] keeps its writes back when it does not.

pub mod conditions;
pub mod fence;
pub mod lease;
pub mod queue;
