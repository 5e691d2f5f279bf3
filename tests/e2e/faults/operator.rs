//! The controllers that these tests run.

use std::sync::Arc;

use messina_api::names::scylla_operator;
use messina_operator::{certificates::KeyKind, controllers::datacenter};
use messina_plan::{
    datacenter::{Gates, ProbePeriod},
    node::sysctl::Allowed,
};
use messina_runtime::{cluster::Cluster, controller::AnyController, metrics::Metrics};

/// The controller of datacenters alone.
pub(crate) fn datacenters(cluster: &mut Cluster, metrics: &Metrics) -> Vec<Arc<dyn AnyController>> {
    let settings = datacenter::Settings {
        operator_image: "localhost/messina/operator:test".into(),
        probe_period: ProbePeriod::default(),
        node_exporter_image: "localhost/messina/node-exporter:test".into(),
        // Without certificates: no two runs have the same keys, and here they are compared.
        gates: Gates::default(),
        allowed_sysctls: Allowed::default(),
        keys: KeyKind::default(),
        cqls_ingress_port: None,
        scylla_operator_lease: scylla_operator::LEASE.into(),
        scylla_operator_absent: false,
        datacenters_at_once: 1,
        expiry: datacenter::Expiry::new(metrics),
        counts: datacenter::Counts::new(metrics),
    };
    vec![datacenter::declare(cluster, settings)]
}
