//! What nodes are known by. A datacenter of another name has other racks, and those that there are would count as removed:
//! a slip in one field would send all nodes away.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::ConfigMap};
use messina_api::names::{self, label};

use crate::datacenter::model::{observed::Observed, spec::InvalidField};

/// Why a datacenter cannot adopt what a former one left behind: its name, or that of its cluster, is not that of the nodes.
pub fn cannot_adopt(observed: &Observed) -> Option<InvalidField> {
    change_of_identity(observed).or_else(|| {
        let wanted = &observed.datacenter.cluster_name;
        let config = observed.config_maps.get(&names::datacenter::managed_config(&observed.datacenter.name))?;
        let is = cluster_name(config)?;
        (!observed.stateful_sets.is_empty() && is != *wanted).then(|| InvalidField {
            field: "spec.clusterName".into(),
            message: format!(
                "the cluster would be {wanted:?} now, and nodes that are there are of {is:?}, which cannot change: set it to {is:?}. \
                 Nothing is adopted meanwhile"
            ),
        })
    })
}

/// What the specification wants the nodes that there are to be called, if that is something else. StatefulSets tell: nobody can
/// change which pods they select. Where a change had begun already, the oldest one says what it was.
pub fn change_of_identity(observed: &Observed) -> Option<InvalidField> {
    let wanted = &observed.datacenter.scylla_datacenter;
    let age = |one: &&StatefulSet| (one.metadata.creation_timestamp.clone(), one.metadata.name.clone());
    let oldest = observed.stateful_sets.values().min_by_key(age)?;
    let is = oldest.spec.as_ref()?.selector.match_labels.as_ref()?.get(label::DATACENTER)?;
    (is != wanted).then(|| InvalidField {
        field: "spec.datacenterName".into(),
        message: format!(
            "the datacenter would be {wanted:?} now, and its nodes are in {is:?}, which cannot change as long as they live: \
             set it to {is:?} again. Nothing is changed meanwhile"
        ),
    })
}

/// The name of the cluster in a ConfigMap that was made here.
pub(crate) fn cluster_name(config: &ConfigMap) -> Option<String> {
    let lines = config.data.iter().flatten().flat_map(|(_, text)| text.lines());
    let name = lines.filter_map(|line| line.strip_prefix("cluster_name: ")).next()?;
    serde_json::from_str(name).ok()
}
