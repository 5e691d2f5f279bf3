//! Certificates: the desired ones of a datacenter, and the properties of stored ones.

pub(crate) mod chain;
pub mod keys;
pub(crate) mod proofs;
pub(crate) mod reading;
pub(crate) mod stored;
