//! Decisions of the containers beside one ScyllaDB node (sidecar, probe and ignition), and the formats of what they
//! report.

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

/// The operation mode of a node, as ScyllaDB reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// It starts, and does not report the ring yet.
    Starting,
    /// It joins the ring.
    Joining,
    /// It bootstraps: it streams the data that it will own.
    Bootstrap,
    /// It serves requests.
    Normal,
    /// It is being decommissioned, and streams its data to other nodes.
    Leaving,
    /// It has left the ring for good.
    Decommissioned,
    /// It moves to other tokens.
    Moving,
    /// It drains.
    Draining,
    /// It has drained, and serves no requests until it is restarted.
    Drained,
    /// It is in maintenance mode, isolated from the ring.
    Maintenance,
    /// A mode that this version of the operator does not know.
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
    fn modes_are_parsed_and_displayed_as_scylladb_writes_them() {
        let known = "STARTING JOINING BOOTSTRAP NORMAL LEAVING DECOMMISSIONED MOVING DRAINING DRAINED MAINTENANCE";
        for word in known.split(' ').chain(["SOMETHING_NEW"]) {
            let Ok(mode) = word.parse::<Mode>();
            assert_eq!((mode.to_string().as_str(), matches!(mode, Mode::Other(_))), (word, word == "SOMETHING_NEW"));
        }
    }
}
