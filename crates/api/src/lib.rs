//! The custom resources of Messina as Rust types.
//!
//! Reading is lenient and writing is exact. Whatever an API server may hold under these kinds can be read: every field
//! may be absent, and a text of which only some values have a meaning keeps any other. What was read is written back
//! unchanged, but for two forms that mean the same: a quantity that stands as a number becomes a text, and a time is
//! written in UTC with whole seconds. Turning such an object into one that can be relied on is a decision, and is made elsewhere.
//!
//! An object without `spec` reads as one whose spec is empty. That is what `cfg_attr(all(), serde(default))` on the kinds
//! is for: the derive macro passes plain serde attributes to no one, because with a schema of its own making they would
//! be wrong; ours is made from the spec alone.

pub mod crd;
pub mod druid;
pub mod names;
mod schema;
pub mod scylla;
mod unchanging;
