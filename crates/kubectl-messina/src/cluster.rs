//! Access to the Kubernetes cluster: client, requests, and errors in sentences.

use std::{
    collections::BTreeSet,
    error,
    fmt::Debug,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{
    Api, Client, Config, ResourceExt,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
};

use serde::{Serialize, de::DeserializeOwned};

/// The time limit for the API server to accept a connection, and to answer.
const API_TIMEOUT: Duration = Duration::from_secs(15);

/// Arguments that select the Kubernetes cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Access {
    /// The kubeconfig file (default: the one that kubectl uses)
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig (default: its current context)
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl Access {
    /// Reads the client configuration as kubectl does, or from the ServiceAccount of the pod that this runs in.
    pub async fn config(&self) -> Result<Config, Error> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let path = self.kubeconfig.as_deref();
        let invalid = |source| Error::Kubeconfig { path: path.map(Path::to_owned), source };
        let mut config = match path {
            Some(path) => {
                let read = Kubeconfig::read_from(path).map_err(invalid)?;
                Config::from_custom_kubeconfig(read, &options).await.map_err(invalid)?
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await.map_err(invalid)?,
            None => Config::infer().await.map_err(Error::NoConfig)?,
        };
        config.connect_timeout = Some(API_TIMEOUT);
        config.read_timeout = Some(API_TIMEOUT);
        // A user who waits should see the error at once.
        config.default_retry = false;
        Ok(config)
    }
}

/// Creates a client.
pub fn client(config: Config) -> Result<Client, Error> {
    // This fails only if another part of the process has installed it before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::try_from(config).map_err(Error::Unreachable)
}

/// The maximum length of a text in an object, in characters: that of a message of a condition.
const MAX_TEXT_LENGTH: usize = 32 * 1024;
/// The maximum length of an error message, in characters.
const MAX_ERROR_LENGTH: usize = 1000;

/// Returns an object without control characters and overlong texts. Anyone who may write objects, statuses or events writes
/// what users read here, and copy from here, so everything from the API server is sanitized before it is used.
pub(crate) fn sanitize<K: Serialize + DeserializeOwned>(object: K) -> kube::Result<K> {
    let mut value = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    messina_text::sanitize(&mut value, MAX_TEXT_LENGTH);
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}

/// Reads an object, and sanitizes it.
pub(crate) async fn get<K>(api: &Api<K>, name: &str) -> kube::Result<K>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    api.get(name).await.and_then(sanitize)
}

/// Lists objects, and sanitizes them.
pub(crate) async fn list<K>(api: &Api<K>, params: &ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    api.list(params).await?.items.into_iter().map(sanitize).collect()
}

/// Sanitizes an error message, in one line.
pub(crate) fn one_line(text: &str) -> String {
    messina_text::line(text, MAX_ERROR_LENGTH)
}

/// Whether the controller of an object has one of these UIDs.
pub(crate) fn is_owned<K: ResourceExt>(object: &K, owners: &BTreeSet<String>) -> bool {
    object.owner_references().iter().any(|owner| owner.controller == Some(true) && owners.contains(&owner.uid))
}

/// A kind, as errors name it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResourceKind {
    pub(crate) name: &'static str,
    pub(crate) resource: &'static str,
    /// What to install to get the kind.
    pub(crate) provided_by: &'static str,
}

