//! The controllers, one module each: their watches, and how they carry out the decisions of the crate `plan`.

pub mod datacenter;
pub mod etcd_task;
pub mod reasons;
pub mod unserved;

use k8s_openapi::api::batch::v1::Job;
use messina_api::names::{label, scylla_operator};
use messina_plan::etcd_task::job;
use messina_runtime::{apply::Predecessor, cluster::Selection, store::Kind};

/// scylla-operator, whose managed fields this operator takes over.
pub const PREDECESSOR: Predecessor = Predecessor {
    is_manager: scylla_operator::is_field_manager,
    state_labels: &[label::DECOMMISSIONED, label::REPLACE, label::REPLACING_NODE_HOST_ID],
};

/// The objects of a kind that the operator creates for datacenters.
fn created<K: Kind>() -> Selection<K> {
    Selection::labelled(format!("{}={}", label::MANAGED_BY, label::value::OPERATOR))
}

/// The Jobs of all controllers.
fn jobs() -> Selection<Job> {
    Selection::labelled(format!("{} in ({},{})", label::MANAGED_BY, label::value::OPERATOR, job::MANAGER))
}
