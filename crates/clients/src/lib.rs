//! Clients of what Messina talks to besides Kubernetes, one module each.

pub mod backup_restore;
pub mod etcd;
pub mod scylla;
pub mod server;

#[cfg(test)]
mod fakes;

pub use server::Reach;
