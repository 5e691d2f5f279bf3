//! Preconditions of writes: other objects that must still have the version that was observed.
//!
//! Caches of different kinds are not of the same time: one watch may be minutes behind the others. A claim that is not
//! in the cache may exist, with the data of a node that has left, or of one that is in the ring. So a write that cannot
//! be undone happens only if such objects have the observed version at that moment.

use std::{collections::BTreeSet, ops::Range};

use k8s_openapi::api::apps::v1::StatefulSet;
use messina_api::names;

use crate::datacenter::{
    model::{
        facts::ObjectReference,
        observed::Observed,
        plan::{ObjectKind, ObservedVersion, Preconditions},
        spec::MAX_NODES,
    },
    state::stateful_set::replicas,
};

/// Returns the observed versions of a member's claim and pod.
pub(crate) fn claim_and_pod(observed: &Observed, member: &str) -> Vec<ObservedVersion> {
    vec![claim(observed, member), pod(observed, member)]
}

/// Returns the preconditions of a number of replicas that was decided for one member: the member's Service, because it
/// may belong to another node by now, and the claims of the additional pods, because they may hold the data of nodes
/// that have left.
pub(crate) fn for_replicas(
    observed: &Observed,
    stateful_set: &StatefulSet,
    desired: i32,
    member: &str,
) -> Vec<ObservedVersion> {
    let newcomers = members(stateful_set, replicas(stateful_set)..desired).map(|member| claim(observed, &member));
    newcomers.chain([service(observed, member)]).collect()
}

/// Returns the preconditions of StatefulSets. Those that are scaled out depend on the claims of the new pods, because
/// no node may start on the disk of one that has left. Those that let a node restart depend on all pods, because one
/// node restarts at a time, and only while all others are up. A StatefulSet that is created has no preconditions:
/// decision 0017 explains why.
pub(crate) fn for_stateful_sets(
    observed: &Observed,
    desired: &[StatefulSet],
    restarting: &BTreeSet<String>,
) -> Preconditions {
    let preconditions = |one: &StatefulSet| {
        let name = one.metadata.name.clone()?;
        let now = observed.stateful_sets.get(&name)?;
        let newcomers = members(now, replicas(now)..replicas(one)).map(|member| claim(observed, &member));
        let all = observed.stateful_sets.values().flat_map(|one| members(one, 0..replicas(one)));
        let others = all.filter(|_| restarting.contains(&name)).map(|member| pod(observed, &member));
        Some(((ObjectKind::StatefulSet, name.clone()), newcomers.chain(others).collect()))
    };
    desired.iter().filter_map(preconditions).collect()
}

fn members(stateful_set: &StatefulSet, ordinals: Range<i32>) -> impl Iterator<Item = String> {
    let name = stateful_set.metadata.name.clone().unwrap_or_default();
    (ordinals.start..ordinals.end.min(MAX_NODES)).map(move |ordinal| names::datacenter::member(&name, ordinal))
}

pub(crate) fn pod(observed: &Observed, member: &str) -> ObservedVersion {
    let version = version(observed.pods.get(member).map(|pod| &pod.reference));
    ObservedVersion { kind: ObjectKind::Pod, name: member.to_owned(), version }
}

pub(crate) fn service(observed: &Observed, member: &str) -> ObservedVersion {
    let version = version(observed.services.get(member).map(|service| &service.reference));
    ObservedVersion { kind: ObjectKind::Service, name: member.to_owned(), version }
}

pub(crate) fn claim(observed: &Observed, member: &str) -> ObservedVersion {
    let name = names::datacenter::data_claim(member);
    let version = version(observed.claims.get(&name).map(|claim| &claim.reference));
    ObservedVersion { kind: ObjectKind::PersistentVolumeClaim, name, version }
}

pub(crate) fn version(object: Option<&ObjectReference>) -> Option<String> {
    object.map(|object| object.version.clone().unwrap_or_default())
}
