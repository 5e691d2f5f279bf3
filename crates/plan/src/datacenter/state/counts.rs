//! The number of nodes of a rack: desired, existing and known from the ring.

use k8s_openapi::api::apps::v1::StatefulSet;

use crate::datacenter::{
    model::{
        observed::Observed,
        spec::{MAX_NODES, Rack},
    },
    state::{Current, member::Member, ring::Membership, stateful_set::replicas},
};

/// Returns the StatefulSets of racks that the specification no longer has.
pub(crate) fn removed_racks(observed: &Observed) -> impl Iterator<Item = &StatefulSet> {
    let racks = &observed.datacenter.racks;
    let desired: Vec<String> = racks.iter().map(|rack| observed.datacenter.stateful_set_name(rack)).collect();
    observed.stateful_sets.iter().filter(move |(name, _)| !desired.contains(name)).map(|(_, stateful_set)| stateful_set)
}

/// Returns how many replicas the rack needs now, without scaling in. A StatefulSet may have been deleted or scaled in
/// by a user while its nodes are still in the ring.
pub(crate) fn nodes_to_keep(current: &Current<'_>, rack: &Rack) -> i32 {
    let observed = current.observed;
    let name = observed.datacenter.stateful_set_name(rack);
    let now = observed.stateful_sets.get(&name).map_or_else(|| known_nodes(current, &name), replicas);
    rack.nodes.max(now).max(replicas_of_ring_members(current, &name)).min(MAX_NODES)
}

/// Returns how many replicas cover all nodes that are in the ring although their ordinals are beyond the StatefulSet's
/// replicas.
pub(crate) fn replicas_of_ring_members(current: &Current<'_>, stateful_set: &str) -> i32 {
    let observed = current.observed;
    let members = current.members();
    let is_lost = |member: &&Member<'_>| member.stateful_set == stateful_set && member.is_beyond_replicas(observed);
    let mut lost = members.iter().filter(is_lost).filter_map(|member| Some((member, member.host_id()?))).peekable();
    if lost.peek().is_none() {
        return 0;
    }
    let ring = &current.ring;
    if observed.stateful_sets.get(stateful_set).is_some_and(|now| !ring.is_asked_since(now)) {
        return 0;
    }
    let is_in = |(member, host_id): &(&Member<'_>, &str)| ring.membership(host_id, member.name) == Membership::Member;
    lost.filter(is_in).map(|(member, _)| member.ordinal + 1).max().unwrap_or(0).min(MAX_NODES)
}

/// Returns how many replicas cover all ordinals that have a pod, a Service with a host ID, or a claim with the data of
/// a node. Nodes that have left the ring do not count.
pub(crate) fn known_nodes(current: &Current<'_>, stateful_set: &str) -> i32 {
    let observed = current.observed;
    let members = current.members();
    let ring = &current.ring;
    let has_left = |member: &Member<'_>| {
        let is_out = |host_id: &str| ring.membership_of(observed, member, host_id) == Membership::Absent;
        member.is_asked_to_leave() && !member.is_replaced() && member.host_id().is_some_and(is_out)
    };
    let (left, there): (Vec<&Member<'_>>, Vec<_>) = members.iter().partition(|member| has_left(member));
    let services = there.iter().filter(|member| member.host_id().is_some()).map(|member| member.name);
    let has_not_left = |name: &&str| left.iter().all(|member| member.name != *name);
    let pods = observed.pods.keys().map(String::as_str).filter(has_not_left);
    let disks = current.disks.keys().copied().filter(has_not_left);
    let ordinal = |name: &str| name.strip_prefix(stateful_set)?.strip_prefix('-')?.parse::<u16>().ok();
    services.chain(pods).chain(disks).filter_map(ordinal).max().map_or(0, |last| i32::from(last) + 1)
}

/// Returns how many nodes the specification has for a StatefulSet.
pub(crate) fn desired(observed: &Observed, stateful_set: &str) -> i32 {
    let racks = &observed.datacenter.racks;
    racks.iter().find(|rack| observed.datacenter.stateful_set_name(rack) == stateful_set).map_or(0, |rack| rack.nodes)
}
