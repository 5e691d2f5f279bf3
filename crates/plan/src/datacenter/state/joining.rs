//! Whether the pods of a rack that is not rolled out may be changed.
//!
//! What keeps a rack from rolling out may be a slip in the specification, such as an image that is not there. Then
//! nothing helps but to correct the pods. It may also be a node that is joining, which must not be disturbed, nor be
//! started anew with another version than the rest.

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names;

use crate::datacenter::{
    model::{facts::service::NodeService, observed::Observed, spec::MAX_NODES},
    state::stateful_set::replicas,
};

pub(crate) fn may_be_corrected(observed: &Observed, stateful_set: &StatefulSet) -> bool {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let members = (0..replicas(stateful_set).min(MAX_NODES)).map(|ordinal| names::datacenter::member(name, ordinal));
    !members.into_iter().any(|member| may_be_joining(observed, &member))
}

/// Whether any node of the datacenter has joined. Before that, there is no cluster to disturb.
pub(crate) fn has_cluster(observed: &Observed) -> bool {
    observed.services.values().any(|service| service.has_joined)
}

/// Whether the node of this name has ever joined.
pub(crate) fn has_joined(observed: &Observed, member: &str) -> bool {
    observed.services.get(member).is_some_and(|service| service.has_joined)
}

/// Whether a node that is down may be joining, and must not be disturbed.
pub(crate) fn may_be_joining(observed: &Observed, member: &str) -> bool {
    // One that replaces another one has not joined, whatever its Service tells of that one.
    let has_joined = |service: &NodeService| service.has_joined && !service.is_replaced();
    if observed.services.get(member).is_some_and(has_joined) {
        return false;
    }
    match observed.pods.get(member) {
        Some(pod) => !pod.cannot_start(),
        // A pod that is not there yet starts, and joins, with whatever the StatefulSet says then.
        None => has_cluster(observed),
    }
}
