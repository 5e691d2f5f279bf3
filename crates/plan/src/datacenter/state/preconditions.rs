//! What a write rests on, besides the object that is written.
//!
//! What is observed of different kinds is not of one time: one watch may be minutes behind the others. A claim that is not
//! seen may be there all the same, with the data of a node that has left, or of one that is in the ring. So what cannot be
//! made up for later is written only if such objects are, at that moment, as they were observed.

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

/// The claim and the pod of a node.
pub(crate) fn claim_and_pod(observed: &Observed, member: &str) -> Vec<ObservedVersion> {
    vec![claim(observed, member), pod(observed, member)]
}

/// What a number of places rests on that was decided for one node: on the node's Service, because another node may have its
/// place by now, and on the claims with which pods start that come with it, because they may be of nodes that have left.
pub(crate) fn for_replicas(
    observed: &Observed,
    stateful_set: &StatefulSet,
    wanted: i32,
    member: &str,
) -> Vec<ObservedVersion> {
    let newcomers = members(stateful_set, replicas(stateful_set)..wanted).map(|member| claim(observed, &member));
    newcomers.chain([service(observed, member)]).collect()
}

/// What StatefulSets rest on: those that get more nodes on their claims, because no node starts on the disk of one that has
/// left; those that let nodes restart on all pods, because one restarts at a time, and only while all others are up. One that
/// is created rests on nothing: decision 0017 says why.
pub(crate) fn for_stateful_sets(
    observed: &Observed,
    wanted: &[StatefulSet],
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
    wanted.iter().filter_map(preconditions).collect()
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
