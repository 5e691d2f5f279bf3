//! Clients of what Messina talks to besides Kubernetes, one module each.

pub mod backup_restore;
pub mod etcd;
pub mod scylla;
pub mod server;

#[cfg(test)]
mod fakes;
#[cfg(test)]
mod real;

pub use server::Reach;
