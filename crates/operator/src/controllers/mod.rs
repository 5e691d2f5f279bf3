//! The controllers, one module each: their watches, and how they carry out the decisions of the crate `plan`.

pub mod datacenter;
pub mod etcd_task;
pub mod reasons;
pub mod unserved;

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use messina_api::names::{label, scylla_operator};
use messina_plan::etcd_task::job;
use messina_runtime::{
    apply::{Predecessor, compact_records},
    caches::Caches,
    store::{Kind, Store},
};

/// The field manager of server-side apply.
pub const FIELD_MANAGER: &str = "messina";

/// scylla-operator, whose managed fields this operator takes over.
pub const PREDECESSOR: Predecessor = Predecessor {
    is_manager: scylla_operator::is_field_manager,
    state_labels: &[label::DECOMMISSIONED, label::REPLACE, label::REPLACING_NODE_HOST_ID],
};

/// Watches the Jobs of all controllers, which share one watch.
pub fn jobs(caches: &mut Caches) -> Arc<Store<Job>> {
    let ours = format!("{} in ({},{})", label::MANAGED_BY, label::value::OPERATOR, job::MANAGER);
    caches.watch(Some(&ours), trim)
}

/// Drops the managed fields that no controller reads, to save memory.
fn trim<K: Kind>(object: &mut K) {
    compact_records(object.meta_mut(), FIELD_MANAGER, Some(PREDECESSOR));
}
