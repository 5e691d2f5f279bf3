//! Checks that the names by which existing nodes are identified do not change. With another datacenter name, all
//! existing racks would count as removed: a typo in one field would decommission all nodes.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::ConfigMap};
use messina_api::names::{self, label};

use crate::datacenter::model::{observed::Observed, spec::InvalidField};

/// Returns the field that keeps a datacenter from adopting the objects of a deleted one: the name of the datacenter or
/// of the cluster differs from that of the existing nodes.
pub fn cannot_adopt(observed: &Observed) -> Option<InvalidField> {
    change_of_identity(observed).or_else(|| {
        let desired = &observed.datacenter.cluster_name;
        let config = observed.config_maps.get(&names::datacenter::managed_config(&observed.datacenter.name))?;
        let is = cluster_name(config)?;
        (!observed.stateful_sets.is_empty() && is != *desired).then(|| InvalidField {
            field: "spec.clusterName".into(),
            message: format!(
                "{desired:?} is not the cluster name of the existing nodes, which is {is:?} and cannot change: set it \
                 to {is:?}. The operator adopts no object until then"
            ),
        })
    })
}

/// Returns the datacenter name, if it differs from that of the existing nodes. Their name is read from the selector of
/// a StatefulSet, which is immutable. Where a rename had begun already, the oldest StatefulSet has the original name.
pub fn change_of_identity(observed: &Observed) -> Option<InvalidField> {
    let desired = &observed.datacenter.scylla_datacenter;
    let age = |one: &&StatefulSet| (one.metadata.creation_timestamp.clone(), one.metadata.name.clone());
    let oldest = observed.stateful_sets.values().min_by_key(age)?;
    let is = oldest.spec.as_ref()?.selector.match_labels.as_ref()?.get(label::DATACENTER)?;
    (is != desired).then(|| InvalidField {
        field: "spec.datacenterName".into(),
        message: format!(
            "{desired:?} is not the datacenter name of the existing nodes, which is {is:?} and cannot change: set it \
             to {is:?} again. The operator changes nothing until then"
        ),
    })
}

/// The name of the cluster in a ConfigMap that the operator has created.
pub(crate) fn cluster_name(config: &ConfigMap) -> Option<String> {
    let lines = config.data.iter().flatten().flat_map(|(_, text)| text.lines());
    let name = lines.filter_map(|line| line.strip_prefix("cluster_name: ")).next()?;
    serde_json::from_str(name).ok()
}
