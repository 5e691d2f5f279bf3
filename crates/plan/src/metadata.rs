//! Reads labels and annotations of an object.

use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};

/// Returns the value of a label.
pub(crate) fn label<'a>(object: &'a impl Metadata<Ty = ObjectMeta>, key: &str) -> Option<&'a str> {
    object.metadata().labels.as_ref()?.get(key).map(String::as_str)
}

/// Returns the value of an annotation.
pub(crate) fn annotation<'a>(object: &'a impl Metadata<Ty = ObjectMeta>, key: &str) -> Option<&'a str> {
    object.metadata().annotations.as_ref()?.get(key).map(String::as_str)
}
