//! Clients of what Messina talks to besides Kubernetes, one module each.

pub mod backup_restore;
pub mod etcd;
pub mod scylla;
pub mod server;

/// How much is kept of what a server says of a failure, in characters.
const MAX_MESSAGE: usize = 1000;
/// How much is kept of a name that a server gives something, in characters.
const MAX_NAME: usize = 300;

#[cfg(test)]
mod fakes;
#[cfg(test)]
mod real;

pub use server::Resolver;
