//! Reads the objects from the API server, and the rings from the nodes through its proxy.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, stream};
use http::Request;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Pod, Service},
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use messina_api::{
    names::label::{self, value},
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use super::{
    model::{Datacenter, Found, Ring},
    pods::{is_ready, is_running},
};
use crate::cluster::{self, Error, ResourceKind, describe_namespace, is_owned, one_line};

const DATACENTER: ResourceKind = ResourceKind {
    name: "ScyllaDBDatacenter",
    resource: "scylladbdatacenters.scylla.scylladb.com",
    provided_by: "the CustomResourceDefinitions of Messina",
};
/// The port of the probe in a node's pod.
const PROBE_PORT: u16 = 8080;
/// The time limit for the answer of a node.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// How many nodes are queried at the same time.
const MAX_CONCURRENT: usize = 32;

/// What to search for.
#[derive(Clone, Debug)]
pub struct Query {
    /// The namespace; none for all namespaces.
    pub namespace: Option<String>,
    /// One datacenter of that namespace, or all.
    pub name: Option<String>,
    /// The port of the nodes' probes.
    pub port: u16,
}

impl Default for Query {
    fn default() -> Self {
        Self { namespace: None, name: None, port: PROBE_PORT }
    }
}

/// Reads everything about the datacenters. What the user may not read is left out.
pub async fn gather(client: &Client, query: &Query) -> Result<Found, Error> {
    let mut problems = Vec::new();
    let datacenters = datacenters(client, query).await?;
    let (stateful_sets, pods, services) =
        tokio::join!(list::<StatefulSet>(client, query), list::<Pod>(client, query), list::<Service>(client, query));
    let effect = "so the pods of nodes cannot be told from other pods";
    let stateful_sets = or_problem(stateful_sets, query, "statefulsets", effect, &mut problems)?;
    let effect = "so the pods of nodes are not shown, and ScyllaDB cannot be queried";
    let pods = or_problem(pods, query, "pods", effect, &mut problems)?;
    let pods_known = problems.is_empty();
    let effect = "so nodes that do not answer may not be found in the ring";
    let services = or_problem(services, query, "services", effect, &mut problems)?;
    let mut found: Vec<Datacenter> = datacenters
        .into_iter()
        .map(|object| {
            // Any user can set labels: only objects that the datacenter or one of its StatefulSets owns are shown.
            let own = BTreeSet::from_iter(object.uid());
            let is_own = |one: &&StatefulSet| has_cluster_label(*one, &object) && is_owned(*one, &own);
            let of_racks: BTreeSet<String> = stateful_sets.iter().filter(is_own).filter_map(|one| one.uid()).collect();
            let is_own_node =
                |pod: &&Pod| has_cluster_label(*pod, &object) && is_node(pod) && is_owned(*pod, &of_racks);
            let pods = pods.iter().filter(is_own_node).cloned().collect();
            let is_own = |service: &&Service| has_cluster_label(*service, &object) && is_owned(*service, &own);
            let services = services.iter().filter(is_own).cloned().collect();
            Datacenter { object, pods, pods_known, services, answers: BTreeMap::new() }
        })
        .collect();
    problems.extend(query_nodes(client, query.port, &mut found).await);
    Ok(Found { datacenters: found, problems })
}

fn api<K>(client: &Client, query: &Query) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match &query.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

async fn datacenters(client: &Client, query: &Query) -> Result<Vec<ScyllaDBDatacenter>, Error> {
    let api: Api<ScyllaDBDatacenter> = api(client, query);
    let (verb, outcome) = match &query.name {
        Some(name) => ("get", cluster::get(&api, name).await.map(|object| vec![object])),
        None => ("list", cluster::list(&api, &ListParams::default()).await),
    };
    let (name, namespace) = (query.name.as_deref(), query.namespace.as_deref());
    outcome.map_err(|source| Error::from_request(source, verb, DATACENTER, name, namespace))
}

async fn list<K>(client: &Client, query: &Query) -> kube::Result<Vec<K>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    let of_clusters = match &query.name {
        Some(name) => format!("{}={name}", label::CLUSTER),
        None => label::CLUSTER.to_owned(),
    };
    cluster::list(&api::<K>(client, query), &ListParams::default().labels(&of_clusters)).await
}

