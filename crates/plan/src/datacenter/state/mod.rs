//! What is true now, worked out from what was observed.

pub(crate) mod counts;
pub(crate) mod disks;
pub(crate) mod joining;
pub(crate) mod member;
pub(crate) mod named;
pub(crate) mod nodes;
pub(crate) mod ring;
pub(crate) mod seen;
pub(crate) mod stateful_set;
pub mod takeover;
pub(crate) mod upgrade;
