//! What labels and annotations of an object say.

use k8s_openapi::{Metadata, apimachinery::pkg::apis::meta::v1::ObjectMeta};

/// What the label of this name says.
pub(crate) fn label<'a>(object: &'a impl Metadata<Ty = ObjectMeta>, key: &str) -> Option<&'a str> {
    object.metadata().labels.as_ref()?.get(key).map(String::as_str)
}

/// What the annotation of this name says.
pub(crate) fn annotation<'a>(object: &'a impl Metadata<Ty = ObjectMeta>, key: &str) -> Option<&'a str> {
    object.metadata().annotations.as_ref()?.get(key).map(String::as_str)
}
