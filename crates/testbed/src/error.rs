//! Errors, with what the user can do about them.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use crate::release::ReleaseError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the testbed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The host or the command line does not allow this; the text says why, and what to do.
    #[error("{0}")]
    Refused(String),
    /// An operation on a file, a process or a socket failed.
    #[error("{doing}: {source}{}", hint(source))]
    Io {
        /// The operation.
        doing: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A program ended with an error.
    #[error("{what} failed ({status}){}. Its last lines:\n{tail}The whole log is {}", full_disk(tail), log.display())]
    Program {
        /// The purpose of the program.
        what: String,
        /// Its exit status.
        status: ExitStatus,
        /// The last lines of its output.
        tail: String,
        /// The file with all of its output.
        log: PathBuf,
    },
    /// A request to the API server failed.
    #[error("{doing}: {source}")]
    Api {
        /// The operation.
        doing: String,
        /// The error of the client.
        source: Box<kube::Error>,
    },
    /// A text cannot be parsed or serialized.
    #[error("{doing}: {source}")]
    Malformed {
        /// The operation.
        doing: String,
        /// The error of the parser.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The official programs of Kubernetes cannot be downloaded: the testbed builds them instead.
    #[error(transparent)]
    Release(ReleaseError),
    /// A wait timed out.
    #[error("timed out after {} s waiting for {what}; last state: {seen}", waited.as_secs())]
    Late {
        /// The awaited state.
        what: String,
        /// How long the wait took.
        waited: Duration,
        /// The last state that was seen.
        seen: String,
    },
}

impl Error {
    /// An error with its reason and remedy.
    pub fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }
}

/// The remedy for a full disk.
const MAKE_ROOM: &str =
    "; free space on that disk, or set XDG_CACHE_HOME to a larger one, and run the same command again";

fn full_disk(said: &str) -> &'static str {
    if said.contains("no space left on device") { MAKE_ROOM } else { "" }
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => MAKE_ROOM,
        io::ErrorKind::PermissionDenied => "; run it as root, or as the owner of that file",
        _ => "",
    }
}

/// Adds the operation to an error.
pub trait Doing<T> {
    /// Adds the operation `what` to an error.
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { doing: what(), source })
    }
}

impl<T> Doing<T> for nix::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|errno| Error::Io { doing: what(), source: errno.into() })
    }
}

impl<T> Doing<T> for kube::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Api { doing: what(), source: Box::new(source) })
    }
}

/// Returns a function that wraps the error of a parser or serializer with the operation `what`.
pub fn malformed<E: std::error::Error + Send + Sync + 'static>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
    move |source| Error::Malformed { doing: what.into(), source: Box::new(source) }
}
