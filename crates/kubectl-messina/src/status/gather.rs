//! Asks the API server for the objects, and through it the nodes for their rings.

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
use crate::cluster::{self, Error, Kind, is_owned, one_line, place};

const DATACENTER: Kind = Kind {
    name: "ScyllaDBDatacenter",
    resource: "scylladbdatacenters.scylla.scylladb.com",
    comes_with: "Messina's definitions",
};
/// Where the probe in a node's pod answers.
const PROBE_PORT: u16 = 8080;
/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// How many nodes are asked at once.
const AT_ONCE: usize = 32;

/// What to look for.
#[derive(Clone, Debug)]
pub struct Question {
    /// Where; everywhere, if nothing is said.
    pub namespace: Option<String>,
    /// One datacenter of that namespace, or all.
    pub name: Option<String>,
    /// Where nodes answer.
    pub port: u16,
}

impl Default for Question {
    fn default() -> Self {
        Self { namespace: None, name: None, port: PROBE_PORT }
    }
}

/// Everything that is said about the datacenters. Where something may not be seen, the rest is gathered.
pub async fn gather(client: &Client, question: &Question) -> Result<Found, Error> {
    let mut problems = Vec::new();
    let datacenters = datacenters(client, question).await?;
    let (stateful_sets, pods, services) = tokio::join!(
        list::<StatefulSet>(client, question),
        list::<Pod>(client, question),
        list::<Service>(client, question)
    );
    let lost = "so it is not known which pods are nodes";
    let stateful_sets = or_problem(stateful_sets, question, "statefulsets", lost, &mut problems)?;
    let lost = "so what Kubernetes knows of nodes is not shown, and ScyllaDB cannot be asked";
    let pods = or_problem(pods, question, "pods", lost, &mut problems)?;
    let knows_pods = problems.is_empty();
    let lost = "so nodes that do not answer may not be recognised in the ring";
    let services = or_problem(services, question, "services", lost, &mut problems)?;
    let mut found: Vec<Datacenter> = datacenters
        .into_iter()
        .map(|object| {
            // Labels are anybody's: what is shown belongs to the datacenter, or to one of its StatefulSets.
            let own = BTreeSet::from_iter(object.uid());
            let is_own = |one: &&StatefulSet| is_of(*one, &object) && is_owned(*one, &own);
            let of_racks: BTreeSet<String> = stateful_sets.iter().filter(is_own).filter_map(|one| one.uid()).collect();
            let is_member = |pod: &&Pod| is_of(*pod, &object) && is_node(pod) && is_owned(*pod, &of_racks);
            let pods = pods.iter().filter(is_member).cloned().collect();
            let is_own = |service: &&Service| is_of(*service, &object) && is_owned(*service, &own);
            let services = services.iter().filter(is_own).cloned().collect();
            Datacenter { object, pods, knows_pods, services, answers: BTreeMap::new() }
        })
        .collect();
    problems.extend(ask(client, question.port, &mut found).await);
    Ok(Found { datacenters: found, problems })
}

fn api<K>(client: &Client, question: &Question) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match &question.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

async fn datacenters(client: &Client, question: &Question) -> Result<Vec<ScyllaDBDatacenter>, Error> {
    let api: Api<ScyllaDBDatacenter> = api(client, question);
    let (verb, outcome) = match &question.name {
        Some(name) => ("get", cluster::get(&api, name).await.map(|object| vec![object])),
        None => ("list", cluster::list(&api, &ListParams::default()).await),
    };
    let (name, namespace) = (question.name.as_deref(), question.namespace.as_deref());
    outcome.map_err(|source| Error::of(source, verb, DATACENTER, name, namespace))
}

async fn list<K>(client: &Client, question: &Question) -> kube::Result<Vec<K>>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    let of_clusters = match &question.name {
        Some(name) => format!("{}={name}", label::CLUSTER),
        None => label::CLUSTER.to_owned(),
    };
    cluster::list(&api::<K>(client, question), &ListParams::default().labels(&of_clusters)).await
}

/// What was listed; or, where it may not be, nothing and a sentence that says so.
fn or_problem<K>(
    outcome: kube::Result<Vec<K>>,
    question: &Question,
    resource: &str,
    lost: &str,
    problems: &mut Vec<String>,
) -> Result<Vec<K>, Error> {
    match outcome {
        Ok(listed) => Ok(listed),
        Err(kube::Error::Api(answer)) if answer.code == 403 => {
            let place = place(question.namespace.as_deref());
            problems.push(format!("You may not list {resource} {place}, {lost}: ask for that permission."));
            Ok(Vec::new())
        }
        Err(error) => Err(Error::Unreachable(error)),
    }
}

fn is_of<K: ResourceExt>(object: &K, datacenter: &ScyllaDBDatacenter) -> bool {
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

/// Asks the nodes that are ready for their rings; where none is, those that run. Gives what keeps it from asking.
async fn ask(client: &Client, port: u16, datacenters: &mut [Datacenter]) -> Vec<String> {
    let mut questions = Vec::new();
    for (position, datacenter) in datacenters.iter().enumerate() {
        let any_is_ready = datacenter.pods.iter().any(is_ready);
        let answering = datacenter.pods.iter().filter(|pod| if any_is_ready { is_ready(pod) } else { is_running(pod) });
        questions.extend(answering.map(|pod| (position, pod.namespace().unwrap_or_default(), pod.name_any())));
    }
    let answers: Vec<_> = stream::iter(questions)
        .map(async |(position, namespace, pod)| {
            let answer = ring(client, &namespace, &pod, port).await;
            (position, namespace, pod, answer)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut forbidden = BTreeMap::new();
    for (position, namespace, pod, answer) in answers {
        let answer = answer.map_err(|why| match why {
            NoAnswer::Forbidden => {
                forbidden.insert(namespace, ());
                "you may not ask it".to_owned()
            }
            NoAnswer::Failed(why) => why,
        });
        datacenters[position].answers.insert(pod, answer);
    }
    let sentence = |namespace: String| {
        format!(
            "You may not get pods/proxy in namespace {namespace}, so it is not known how ScyllaDB sees its nodes: ask \
             for that permission."
        )
    };
    forbidden.into_keys().map(sentence).collect()
}

async fn ring(client: &Client, namespace: &str, pod: &str, port: u16) -> Result<Ring, NoAnswer> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/nodes");
    let request = Request::get(path).body(Vec::new()).map_err(|error| NoAnswer::Failed(error.to_string()))?;
    match timeout(PATIENCE, client.request::<Ring>(request)).await {
        Err(_) => Err(NoAnswer::Failed(format!("it did not answer within {} seconds", PATIENCE.as_secs()))),
        Ok(Ok(ring)) => ring.fit().map_err(NoAnswer::Failed),
        // A node that answers has no rules about who asks, so it was the API server.
        Ok(Err(kube::Error::Api(answer))) if answer.code == 403 => Err(NoAnswer::Forbidden),
        Ok(Err(kube::Error::Api(answer))) => Err(NoAnswer::Failed(one_line(&answer.message))),
        Ok(Err(error)) => Err(NoAnswer::Failed(one_line(&error.to_string()))),
    }
}

#[cfg(test)]
mod tests;
