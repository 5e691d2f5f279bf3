//! What is known of nodes from the annotations of their PersistentVolumeClaims.

use std::collections::BTreeMap;

use messina_api::names::{self, image_version};

use crate::{
    datacenter::{
        model::{facts::claim::Claim, observed::Observed},
        state::member::Member,
    },
    version::Version,
};

/// Returns version and image of the ScyllaDB that a node runs, or ran last.
pub(crate) fn last_image(observed: &Observed, member: &str) -> Option<(String, String)> {
    match observed.pods.get(member) {
        Some(pod) => Some((pod.version.clone()?, pod.image.clone()?)),
        None => {
            let image = observed.claim_of(member)?.last_image.as_ref()?;
            Some((image_version(image).ok()?.to_owned(), image.clone()))
        }
    }
}

/// Returns version and image with which these nodes can start again: those that they ran last, and the newest of them
/// where they differ, because ScyllaDB cannot be downgraded on a disk.
pub(crate) fn newest_image(observed: &Observed, members: &[String]) -> Option<(String, String)> {
    let is_newer = |one: &str, other: &str| match (Version::parse(one), Version::parse(other)) {
        (Some(one), Some(other)) => one.is_at_least(&other),
        _ => false,
    };
    let images = members.iter().filter_map(|member| last_image(observed, member));
    images.reduce(|newest, one| if is_newer(&one.0, &newest.0) { one } else { newest })
}

/// Returns the host IDs of nodes that have joined and not left, by member, from the annotations of claims. Copies of
/// claims are left out: their host ID is on the Service of another member, or on an older claim.
pub(crate) fn joined_disks<'a>(observed: &'a Observed, members: &[Member<'a>]) -> BTreeMap<&'a str, &'a str> {
    let by_service = |host_id: &str| {
        let is_its = |member: &&Member<'_>| member.host_id() == Some(host_id);
        members.iter().find(is_its).map(|member| member.name)
    };
    let mut found = BTreeMap::<&'a str, (&Claim, &'a str)>::new();
    for (name, claim) in observed.claims.iter().filter(|(_, claim)| claim.has_joined()) {
        let Some(member) = names::datacenter::member_of_claim(name) else { continue };
        let host_id = claim.joined_host_id.as_ref();
        let Some(host_id) = host_id.filter(|host_id| by_service(host_id).is_none_or(|other| other == member)) else {
            continue;
        };
        let is_older = |(other, _): &(&Claim, &str)| other.created <= claim.created;
        if !found.get(host_id.as_str()).is_some_and(is_older) {
            found.insert(host_id, (claim, member));
        }
    }
    found.into_iter().map(|(host_id, (_, member))| (member, host_id)).collect()
}
