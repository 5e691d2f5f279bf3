//! The desired objects of a datacenter.

pub(crate) mod access;
pub(crate) mod config;
pub(crate) mod difference;
pub(crate) mod ingresses;
pub(crate) mod pod;
mod probe;
pub(crate) mod services;
pub(crate) mod stateful_set;
pub(crate) mod token;
