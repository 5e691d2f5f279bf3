//! Defaults that an admission webhook sets when an object is created, and never later: an existing cluster keeps its
//! behaviour. The operator has no webhook yet, so users get none of them: an unset `enableParallelNodeOperations` is
//! false.

use messina_api::{
    names::image_version,
    scylla::{v1::ScyllaCluster, v1alpha1::ScyllaDBDatacenter},
};

use crate::datacenter::may_start_together;

/// Sets the defaults of a new ScyllaDBDatacenter.
pub fn datacenter(object: &mut ScyllaDBDatacenter) {
    let spec = &mut object.spec;
    let image = spec.scylladb.as_ref().and_then(|scylladb| scylladb.image.as_deref());
    // Without a comparable version, it is not known whether ScyllaDB supports parallel operations.
    let version = image.and_then(|image| image_version(image).ok()).unwrap_or_default();
    enable_parallel_node_operations(&mut spec.enable_parallel_node_operations, version);
}

/// Sets the defaults of a new ScyllaCluster.
pub fn cluster(object: &mut ScyllaCluster) {
    let spec = &mut object.spec;
    let version = spec.version.as_deref().unwrap_or_default();
    enable_parallel_node_operations(&mut spec.enable_parallel_node_operations, version);
}

fn enable_parallel_node_operations(field: &mut Option<bool>, version: &str) {
    if field.is_none() && may_start_together(version) {
        *field = Some(true);
    }
}
