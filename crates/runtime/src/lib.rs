//! The generic controller runtime. It knows Kubernetes, and nothing of ScyllaDB or etcd.
//!
//! [`conditions`] says how an object stands, [`queue`] says which object is next.

pub mod conditions;
pub mod queue;
