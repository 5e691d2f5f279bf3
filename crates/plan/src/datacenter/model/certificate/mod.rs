//! Certificates: which a datacenter is to have, and what those say that are stored.

pub(crate) mod chain;
pub mod keys;
pub(crate) mod proofs;
pub(crate) mod reading;
pub(crate) mod stored;
