//! Reads an object from the API server, with the objects that it owns and the events of both.

use std::{collections::BTreeSet, fmt::Debug};

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
        core::v1::{Event, Pod},
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DynamicObject, ListParams},
};
use serde::{Serialize, de::DeserializeOwned};

use super::ExplainedKind;
use crate::cluster::{self, Error, describe_namespace, is_owned};

/// An object to explain, with what it owns.
#[derive(Clone, Debug)]
pub struct Explained {
    /// Its kind.
    pub kind: &'static str,
    /// The resource of its kind, as kubectl takes it.
    pub resource: &'static str,
    /// The object.
    pub object: DynamicObject,
    /// Its StatefulSets.
    pub stateful_sets: Vec<StatefulSet>,
    /// Its Jobs.
    pub jobs: Vec<Job>,
    /// Their pods.
    pub pods: Vec<Pod>,
    /// The events of the object, and warnings on what it owns.
    pub events: Vec<Event>,
    /// What the user may not list, in sentences.
    pub problems: Vec<String>,
}

/// Reads everything that explains the status of an object. What the user may not list is left out.
pub async fn gather(client: &Client, kind: &ExplainedKind, namespace: &str, name: &str) -> Result<Explained, Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind.api_resource());
    let object = cluster::get(&api, name)
        .await
        .map_err(|source| Error::from_request(source, "get", kind.kind, Some(name), Some(namespace)))?;
    let mut found = Explained {
        kind: kind.kind.name,
        resource: kind.kind.resource,
        object,
        stateful_sets: Vec::new(),
        jobs: Vec::new(),
        pods: Vec::new(),
        events: Vec::new(),
        problems: Vec::new(),
    };
    let all = ListParams::default();
    let of_object = kind.label.map_or(all.clone(), |label| all.labels(&format!("{label}={name}")));
    let mut uids = BTreeSet::from([found.object.uid().unwrap_or_default()]);
    found.stateful_sets = list(client, namespace, &of_object, &mut found.problems).await?;
    found.stateful_sets.retain(|one| is_owned(one, &uids));
    found.jobs = list(client, namespace, &of_object, &mut found.problems).await?;
    found.jobs.retain(|one| is_owned(one, &uids));
    uids.extend(found.stateful_sets.iter().filter_map(ResourceExt::uid));
    uids.extend(found.jobs.iter().filter_map(ResourceExt::uid));
    found.pods = list(client, namespace, &of_object, &mut found.problems).await?;
    found.pods.retain(|one| is_owned(one, &uids));
    uids.extend(found.pods.iter().filter_map(ResourceExt::uid));
    // All events of the object itself, and warnings on what it owns.
    let own = found.object.uid().unwrap_or_default();
    let warnings = ListParams::default().fields("type=Warning");
    let of_own = ListParams::default().fields(&format!("involvedObject.uid={own}"));
    let before = found.problems.len();
    found.events = list(client, namespace, &of_own, &mut found.problems).await?;
    if found.problems.len() == before {
        let warnings: Vec<Event> = list(client, namespace, &warnings, &mut found.problems).await?;
        let is_on_owned = |event: &Event| {
            let uid = event.involved_object.uid.clone().unwrap_or_default();
            uid != own && uids.contains(&uid)
        };
        found.events.extend(warnings.into_iter().filter(is_on_owned));
    }
    Ok(found)
}

/// Lists objects. Where the user may not, returns none and adds a sentence to `problems`.
async fn list<K>(
    client: &Client,
    namespace: &str,
    params: &ListParams,
    problems: &mut Vec<String>,
) -> Result<Vec<K>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug,
{
    match cluster::list(&Api::<K>::namespaced(client.clone(), namespace), params).await {
        Ok(listed) => Ok(listed),
        Err(kube::Error::Api(answer)) if answer.code == 403 => {
            let (plural, place) = (K::plural(&()), describe_namespace(Some(namespace)));
            problems.push(format!(
                "You may not list {plural} {place}, so they are left out: ask for the permission to list them."
            ));
            Ok(Vec::new())
        }
        Err(error) => Err(Error::Unreachable(error)),
    }
}

#[cfg(test)]
mod tests;