/// Why a command cannot be carried out, in a sentence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no client configuration.
    #[error(
        "There is no configuration for a Kubernetes cluster: name a readable kubeconfig with --kubeconfig or in KUBECONFIG."
    )]
    NoConfig(#[source] kube::config::InferConfigError),
    /// The kubeconfig is invalid.
    #[error("The kubeconfig{} cannot be used: {}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default(), root_cause(source))]
    Kubeconfig {
        /// The file, if one was named.
        path: Option<PathBuf>,
        /// Why it is invalid.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// The API server does not answer, or its answer is invalid.
    #[error("The request to the Kubernetes cluster failed: {}", root_cause(.0))]
    Unreachable(#[source] kube::Error),
    /// The API server does not accept the credentials.
    #[error(
        "The Kubernetes cluster does not accept your credentials: log in again, or correct the user in your kubeconfig."
    )]
    Unauthorized(#[source] kube::Error),
    /// The user lacks a permission.
    #[error("You may not {verb} {resource} {place}: ask for that permission.")]
    Forbidden {
        /// The verb of the request.
        verb: &'static str,
        /// The resource.
        resource: &'static str,
        /// The namespace, as the end of a sentence.
        place: String,
        /// The answer of the API server.
        #[source]
        source: kube::Error,
    },
    /// There is no such object.
    #[error("There is no {kind} {name} in namespace {namespace}{others}.")]
    NotFound {
        /// Its kind.
        kind: &'static str,
        /// Its name.
        name: String,
        /// The namespace that was searched.
        namespace: String,
        /// The objects that exist, as a clause, if they are known.
        others: String,
        /// The answer of the API server.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server does not serve the kind.
    #[error("This Kubernetes cluster has no {kind}s: install {provided_by} first.")]
    NotInstalled {
        /// The kind.
        kind: &'static str,
        /// What to install.
        provided_by: &'static str,
        /// The answer of the API server.
        #[source]
        source: kube::Error,
    },
    /// The API server rejects the object.
    #[error("The Kubernetes cluster rejects it: {}", root_cause(.0))]
    Rejected(#[source] kube::Error),
}

impl Error {
    /// The error for a failed request for an object, or for all objects of a kind.
    pub(crate) fn from_request(
        source: kube::Error,
        verb: &'static str,
        kind: ResourceKind,
        name: Option<&str>,
        namespace: Option<&str>,
    ) -> Self {
        let ResourceKind { name: called, resource, provided_by } = kind;
        let (code, names_object) = match &source {
            kube::Error::Api(answer) => {
                (answer.code, answer.details.as_ref().is_some_and(|details| !details.name.is_empty()))
            }
            _ => (0, false),
        };
        match (code, name) {
            (404, Some(name)) if names_object => Self::NotFound {
                kind: called,
                name: name.to_owned(),
                namespace: namespace.unwrap_or_default().to_owned(),
                others: String::new(),
                source: Box::new(source),
            },
            (404, _) => Self::NotInstalled { kind: called, provided_by, source },
            (403, _) => Self::Forbidden { verb, resource, place: describe_namespace(namespace), source },
            (401, _) => Self::Unauthorized(source),
            _ => Self::Unreachable(source),
        }
    }
}

/// The namespace, or all namespaces, as the end of a sentence.
pub(crate) fn describe_namespace(namespace: Option<&str>) -> String {
    namespace.map_or("in all namespaces".to_owned(), |name| format!("in namespace {name}"))
}

/// The root cause of an error, as the end of a sentence.
fn root_cause(error: &(dyn error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    let text = last.to_string();
    // A message may have several lines; the first one is the summary.
    let text = one_line(text.lines().next().unwrap_or_default());
    format!("{}.", text.trim_end_matches('.'))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use http::StatusCode;
    use k8s_openapi::api::core::v1::Event;
    use serde_json::json;

    use super::*;
    use crate::testing::{answer, failure, server};

    #[tokio::test]
    async fn answers_of_the_api_server_are_sanitized() {
        let hostile = "\u{1b}]0;x\u{7}\u{1b}[2Ja\u{202e}b\u{9b}1A\rc\nd";
        let event = json!({"metadata": {"name": "x"}, "involvedObject": {}, "message": hostile, "reason": hostile});
        let listed = crate::testing::list(std::slice::from_ref(&event));
        let client = server(move |request: http::Request<kube::client::Body>| match request.uri().path() {
            path if path.ends_with("/events") => answer(&listed),
            path if path.ends_with("/x") => answer(&event),
            _ => failure(StatusCode::CONFLICT, hostile, &json!({})),
        });
        let api: Api<Event> = Api::namespaced(client, "shop");
        let mut seen = list(&api, &ListParams::default()).await.unwrap();
        seen.push(get(&api, "x").await.unwrap());
        for event in seen {
            assert_eq!(
                (event.message.as_deref(), event.reason.as_deref()),
                (Some("]0;xab\nc\nd"), Some("]0;xab\nc\nd"))
            );
        }
        let error = Error::Rejected(get(&api, "y").await.unwrap_err()).to_string();
        assert!(!error.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{error:?}");
    }
}
