//! The metrics of nodes by state, and of topology operations by result.

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
struct StateLabels {
    namespace: String,
    datacenter: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OperationLabels {
    kind: &'static str,
    result: &'static str,
}

/// The metrics of datacenters. Clones share the same metrics.
#[derive(Clone, Debug)]
pub struct Counts {
    nodes: Family<StateLabels, Gauge>,
    operations: Family<OperationLabels, Counter>,
}

impl Counts {
    /// Registers the metrics. Call it once per process.
    pub fn new(metrics: &Metrics) -> Self {
        let counts = Self { nodes: Family::default(), operations: Family::default() };
        metrics.register(|registry| {
            registry.register("datacenter_nodes", "ScyllaDB nodes by state", counts.nodes.clone());
            let help = "Topology operations and cleanups that have ended, by kind and result";
            registry.register("topology_operations", help, counts.operations.clone());
        });
        counts
    }

    /// Sets the numbers of a datacenter's nodes by state.
    pub(super) fn record_nodes(&self, observed: &Observed) {
        let (namespace, name) = (&observed.datacenter().namespace, &observed.datacenter().name);
        for (state, count) in node_states(observed) {
            let gauge = self.nodes.get_or_create(&state_labels(namespace, name, state));
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Removes the series of a datacenter that was deleted or cannot be parsed.
    pub(super) fn observe_datacenter(&self, change: &Change<ScyllaDBDatacenter>) {
        if change.after.is_none() {
            self.remove_datacenter(&change.key);
        }
    }

    /// Removes the series of a datacenter.
    pub(super) fn remove_datacenter(&self, key: &ObjectKey) {
        let namespace = key.namespace.as_deref().unwrap_or_default();
        for state in NodeState::ALL {
            self.nodes.remove(&state_labels(namespace, &key.name, state));
        }
    }

    pub(super) fn observe_service(&self, change: &Change<Service>) {
        // A Service that cannot be parsed does not mean that its operation has ended.
        if let Some(before) = change.before.as_deref().filter(|_| change.unreadable_after.is_none()) {
            self.count(finished_operation(before, change.after.as_deref()));
        }
    }

    pub(super) fn observe_job(&self, change: &Change<Job>) {
        if let (Some(before), Some(after)) = (change.before.as_deref(), change.after.as_deref()) {
            self.count(finished_cleanup(before, after));
        }
    }

    fn count(&self, ended: Option<(Operation, Ending)>) {
        if let Some((operation, ending)) = ended {
            let labels = OperationLabels { kind: operation.word(), result: ending.word() };
            self.operations.get_or_create(&labels).inc();
        }
    }

    /// Removes the series of nodes, when this process is no longer the leader. Counters stay.
    pub(super) fn clear_gauges(&self) {
        self.nodes.clear();
    }
}

fn state_labels(namespace: &str, datacenter: &str, state: NodeState) -> StateLabels {
    StateLabels { namespace: namespace.to_owned(), datacenter: datacenter.to_owned(), state: state.word() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::certificates::tests::{cached, observe};

    #[test]
    fn nodes_are_exported_while_their_datacenter_exists() {
        let metrics = Metrics::default();
        let counts = Counts::new(&metrics);
        let mut cached = cached();
        let services = messina_plan::datacenter::plan(&observe(&cached)).objects.member_services;
        let nodes = services.len();
        cached.services.extend(services);
        counts.record_nodes(&observe(&cached));
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
        counts.observe_datacenter(&Change::new(key, Some(gone), None));
        assert!(!metrics.text().unwrap().contains("messina_datacenter_nodes{"));
    }
}
