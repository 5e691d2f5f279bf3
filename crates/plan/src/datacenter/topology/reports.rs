//! The ring as sidecars of scylla-operator report it, where its feature gate `BootstrapSynchronisation` is on. They do
//! not answer the operator's questions, so nothing else is known of the ring until the first node runs with a sidecar
//! of Messina.

use messina_api::scylla::v1alpha1::NodeStatus;

use crate::datacenter::{model::observed::Observed, state::ring::Ring};

impl Ring<'_> {
    /// Returns an error if a report does not allow one of the datacenter's nodes to restart.
    pub(crate) fn reports_let_restart(&self, observed: &Observed) -> Result<(), String> {
        let ours = self.others(observed, "");
        let silent = ours.iter().filter(|member| !member.answers());
        let reports =
            silent.filter_map(|member| Some((member.name, observed.pods.get(member.name)?.status_report.as_ref()?)));
        for (name, report) in reports {
            if let Some(error) = &report.error {
                return Err(format!("node {name} reports that it cannot read the token ring: {error}"));
            }
            for host_id in ours.iter().filter_map(|member| member.host_id()) {
                if report.status(host_id) != Some(&NodeStatus::Up) {
                    return Err(format!("node {name} does not report that node {} is up", self.display_name(host_id)));
                }
            }
        }
        Ok(())
    }
}
