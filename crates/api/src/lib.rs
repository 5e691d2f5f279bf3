//! The custom resources of Messina as Rust types.
//!
//! Deserialization is lenient: every field may be absent, and enums accept unknown values. Serialization writes an
//! object unchanged, except that a numeric quantity becomes a string, and that times are in UTC with whole seconds. The
//! crate messina-plan validates objects.
//!
//! An object without `spec` has an empty spec. The kinds have `cfg_attr(all(), serde(default))` for that, because the
//! derive macro does not pass on plain serde attributes: they would be wrong with its generated schema, which is not
//! used here.

pub mod crd;
pub mod druid;
mod immutable;
pub mod names;
mod schema;
pub mod scylla;
