//! Inputs and results of decisions. Nothing is decided here.

pub(crate) mod by_name;
pub mod cached;
pub(crate) mod certificate;
pub(crate) mod component;
pub(crate) mod facts;
pub(crate) mod metadata;
pub(crate) mod observed;
pub(crate) mod optional_kind;
pub(crate) mod plan;
pub(crate) mod settings;
pub(crate) mod spec;
