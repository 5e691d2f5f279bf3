//! Asks the API server for Etcds and tasks, and creates tasks.

use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTask};

use super::{ETCD, Place, TASK};
use crate::cluster::{self, Error};

/// So many Etcds are named to whoever has named none of them.
const FEW: usize = 8;

/// Whether there is such an Etcd. Gives a sentence where that may not be seen.
pub(super) async fn find(place: &Place, name: &str) -> Result<Option<String>, Error> {
    let api: Api<Etcd> = Api::namespaced(place.client.clone(), &place.namespace);
    let Err(source) = api.get_metadata(name).await else { return Ok(None) };
    match Error::of(source, "get", ETCD, Some(name), Some(&place.namespace)) {
        Error::Forbidden { .. } => Ok(Some(format!(
            "You may not get {} in namespace {}, so it is not known whether there is an Etcd {name}.",
            ETCD.resource, place.namespace
        ))),
        Error::NotFound { kind, name, namespace, source, .. } => {
            let others = api.list_metadata(&ListParams::default()).await;
            let names = others.map(|list| list.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
            // Who may not see which ones there are still gets the answer.
            let others = names.map(|names| others_clause(&names)).unwrap_or_default();
            Err(Error::NotFound { kind, name, namespace, others, source })
        }
        other => Err(other),
    }
}

fn others_clause(names: &[String]) -> String {
    match names {
        [] => ", and no other".to_owned(),
        [one] => format!("; there is {one}"),
        [some @ .., last] if names.len() <= FEW => format!("; there are {} and {last}", some.join(", ")),
        many => format!("; there are {} others", many.len()),
    }
}

/// Creates a task, under a name that the API server gives it.
pub(super) async fn create(place: &Place, task: &EtcdOperatorTask) -> Result<EtcdOperatorTask, Error> {
    let api: Api<EtcdOperatorTask> = Api::namespaced(place.client.clone(), &place.namespace);
    api.create(&PostParams::default(), task).await.and_then(cluster::fit).map_err(|source| match &source {
        // A namespace that is gone or goes, a quota, a webhook: it says itself what is wrong.
        kube::Error::Api(answer) if is_about_something_else(answer.code, &answer.message) => Error::Refused(source),
        _ => Error::of(source, "create", TASK, None, Some(&place.namespace)),
    })
}

fn is_about_something_else(code: u16, message: &str) -> bool {
    match code {
        401 => false,
        403 => !message.contains(" cannot create resource "),
        404 => message.starts_with("namespaces "),
        code => (400..500).contains(&code),
    }
}

/// Tasks that were listed.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) tasks: Vec<EtcdOperatorTask>,
    /// Whether these are the tasks of all namespaces.
    pub(super) is_everywhere: bool,
}

/// All tasks: of all namespaces where that is allowed, because those of others may be in line for the same Etcd.
pub(super) async fn all(client: &Client, namespace: Option<&str>) -> Result<Listed, Error> {
    let everywhere = cluster::list(&Api::<EtcdOperatorTask>::all(client.clone()), &ListParams::default()).await;
    let (listed, asked) = match (everywhere, namespace) {
        (Err(kube::Error::Api(answer)), Some(namespace)) if answer.code == 403 => {
            let api: Api<EtcdOperatorTask> = Api::namespaced(client.clone(), namespace);
            (cluster::list(&api, &ListParams::default()).await, Some(namespace))
        }
        (other, _) => (other, None),
    };
    let is_everywhere = asked.is_none();
    listed.map(|tasks| Listed { tasks, is_everywhere }).map_err(|source| Error::of(source, "list", TASK, None, asked))
}

#[cfg(test)]
mod tests;
