//! What is filled in when an object is created, and never later: a cluster that exists keeps the ways it began with.

use messina_api::{
    names::image_version,
    scylla::{v1::ScyllaCluster, v1alpha1::ScyllaDBDatacenter},
};

use crate::datacenter::may_start_together;

/// Fills in what a new datacenter leaves open.
pub fn datacenter(object: &mut ScyllaDBDatacenter) {
    let spec = &mut object.spec;
    let image = spec.scylladb.as_ref().and_then(|scylladb| scylladb.image.as_deref());
    // Without a version that can be compared nothing is known of what it can do.
    let version = image.and_then(|image| image_version(image).ok()).unwrap_or_default();
    together(&mut spec.enable_parallel_node_operations, version);
}

/// Fills in what a new cluster of the older API leaves open.
pub fn cluster(object: &mut ScyllaCluster) {
    let spec = &mut object.spec;
    together(&mut spec.enable_parallel_node_operations, spec.version.as_deref().unwrap_or_default());
}

fn together(field: &mut Option<bool>, version: &str) {
    if field.is_none() && may_start_together(version) {
        *field = Some(true);
    }
}
