//! One folder for each controller: what it watches, and its steps. Decisions are in the crate `plan`.

pub mod datacenter;
pub mod etcd_task;
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

/// In whose name objects are written.
pub const FIELD_MANAGER: &str = "messina";

/// scylla-operator, whose fields are taken over.
pub const PREDECESSOR: Predecessor = Predecessor {
    is_manager: scylla_operator::is_field_manager,
    state_labels: &[label::DECOMMISSIONED, label::REPLACE, label::REPLACING_NODE_HOST_ID],
};

/// The Jobs of all controllers: a kind is watched once, whoever makes objects of it.
pub fn jobs(caches: &mut Caches) -> Arc<Store<Job>> {
    let ours = format!("{} in ({},{})", label::MANAGED_BY, label::value::OPERATOR, job::MANAGER);
    caches.watch(Some(&ours), trim)
}

/// Takes away what no controller reads.
fn trim<K: Kind>(object: &mut K) {
    compact_records(object.meta_mut(), FIELD_MANAGER, Some(PREDECESSOR));
}
