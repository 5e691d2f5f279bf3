//! One node of ScyllaDB: what its sidecar, its probes and its ignition decide, and in which words the node speaks.

pub mod address;
pub mod answer;
pub mod arguments;
pub mod configuration;
pub mod decommission;
pub mod emptied;
pub mod facts;
pub mod ignition;
pub mod replaced;
pub mod ring;
pub mod seeds;
pub mod sysctl;
pub mod upgrade;

#[cfg(test)]
mod cases;

use std::{convert::Infallible, fmt, str::FromStr};

/// What a node says it is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It starts, and says nothing of the ring yet.
    Starting,
    /// It is about to join the ring.
    Joining,
    /// It receives the data that it will own.
    Bootstrap,
    /// It serves.
    Normal,
    /// It hands over its data, to leave the ring.
    Leaving,
    /// It has left the ring for good.
    Decommissioned,
    /// It takes other tokens.
    Moving,
    /// It ceases to serve.
    Draining,
    /// It has ceased to serve, until it is started anew.
    Drained,
    /// It is apart from the ring, for a person to work on it.
    Maintenance,
    /// Not known to this version.
    Other(String),
}

impl FromStr for Mode {
    type Err = Infallible;

    fn from_str(word: &str) -> Result<Self, Infallible> {
        Ok(match word {
            "STARTING" => Self::Starting,
            "JOINING" => Self::Joining,
            "BOOTSTRAP" => Self::Bootstrap,
            "NORMAL" => Self::Normal,
            "LEAVING" => Self::Leaving,
            "DECOMMISSIONED" => Self::Decommissioned,
            "MOVING" => Self::Moving,
            "DRAINING" => Self::Draining,
            "DRAINED" => Self::Drained,
            "MAINTENANCE" => Self::Maintenance,
            other => Self::Other(other.to_owned()),
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Starting => "STARTING",
            Self::Joining => "JOINING",
            Self::Bootstrap => "BOOTSTRAP",
            Self::Normal => "NORMAL",
            Self::Leaving => "LEAVING",
            Self::Decommissioned => "DECOMMISSIONED",
            Self::Moving => "MOVING",
            Self::Draining => "DRAINING",
            Self::Drained => "DRAINED",
            Self::Maintenance => "MAINTENANCE",
            Self::Other(word) => word,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_scylladb_are_read_and_written_alike() {
        let known = "STARTING JOINING BOOTSTRAP NORMAL LEAVING DECOMMISSIONED MOVING DRAINING DRAINED MAINTENANCE";
        for word in known.split(' ').chain(["SOMETHING_NEW"]) {
            let Ok(mode) = word.parse::<Mode>();
            assert_eq!((mode.to_string().as_str(), matches!(mode, Mode::Other(_))), (word, word == "SOMETHING_NEW"));
        }
    }
}
