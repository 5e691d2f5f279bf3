//! What can go wrong, said so that a person knows what to do next.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

use crate::release::ReleaseError;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the testbed could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine or the request cannot be served as it is; the text says why, and what to do.
    #[error("{0}")]
    Refused(String),
    /// A file, a process or a socket.
    #[error("{doing}: {source}{}", hint(source))]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program ended with an error.
    #[error("{what} failed ({status}){}. Its last lines:\n{tail}The whole log is {}", full_disk(tail), log.display())]
    Program {
        /// What the program was to do.
        what: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed.
        tail: String,
        /// Where all of it stands.
        log: PathBuf,
    },
    /// The API server, or the way to it.
    #[error("{doing}: {source}")]
    Api {
        /// What was being done.
        doing: String,
        /// What the client said.
        source: Box<kube::Error>,
    },
    /// A file that should hold structured text does not.
    #[error("{doing}: {source}")]
    Malformed {
        /// What was being read or written.
        doing: String,
        /// What is wrong with it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The official programs of Kubernetes; without them, they are built.
    #[error(transparent)]
    Release(ReleaseError),
    /// Something awaited did not come.
    #[error("waited {} s for {what}; last seen: {seen}", waited.as_secs())]
    Late {
        /// What was awaited.
        what: String,
        /// How long.
        waited: Duration,
        /// What there was instead.
        seen: String,
    },
}

impl Error {
    /// A refusal with its reason and remedy.
    pub fn refused(text: impl Into<String>) -> Self {
        Self::Refused(text.into())
    }
}

/// What to do about a full disk.
const MAKE_ROOM: &str =
    "; make room on that disk, or point XDG_CACHE_HOME to a larger one, and run the same command again";

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

/// Says of a failure what was being done.
pub trait Doing<T> {
    /// Adds what was being done.
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

/// Says of a text that cannot be read what it was to be.
pub fn malformed<E: std::error::Error + Send + Sync + 'static>(what: impl Into<String>) -> impl FnOnce(E) -> Error {
    move |source| Error::Malformed { doing: what.into(), source: Box::new(source) }
}
