//! Whether the pods of a rack that is not rolled out may be changed.
//!
//! A rollout may be stuck because of a mistake in the specification, such as an image that does not exist. Then only a
//! change of the pods helps. It may also wait for a node that is joining, which must not be restarted, least of all
//! with another version than the rest.

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

/// Whether any node of the datacenter has joined. Until then, there is no cluster to protect.
pub(crate) fn has_cluster(observed: &Observed) -> bool {
    observed.services.values().any(|service| service.has_joined)
}

/// Whether the node of this name has ever joined.
pub(crate) fn has_joined(observed: &Observed, member: &str) -> bool {
    observed.services.get(member).is_some_and(|service| service.has_joined)
}

/// Whether a node that is down may be joining, so that it must not be restarted.
pub(crate) fn may_be_joining(observed: &Observed, member: &str) -> bool {
    // A replacement has not joined; the Service still has the annotations of the node that it replaces.
    let has_joined = |service: &NodeService| service.has_joined && !service.is_replaced();
    if observed.services.get(member).is_some_and(has_joined) {
        return false;
    }
    match observed.pods.get(member) {
        Some(pod) => !pod.cannot_start(),
        // A missing pod is created, and its node joins, with the StatefulSet's template of that time.
        None => has_cluster(observed),
    }
}
