//! The generic controller runtime. It knows Kubernetes, and nothing of ScyllaDB or etcd.
//!
//! ```text
//! API server -> watch -> store -> queue -> controller: observe, plan, parts -> apply -> report -> API server
//! ```
//!
//! [`watch`] keeps a [`store`] for each kind, one for the whole process ([`caches`]). A change puts objects into the
//! [`queue`] of a [`controller`], which decides what there should be. [`apply`] writes what differs, [`status`] writes how
//! the object stands, [`events`] tells people, [`background_tasks`] take time outside of Kubernetes, [`references`] are objects that others
//! name and do not own. The ledger keeps anything from being decided from a cache that is older than
//! our own last write. [`lease`] says whether this process leads, and [`fence`] keeps its writes back when it does not.
//! [`process`] holds it all together.

pub mod apply;
pub mod background_tasks;
mod body;
pub mod caches;
pub mod client;
pub mod conditions;
mod contact;
pub mod controller;
mod difference;
pub mod error;
pub mod events;
pub mod fence;
pub mod http_server;
pub mod lease;
mod ledger;
pub mod metrics;
mod pace;
mod panics;
pub mod pause;
pub mod process;
pub mod queue;
pub mod references;
mod request;
pub mod server;
pub mod shared_context;
pub mod status;
pub mod store;
pub mod watch;
