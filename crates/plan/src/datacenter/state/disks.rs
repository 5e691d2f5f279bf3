//! What the claims of nodes tell of them.

use std::collections::BTreeMap;

use messina_api::names::{self, image_version};

use crate::{
    datacenter::{
        model::{facts::claim::Claim, observed::Observed},
        state::member::Member,
    },
    version::Version,
};

/// The image of ScyllaDB that a node runs or last ran, and its version.
pub(crate) fn last_image(observed: &Observed, member: &str) -> Option<(String, String)> {
    match observed.pods.get(member) {
        Some(pod) => Some((pod.version.clone()?, pod.image.clone()?)),
        None => {
            let image = observed.claim_of(member)?.last_image.as_ref()?;
            Some((image_version(image).ok()?.to_owned(), image.clone()))
        }
    }
}

/// What nodes are to run that are missing: what they last ran, and the newest of that where it differs, because a disk cannot
/// go back to a former version.
pub(crate) fn newest_image(observed: &Observed, members: &[String]) -> Option<(String, String)> {
    let is_newer = |one: &str, other: &str| match (Version::parse(one), Version::parse(other)) {
        (Some(one), Some(other)) => one.is_at_least(&other),
        _ => false,
    };
    let images = members.iter().filter_map(|member| last_image(observed, member));
    images.reduce(|newest, one| if is_newer(&one.0, &newest.0) { one } else { newest })
}

/// Host IDs of nodes that have joined and not left, by their names, as claims say. A claim that was copied is not a node's: its
/// host ID stands on the Service of another one, or on an older claim.
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
