//! One folder for each controller: what it watches, and its steps. Decisions are in the crate `plan`.

pub mod datacenter;

/// In whose name objects are written.
pub const FIELD_MANAGER: &str = "messina";
