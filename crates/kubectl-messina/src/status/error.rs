//! Why nothing can be shown.

use std::{error, path::PathBuf};

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
    #[error("There is no ScyllaDBDatacenter {name} in namespace {namespace}.")]
    NotFound {
        /// Its name.
        name: String,
        /// Where it was looked for.
        namespace: String,
        /// The answer.
        #[source]
        source: kube::Error,
    },
    /// The API server does not have the kind.
    #[error("This Kubernetes cluster has no ScyllaDBDatacenters: install Messina's definitions first.")]
    NotInstalled(#[source] kube::Error),
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
