//! The generic controller runtime. It knows Kubernetes, and nothing of ScyllaDB or etcd.
//!
//! ```text
//! API server -> watch -> store -> queue -> controller: observe, plan, components -> apply -> report -> API server
//! ```
//!
//! A [`watch`] per kind keeps a [`store`] in sync, one for the whole process ([`cluster`]). A change adds objects to the
//! [`queue`] of a [`controller`], which plans the desired state. [`apply`] writes what differs, [`status`] updates the
//! status, [`events`] records events, [`background_tasks`] run outside of the reconcile, and [`references`] caches
//! objects that others refer to but do not own. The `ledger` has expectations, so that no object is reconciled from a
//! cache that is older than our own last write. [`lease`] elects the leader, and [`fence`] blocks the writes of every
//! other process. [`process`] starts and stops all of it.

pub mod apply;
pub mod background_tasks;
mod body;
pub mod client;
pub mod cluster;
pub mod conditions;
mod connectivity;
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
pub mod reasons;
pub mod references;
mod request;
pub mod server;
pub mod shared_context;
pub mod status;
pub mod store;
pub mod watch;
