//! Looks up Etcds, creates tasks, and lists them.

use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, PostParams},
};
use messina_api::druid::v1alpha1::{Etcd, EtcdOperatorTask};

use super::{Connection, ETCD, TASK};
use crate::cluster::{self, Error};

/// How many existing Etcds an error names at most.
const MAX_NAMES: usize = 8;

/// Checks that an Etcd exists. Returns a warning where the user may not read it.
pub(super) async fn find(connection: &Connection, name: &str) -> Result<Option<String>, Error> {
    let api: Api<Etcd> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let Err(source) = api.get_metadata(name).await else { return Ok(None) };
    match Error::from_request(source, "get", ETCD, Some(name), Some(&connection.namespace)) {
        Error::Forbidden { .. } => Ok(Some(format!(
            "You may not get {} in namespace {}, so it is unknown whether the Etcd {name} exists.",
            ETCD.resource, connection.namespace
        ))),
        Error::NotFound { kind, name, namespace, source, .. } => {
            let others = api.list_metadata(&ListParams::default()).await;
            let names = others.map(|list| list.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
            // Without the permission to list Etcds, the error does not name others.
            let others = names.map(|names| others_clause(&names)).unwrap_or_default();
            Err(Error::NotFound { kind, name, namespace, others, source })
        }
        other => Err(other),
    }
}

fn others_clause(names: &[String]) -> String {
    match names {
        [] => ", and there is no other Etcd".to_owned(),
        [one] => format!("; there is {one}"),
        [some @ .., last] if names.len() <= MAX_NAMES => format!("; there are {} and {last}", some.join(", ")),
        many => format!("; there are {} others", many.len()),
    }
}

/// Creates a task. The API server generates its name.
pub(super) async fn create(connection: &Connection, task: &EtcdOperatorTask) -> Result<EtcdOperatorTask, Error> {
    let api: Api<EtcdOperatorTask> = Api::namespaced(connection.client.clone(), &connection.namespace);
    api.create(&PostParams::default(), task).await.and_then(cluster::sanitize).map_err(|source| match &source {
        // A missing or terminating namespace, a quota or a webhook: the message of the API server says what is wrong.
        kube::Error::Api(answer) if is_rejection(answer.code, &answer.message) => Error::Rejected(source),
        _ => Error::from_request(source, "create", TASK, None, Some(&connection.namespace)),
    })
}

fn is_rejection(code: u16, message: &str) -> bool {
    match code {
        401 => false,
        403 => !message.contains(" cannot create resource "),
        404 => message.starts_with("namespaces "),
        code => (400..500).contains(&code),
    }
}

/// Tasks as listed.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    pub(super) tasks: Vec<EtcdOperatorTask>,
    /// Whether these are the tasks of all namespaces, or only of one.
    pub(super) all_namespaces_listed: bool,
}

/// Lists the tasks of all namespaces where the user may, because tasks of other namespaces can be queued for the same Etcd.
pub(super) async fn all(client: &Client, namespace: Option<&str>) -> Result<Listed, Error> {
    let everywhere = cluster::list(&Api::<EtcdOperatorTask>::all(client.clone()), &ListParams::default()).await;
    let (listed, requested) = match (everywhere, namespace) {
        (Err(kube::Error::Api(answer)), Some(namespace)) if answer.code == 403 => {
            let api: Api<EtcdOperatorTask> = Api::namespaced(client.clone(), namespace);
            (cluster::list(&api, &ListParams::default()).await, Some(namespace))
        }
        (other, _) => (other, None),
    };
    let all_namespaces_listed = requested.is_none();
    listed
        .map(|tasks| Listed { tasks, all_namespaces_listed })
        .map_err(|source| Error::from_request(source, "list", TASK, None, requested))
}

#[cfg(test)]
mod tests;
