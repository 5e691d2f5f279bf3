//! The Kubernetes cluster that a person means: how to reach it, and why it does not give what was asked for.

use std::{
    error,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

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
    let text = text.lines().next().unwrap_or_default().trim_end_matches('.');
    format!("{text}.")
}
