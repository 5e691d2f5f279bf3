//! The seeds of a node.
//!
//! Every node decides for itself, and all must agree which one may start a new ring. So members are sorted by what
//! survives their pods and is the same for all: creation time and name of their Service.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, Service};
use messina_api::{names::label, scylla::v1alpha1::BroadcastAddressType};
use thiserror::Error;

use super::{
    address::{AddressError, IpFamily, broadcast_address},
    facts,
};
use crate::metadata;

/// The node that starts.
#[derive(Clone, Copy, Debug)]
pub struct StartingNode<'a> {
    /// Name of its pod and of its Service.
    pub name: &'a str,
    /// Its broadcast address for nodes.
    pub address: &'a str,
    /// The type of the broadcast address, which is the same for all nodes of a datacenter.
    pub address_type: &'a BroadcastAddressType,
    /// The family of that address.
    pub family: IpFamily,
}

/// Why there are no seeds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SeedsError {
    /// There are no pods, not even that of the node itself.
    #[error("the datacenter has no pods, not even that of this node")]
    NoPods,
    /// A pod has no rack label, which the operator sets on all pods.
    #[error("Pod {pod:?} has no label {}", label::RACK)]
    NoRack {
        /// Name of the pod.
        pod: String,
    },
    /// A pod has no Service yet.
    #[error("Pod {pod:?} has no Service of the same name yet")]
    NoService {
        /// Name of the pod.
        pod: String,
    },
    /// There is a ring, and none of its nodes has a pod.
    #[error(
        "nodes of this datacenter have joined the ring, and none of them has a pod; this node joins when one of them \
         has a pod"
    )]
    NoMember,
    /// The seed node has no address.
    #[error("seed node {member:?} has no address")]
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

/// Returns the addresses of the seeds, external ones first.
///
/// `pods` and `services` are the pods and member Services of all nodes of the datacenter, including the starting one.
/// Seeds are ready nodes, one of each rack. If there are none, the seed of a new node is the first one that has joined.
/// If none has joined, the seed is the first node of all, which is its own seed only if there are no external ones.
pub fn seeds(
    node: StartingNode<'_>,
    pods: &[Pod],
    services: &[Service],
    external: &[String],
) -> Result<Vec<String>, SeedsError> {
    let members = ranked(pods, services)?;
    let Some(first) = members.first() else { return Err(SeedsError::NoPods) };
    let mut racks = BTreeSet::new();
    // The starting node itself may be reported as ready for a while after a restart.
    let others = members.iter().filter(|member| member.name != node.name);
    let ready: Vec<_> = others.filter(|member| is_ready(member.pod) && racks.insert(member.rack)).collect();

    // A node that has not joined must not start a second ring.
    let has_joined = |service: &Service| service.metadata.annotations.as_ref().is_some_and(facts::has_joined);
    let name_of = |service: &Service| service.metadata.name.clone().unwrap_or_default();
    let is_new = services.iter().any(|service| name_of(service) == node.name && !has_joined(service));
    let is_ring_known = is_new && services.iter().any(has_joined);
    let joined = members.iter().find(|member| is_new && has_joined(member.service));

    let mut seeds = external.to_vec();
    if !ready.is_empty() {
        for member in ready {
            seeds.push(address_of(member, node)?);
        }
    } else if let Some(member) = joined {
        seeds.push(address_of(member, node)?);
    } else if is_ring_known {
        return Err(SeedsError::NoMember);
    } else if first.name != node.name {
        seeds.push(address_of(first, node)?);
    } else if seeds.is_empty() {
        seeds.push(node.address.to_owned());
    }
    Ok(seeds)
}

fn ranked<'a>(pods: &'a [Pod], services: &'a [Service]) -> Result<Vec<Member<'a>>, SeedsError> {
    let named: BTreeMap<_, _> =
        services.iter().filter_map(|service| Some((service.metadata.name.as_deref()?, service))).collect();
    let mut members = vec![];
    for pod in pods {
        let label = |key| metadata::label(pod, key);
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

fn address_of(member: &Member<'_>, node: StartingNode<'_>) -> Result<String, SeedsError> {
    broadcast_address(node.address_type, member.service, member.pod, Some(node.family))
        .map_err(|source| SeedsError::NoAddress { member: member.name.to_owned(), source })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use messina_api::names::{annotation, label::value};
    use serde_json::json;

    use super::*;

    const FAMILY: IpFamily = IpFamily::V4;

    fn pod(name: &str) -> Pod {
        let labels = json!({label::POD_TYPE: value::SCYLLADB_NODE, label::RACK: "a"});
        serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap()
    }

    fn service(name: &str, address: &str, joined: bool) -> Service {
        let annotations = json!({annotation::HOST_ID: name, annotation::NODE_JOINED: joined.to_string()});
        let metadata = json!({"name": name, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"clusterIP": address}})).unwrap()
    }

    fn asked(node: &str, pods: &[&str], joined: &[&str]) -> Result<Vec<String>, SeedsError> {
        let pods: Vec<Pod> = pods.iter().map(|name| pod(name)).collect();
        let services: Vec<Service> = [("a-0", "10.0.0.1"), ("a-1", "10.0.0.2"), ("a-2", "10.0.0.3")]
            .map(|(name, address)| service(name, address, joined.contains(&name)))
            .into();
        let address_type = &BroadcastAddressType::ServiceClusterIP;
        seeds(StartingNode { name: node, address: "own", address_type, family: FAMILY }, &pods, &services, &[])
    }

    #[test]
    fn new_node_starts_no_second_ring() {
        let all = ["a-0", "a-1", "a-2"];
        assert_eq!(asked("a-0", &all, &[]), Ok(vec!["own".into()]), "no node has joined");
        assert_eq!(asked("a-0", &all, &["a-1", "a-2"]), Ok(vec!["10.0.0.2".into()]));
        assert_eq!(asked("a-0", &["a-0"], &["a-1"]), Err(SeedsError::NoMember), "it waits for their pods");
        assert_eq!(asked("a-0", &all, &all), Ok(vec!["own".into()]), "one that has joined comes back");
    }
}
