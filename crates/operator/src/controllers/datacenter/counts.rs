//! Nodes by how they stand, and changes of the ring by how they ended, for Prometheus.

use k8s_openapi::api::{batch::v1::Job, core::v1::Service};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use messina_plan::datacenter::{
    Ending, NodeState, Observed, Operation, finished_cleanup, finished_operation, node_states,
};
use messina_runtime::{metrics::Metrics, queue::ObjectKey, store::Change};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfState {
    namespace: String,
    datacenter: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfOperation {
    kind: &'static str,
    result: &'static str,
}

/// What is counted of datacenters. Clones count together.
#[derive(Clone, Debug)]
pub struct Counts {
    nodes: Family<OfState, Gauge>,
    operations: Family<OfOperation, Counter>,
}

impl Counts {
    /// To be made once for each process.
    pub fn new(metrics: &Metrics) -> Self {
        let counts = Self { nodes: Family::default(), operations: Family::default() };
        metrics.register(|registry| {
            registry.register("datacenter_nodes", "Nodes of ScyllaDB, by how they stand", counts.nodes.clone());
            let help = "Changes of rings that came to their end, and cleanups after them";
            registry.register("topology_operations", help, counts.operations.clone());
        });
        counts
    }

    /// How the nodes of a datacenter stand now.
    pub(super) fn observed(&self, observed: &Observed) {
        let (namespace, name) = (&observed.datacenter().namespace, &observed.datacenter().name);
        for (state, count) in node_states(observed) {
            let gauge = self.nodes.get_or_create(&of_state(namespace, name, state));
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// A datacenter that is gone has no nodes.
    pub(super) fn datacenter(&self, change: &Change<ScyllaDBDatacenter>) {
        if change.after.is_none() {
            self.remove_datacenter(&change.key);
        }
    }

    /// Removes the series of a datacenter.
    pub(super) fn remove_datacenter(&self, key: &ObjectKey) {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        for state in NodeState::ALL {
            self.nodes.remove(&of_state(namespace, &key.name, state));
        }
    }

    pub(super) fn service(&self, change: &Change<Service>) {
        // What cannot be read has not ended.
        if let Some(before) = change.before.as_deref().filter(|_| change.unreadable_after.is_none()) {
            self.count(finished_operation(before, change.after.as_deref()));
        }
    }

    pub(super) fn job(&self, change: &Change<Job>) {
        if let (Some(before), Some(after)) = (change.before.as_deref(), change.after.as_deref()) {
            self.count(finished_cleanup(before, after));
        }
    }

    fn count(&self, ended: Option<(Operation, Ending)>) {
        if let Some((operation, ending)) = ended {
            let labels = OfOperation { kind: operation.word(), result: ending.word() };
            self.operations.get_or_create(&labels).inc();
        }
    }

    /// What there is belongs to a leadership that is over. What was counted stays counted.
    pub(super) fn forget(&self) {
        self.nodes.clear();
    }
}

fn of_state(namespace: &str, datacenter: &str, state: NodeState) -> OfState {
    OfState { namespace: namespace.to_owned(), datacenter: datacenter.to_owned(), state: state.word() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::certificates::tests::{cached, observe};

    #[test]
    fn nodes_are_told_of_while_their_datacenter_is_there() {
        let metrics = Metrics::default();
        let counts = Counts::new(&metrics);
        let mut cached = cached();
        let services = messina_plan::datacenter::plan(&observe(&cached)).objects.member_services;
        let nodes = services.len();
        cached.services.extend(services);
        counts.observed(&observe(&cached));
        let (namespace, name) = (cached.datacenter.namespace.clone(), cached.datacenter.name.clone());
        let text = metrics.text().unwrap();
        let line = |state: &str, count: usize| {
            format!(
                r#"messina_datacenter_nodes{{namespace="{namespace}",datacenter="{name}",state="{state}"}} {count}"#
            )
        };
        assert!(text.contains(&line("joining", nodes)), "{text}");
        assert!(text.contains(&line("ready", 0)), "{text}");
        let gone = Arc::new(ScyllaDBDatacenter::new(&name, Default::default()));
        let key = ObjectKey { namespace: Some(namespace.clone()), name: name.clone() };
        counts.datacenter(&Change::new(key, Some(gone), None));
        assert!(!metrics.text().unwrap().contains("messina_datacenter_nodes{"));
    }
}