/// Returns what was listed. Where the user may not list it, returns none and adds a sentence to `problems`.
fn or_problem<K>(
    outcome: kube::Result<Vec<K>>,
    query: &Query,
    resource: &str,
    effect: &str,
    problems: &mut Vec<String>,
) -> Result<Vec<K>, Error> {
    match outcome {
        Ok(listed) => Ok(listed),
        Err(kube::Error::Api(answer)) if answer.code == 403 => {
            let place = describe_namespace(query.namespace.as_deref());
            problems
                .push(format!("You may not list {resource} {place}, {effect}: ask for the permission to list them."));
            Ok(Vec::new())
        }
        Err(error) => Err(Error::Unreachable(error)),
    }
}

fn has_cluster_label<K: ResourceExt>(object: &K, datacenter: &ScyllaDBDatacenter) -> bool {
    let is_in_namespace = object.namespace() == datacenter.metadata.namespace;
    is_in_namespace && object.labels().get(label::CLUSTER) == datacenter.metadata.name.as_ref()
}

fn is_node(pod: &Pod) -> bool {
    pod.labels().get(label::POD_TYPE).is_none_or(|kind| kind == value::SCYLLADB_NODE)
}

enum NoAnswer {
    Forbidden,
    Failed(String),
}

/// Queries the nodes that are ready for their rings; where none is ready, those that run. Returns what the user may not do.
async fn query_nodes(client: &Client, port: u16, datacenters: &mut [Datacenter]) -> Vec<String> {
    let mut targets = Vec::new();
    for (position, datacenter) in datacenters.iter().enumerate() {
        let any_is_ready = datacenter.pods.iter().any(is_ready);
        let queried = datacenter.pods.iter().filter(|pod| if any_is_ready { is_ready(pod) } else { is_running(pod) });
        targets.extend(queried.map(|pod| (position, pod.namespace().unwrap_or_default(), pod.name_any())));
    }
    let answers: Vec<_> = stream::iter(targets)
        .map(async |(position, namespace, pod)| {
            let answer = ring(client, &namespace, &pod, port).await;
            (position, namespace, pod, answer)
        })
        .buffer_unordered(MAX_CONCURRENT)
        .collect()
        .await;
    let mut forbidden = BTreeMap::new();
    for (position, namespace, pod, answer) in answers {
        let answer = answer.map_err(|why| match why {
            NoAnswer::Forbidden => {
                forbidden.insert(namespace, ());
                "you may not query it".to_owned()
            }
            NoAnswer::Failed(why) => why,
        });
        datacenters[position].answers.insert(pod, answer);
    }
    let sentence = |namespace: String| {
        format!(
            "You may not get pods/proxy in namespace {namespace}, so the state of nodes in ScyllaDB is unknown: ask for \
             that permission."
        )
    };
    forbidden.into_keys().map(sentence).collect()
}

async fn ring(client: &Client, namespace: &str, pod: &str, port: u16) -> Result<Ring, NoAnswer> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/nodes");
    let request = Request::get(path).body(Vec::new()).map_err(|error| NoAnswer::Failed(error.to_string()))?;
    match timeout(NODE_TIMEOUT, client.request::<Ring>(request)).await {
        Err(_) => Err(NoAnswer::Failed(format!("it did not answer within {} seconds", NODE_TIMEOUT.as_secs()))),
        Ok(Ok(ring)) => ring.sanitize().map_err(NoAnswer::Failed),
        // Probes of nodes check no permissions, so the API server has answered.
        Ok(Err(kube::Error::Api(answer))) if answer.code == 403 => Err(NoAnswer::Forbidden),
        Ok(Err(kube::Error::Api(answer))) => Err(NoAnswer::Failed(one_line(&answer.message))),
        Ok(Err(error)) => Err(NoAnswer::Failed(one_line(&error.to_string()))),
    }
}

#[cfg(test)]
mod tests;
