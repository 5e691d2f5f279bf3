//! The Kubernetes cluster that a person means: how to reach it, and why it does not give what was asked for.

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

/// How long the API server may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// How to reach the cluster.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Access {
    /// A kubeconfig; without it, what kubectl would use
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig, if not its current one
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

impl Access {
    /// How to reach the API server: as kubectl does, or from inside of a pod.
    pub async fn config(&self) -> Result<Config, Error> {
        let options = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let path = self.kubeconfig.as_deref();
        let wrong = |source| Error::Kubeconfig { path: path.map(Path::to_owned), source };
        let mut config = match path {
            Some(path) => {
                let read = Kubeconfig::read_from(path).map_err(wrong)?;
                Config::from_custom_kubeconfig(read, &options).await.map_err(wrong)?
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await.map_err(wrong)?,
            None => Config::infer().await.map_err(Error::NoConfig)?,
        };
        config.connect_timeout = Some(PATIENCE);
        config.read_timeout = Some(PATIENCE);
        // A person who waits is better told at once.
        config.default_retry = false;
        Ok(config)
    }
}

/// A client for it.
pub fn client(config: Config) -> Result<Client, Error> {
    // Another part of the process may have been first, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::try_from(config).map_err(Error::Unreachable)
}

/// How long a text of an object may be, in characters; messages of conditions are not longer.
const LONGEST: usize = 32 * 1024;
/// How much is shown of what goes wrong, in characters.
const LONGEST_ERROR: usize = 1000;

/// An object as it may be shown. Whoever may write objects, their statuses or events writes what people read here, and copy:
/// all that is read from the API server is made fit before anything is made of it.
pub(crate) fn fit<K: Serialize + DeserializeOwned>(object: K) -> kube::Result<K> {
    let mut value = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    messina_text::sanitize(&mut value, LONGEST);
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}

/// One object, fit to be shown.
pub(crate) async fn get<K>(api: &Api<K>, name: &str) -> kube::Result<K>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    api.get(name).await.and_then(fit)
}

/// Objects, fit to be shown.
pub(crate) async fn list<K>(api: &Api<K>, params: &ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    api.list(params).await?.items.into_iter().map(fit).collect()
}

/// What went wrong, in one line.
pub(crate) fn one_line(text: &str) -> String {
    messina_text::line(text, LONGEST_ERROR)
}

/// Whether an object is owned by one of these.
pub(crate) fn is_owned<K: ResourceExt>(object: &K, owners: &BTreeSet<String>) -> bool {
    object.owner_references().iter().any(|owner| owner.controller == Some(true) && owners.contains(&owner.uid))
}

/// A kind of objects, in words for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) resource: &'static str,
    /// What to install to have it.
    pub(crate) comes_with: &'static str,
}

/// Why nothing can be shown, in a sentence for people.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says how to reach the API server.
    #[error(
        "It is not known how to reach a Kubernetes cluster: name a kubeconfig that can be read with --kubeconfig or in \
         KUBECONFIG."
    )]
    NoConfig(#[source] kube::config::InferConfigError),
    /// The kubeconfig cannot be used.
    #[error("The kubeconfig{} cannot be used: {}", path.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default(), root(source))]
    Kubeconfig {
        /// Which one, if one was named.
        path: Option<PathBuf>,
        /// What is wrong with it.
        #[source]
        source: kube::config::KubeconfigError,
    },
    /// The API server does not answer, or not as it should.
    #[error("The Kubernetes cluster cannot be asked: {}", root(.0))]
    Unreachable(#[source] kube::Error),
    /// It does not know who asks.
    #[error("The Kubernetes cluster does not know you: log in again, or correct the user in your kubeconfig.")]
    Unknown(#[source] kube::Error),
    /// The user lacks a permission.
    #[error("You may not {verb} {resource} {place}: ask for that permission.")]
    Forbidden {
        /// What was to be done.
        verb: &'static str,
        /// With what.
        resource: &'static str,
        /// Where.
        place: String,
        /// The answer.
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
        /// Where it was looked for.
        namespace: String,
        /// Which ones there are, as a clause, if that is known.
        others: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server does not have the kind.
    #[error("This Kubernetes cluster has no {kind}s: install {comes_with} first.")]
    NotInstalled {
        /// The kind.
        kind: &'static str,
        /// What to install.
        comes_with: &'static str,
        /// The answer.
        #[source]
        source: kube::Error,
    },
    /// The API server does not take what it is given.
    #[error("The Kubernetes cluster refuses it: {}", root(.0))]
    Refused(#[source] kube::Error),
}

impl Error {
    /// What it means that an object, or all of a kind, could not be had.
    pub(crate) fn of(
        source: kube::Error,
        verb: &'static str,
        kind: Kind,
        name: Option<&str>,
        namespace: Option<&str>,
    ) -> Self {
        let Kind { name: called, resource, comes_with } = kind;
        let (code, names_one) = match &source {
            kube::Error::Api(answer) => {
                (answer.code, answer.details.as_ref().is_some_and(|about| !about.name.is_empty()))
            }
            _ => (0, false),
        };
        match (code, name) {
            (404, Some(name)) if names_one => Self::NotFound {
                kind: called,
                name: name.to_owned(),
                namespace: namespace.unwrap_or_default().to_owned(),
                others: String::new(),
                source: Box::new(source),
            },
            (404, _) => Self::NotInstalled { kind: called, comes_with, source },
            (403, _) => Self::Forbidden { verb, resource, place: place(namespace), source },
            (401, _) => Self::Unknown(source),
            _ => Self::Unreachable(source),
        }
    }
}

/// Where something is, as the end of a sentence.
pub(crate) fn place(namespace: Option<&str>) -> String {
    namespace.map_or("in all namespaces".to_owned(), |name| format!("in namespace {name}"))
}

/// What an error goes back to, as a clause that ends a sentence.
fn root(error: &(dyn error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    let text = last.to_string();
    // Messages may have lines; the first says what it is about.
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
    async fn whatever_the_api_server_gives_is_fit_to_be_shown() {
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
        let error = Error::Refused(get(&api, "y").await.unwrap_err()).to_string();
        assert!(!error.chars().any(|letter| letter.is_control() || letter == '\u{202e}'), "{error:?}");
    }
}
