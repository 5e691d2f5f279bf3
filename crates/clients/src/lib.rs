//! Clients of the servers that Messina calls besides the Kubernetes API: etcd, etcd-backup-restore and ScyllaDB.

pub mod backup_restore;
pub mod etcd;
mod exchange;
pub mod scylla;
pub mod server;

/// Maximum length of an error message of a server, in characters.
const MAX_MESSAGE: usize = 1000;
/// Maximum length of a name that a server returns, in characters.
const MAX_NAME: usize = 300;

#[cfg(test)]
mod fakes;
#[cfg(test)]
mod real;

pub use server::Resolver;
