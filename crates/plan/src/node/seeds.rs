//! Whom a node asks first for the ring that it is to join.
//!
//! Every node decides for itself, and all must agree who may begin a ring of its own. So members are ranked by what
//! outlives their pods and what all see alike: when their Service was made, and its name.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Service};
use messina_api::{names::label, scylla::v1alpha1::BroadcastAddressType};
use thiserror::Error;

use super::address::{AddressError, IpFamily, broadcast_address};
use crate::words;

/// The node that asks.
#[derive(Clone, Copy, Debug)]
pub struct Asker<'a> {
    /// Name of its pod and of its Service.
    pub name: &'a str,
    /// The address that it announces to other nodes.
    pub address: &'a str,
    /// Whose address nodes announce; the same for all nodes of a datacenter.
    pub address_type: &'a BroadcastAddressType,
    /// The family of that address.
    pub family: IpFamily,
}

/// Why there are no seeds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SeedsError {
    /// Not even the pod of the node itself is there.
    #[error("no pod of this datacenter is there, not even that of this node")]
    NoPods,
    /// A pod lacks a label that the operator puts on all.
    #[error("Pod {pod:?} has no label {}", label::RACK)]
    NoRack {
        /// Name of the pod.
        pod: String,
    },
    /// A pod has no Service yet.
    #[error("Pod {pod:?} has no Service of its name yet")]
    NoService {
        /// Name of the pod.
        pod: String,
    },
    /// The node to ask has no address.
    #[error("node {member:?}, which is to be asked for the ring, cannot be reached")]
    NoAddress {
        /// Name of its pod.
        member: String,
        /// Why not.
        #[source]
        source: AddressError,
    },
}

struct Member<'a> {
    name: &'a str,
    rack: &'a str,
    pod: &'a Pod,
    service: &'a Service,
}

/// The addresses to ask, those outside of the datacenter first.
///
/// `pods` and `services` are all nodes' pods and member Services of the datacenter, the asker's own included. Nodes that
/// are ready are asked, one of each rack. If none is, the first of all is, which seeds itself only if there is no ring
/// elsewhere to join.
pub fn seeds(
    asker: Asker<'_>,
    pods: &[Pod],
    services: &[Service],
    external: &[String],
) -> Result<Vec<String>, SeedsError> {
    let members = ranked(pods, services)?;
    let Some(first) = members.first() else { return Err(SeedsError::NoPods) };
    let mut racks = BTreeSet::new();
    // The asker may look ready for a while after it was started anew.
    let others = members.iter().filter(|member| member.name != asker.name);
    let ready: Vec<_> = others.filter(|member| is_ready(member.pod) && racks.insert(member.rack)).collect();

    let mut seeds = external.to_vec();
    if !ready.is_empty() {
        for member in ready {
            seeds.push(address_of(member, asker)?);
        }
    } else if first.name != asker.name {
        seeds.push(address_of(first, asker)?);
    } else if seeds.is_empty() {
        seeds.push(asker.address.to_owned());
    }
    Ok(seeds)
}

fn ranked<'a>(pods: &'a [Pod], services: &'a [Service]) -> Result<Vec<Member<'a>>, SeedsError> {
    let named: BTreeMap<_, _> =
        services.iter().filter_map(|service| Some((service.metadata.name.as_deref()?, service))).collect();
    let mut members = vec![];
    for pod in pods {
        let label = |key| words::label(pod, key);
        if label(label::POD_TYPE) != Some(label::value::SCYLLADB_NODE) {
            continue;
        }
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let pod_name = || name.to_owned();
        let rack = label(label::RACK).filter(|rack| !rack.is_empty());
        let rack = rack.ok_or_else(|| SeedsError::NoRack { pod: pod_name() })?;
        let service = *named.get(name).ok_or_else(|| SeedsError::NoService { pod: pod_name() })?;
        members.push(Member { name, rack, pod, service });
    }
    members.sort_by(|a, b| {
        let made = |member: &Member<'_>| member.service.metadata.creation_timestamp.clone();
        (made(a), a.name).cmp(&(made(b), b.name))
    });
    Ok(members)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn address_of(member: &Member<'_>, asker: Asker<'_>) -> Result<String, SeedsError> {
    broadcast_address(asker.address_type, member.service, member.pod, Some(asker.family))
        .map_err(|source| SeedsError::NoAddress { member: member.name.to_owned(), source })
}
