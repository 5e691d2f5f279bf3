//! Asks the API server for an object, for what it has, and for what was said of both.

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

use super::Subject;
use crate::cluster::{self, Error, is_owned, place};

/// What is known of an object.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its kind.
    pub kind: &'static str,
    /// What its kind is called in a command.
    pub resource: &'static str,
    /// The object.
    pub object: DynamicObject,
    /// Its StatefulSets.
    pub stateful_sets: Vec<StatefulSet>,
    /// Its Jobs.
    pub jobs: Vec<Job>,
    /// Their pods.
    pub pods: Vec<Pod>,
    /// What was said of the object, and what is wrong with what it has.
    pub events: Vec<Event>,
    /// What may not be seen.
    pub problems: Vec<String>,
}

/// Everything that explains how an object stands. Where something may not be seen, the rest is gathered.
pub async fn gather(client: &Client, subject: &Subject, namespace: &str, name: &str) -> Result<Found, Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &subject.resource());
    let object = cluster::get(&api, name)
        .await
        .map_err(|source| Error::of(source, "get", subject.kind, Some(name), Some(namespace)))?;
    let mut found = Found {
        kind: subject.kind.name,
        resource: subject.kind.resource,
        object,
        stateful_sets: Vec::new(),
        jobs: Vec::new(),
        pods: Vec::new(),
        events: Vec::new(),
        problems: Vec::new(),
    };
    let all = ListParams::default();
    let of_object = subject.label.map_or(all.clone(), |label| all.labels(&format!("{label}={name}")));
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
    // What was said of the object itself, and warnings on what it has.
    let own = found.object.uid().unwrap_or_default();
    let warnings = ListParams::default().fields("type=Warning");
    let of_own = ListParams::default().fields(&format!("involvedObject.uid={own}"));
    let before = found.problems.len();
    found.events = list(client, namespace, &of_own, &mut found.problems).await?;
    if found.problems.len() == before {
        let warnings: Vec<Event> = list(client, namespace, &warnings, &mut found.problems).await?;
        let is_of_others = |event: &Event| {
            let uid = event.involved_object.uid.clone().unwrap_or_default();
            uid != own && uids.contains(&uid)
        };
        found.events.extend(warnings.into_iter().filter(is_of_others));
    }
    Ok(found)
}

/// What was listed; or, where it may not be, nothing and a sentence that says so.
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
            let (plural, place) = (K::plural(&()), place(Some(namespace)));
            problems.push(format!("You may not list {plural} {place}, so they are left out: ask for that permission."));
            Ok(Vec::new())
        }
        Err(error) => Err(Error::Unreachable(error)),
    }
}

#[cfg(test)]
mod tests;
