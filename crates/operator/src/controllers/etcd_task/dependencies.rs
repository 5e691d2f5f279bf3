//! How handlers reach an etcd cluster, its sidecars and Kubernetes.

use std::sync::Arc;

use k8s_openapi::api::{batch::v1::Job, core::v1::Secret};
use kube::{Api, Client};
use messina_api::{
    druid::v1alpha1::{Etcd, TlsConfig},
    names,
};
use messina_clients::{Reach, backup_restore, backup_restore::Sidecar, etcd};
use messina_plan::etcd_task::{TaskError, TaskResult, code};
use messina_runtime::{error::chain, fence::Fence, queue::ObjectKey, store::Store};

/// The key of a Secret that holds the authorities, unless the Etcd names another one.
const BUNDLE: &str = "bundle.crt";

/// What handlers need besides the task.
pub struct Tools {
    /// Kubernetes.
    pub client: Client,
    /// How names are found.
    pub reach: Reach,
    /// Whether this process leads: requests that change something outside do not pass the one in front of Kubernetes.
    pub fence: Fence,
    /// The image of etcd-backup-restore for Jobs, where the Etcd names none.
    pub backup_restore_image: String,
    /// The Jobs of tasks.
    pub jobs: Arc<Store<Job>>,
}

impl Tools {
    /// The sidecars of an etcd cluster that take its snapshots.
    pub async fn sidecar(&self, etcd: &Etcd) -> Result<Sidecar, TaskResult> {
        let backup = etcd.spec.backup.as_ref();
        let port = backup.and_then(|backup| backup.port).unwrap_or(backup_restore::PORT.into());
        let tls = backup.and_then(|backup| backup.tls.as_ref());
        let authorities = match tls {
            Some(tls) => Some(self.authorities(etcd, tls, "spec.backup.tls").await?),
            None => None,
        };
        let Service { host, verified } = Service::of(etcd);
        let address = format!("{}://{host}:{port}", scheme(tls.is_some()));
        Sidecar::new(&address, authorities.as_deref(), &self.reach)
            .and_then(|sidecar| sidecar.verified_as(&verified))
            .map_err(|error| TaskResult::failed(TaskError::new(error.code(), chain(&error))))
    }

    /// How to speak with the members of an etcd cluster.
    pub async fn members(&self, etcd: &Etcd) -> Result<Members, TaskResult> {
        let config = etcd.spec.etcd.as_ref();
        let port = config.and_then(|config| config.client_port).unwrap_or(etcd::PORT.into());
        let tls = match config.and_then(|config| config.client_url_tls.as_ref()) {
            Some(tls) => {
                let authorities = self.authorities(etcd, tls, "spec.etcd.clientUrlTls").await?;
                let identity = match tls.client_tls_secret_ref.as_ref().and_then(|secret| secret.name.as_deref()) {
                    Some(name) => Some(self.identity(etcd, name).await?),
                    None => None,
                };
                Some(etcd::Tls { authorities, identity })
            }
            None => None,
        };
        let Service { host, verified } = Service::of(etcd);
        let address = format!("{}://{host}:{port}", scheme(tls.is_some()));
        Ok(Members { address, verified, tls, reach: self.reach.clone() })
    }

    async fn authorities(&self, etcd: &Etcd, tls: &TlsConfig, field: &str) -> Result<Vec<u8>, TaskResult> {
        let reference = tls.tls_ca_secret_ref.clone().unwrap_or_default();
        let Some(name) = reference.name else {
            return Err(TaskResult::failed(TaskError::new(
                code::PRECONDITION,
                format!("{field}.tlsCASecretRef.name of the Etcd is not set, so that nobody can be trusted"),
            )));
        };
        let key = reference.data_key.unwrap_or_else(|| BUNDLE.into());
        self.secret(etcd, &name).await.and_then(|secret| value(&secret, &name, &key))
    }

    async fn identity(&self, etcd: &Etcd, name: &str) -> Result<(Vec<u8>, Vec<u8>), TaskResult> {
        let secret = self.secret(etcd, name).await?;
        Ok((value(&secret, name, "tls.crt")?, value(&secret, name, "tls.key")?))
    }

    /// A Secret of an etcd cluster, which is in its namespace.
    pub async fn secret(&self, etcd: &Etcd, name: &str) -> Result<Secret, TaskResult> {
        let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey { namespace: Some(namespace.to_owned()), name: name.to_owned() };
        if !key.is_possible() {
            let description =
                format!("The Etcd names {name:?} as a Secret, and no Secret can have this name: correct the Etcd");
            return Err(TaskResult::retry(TaskError::new("ERR_SECRET_NOT_READ", description)));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        api.get(name).await.map_err(|error| {
            let description = format!("The Secret {namespace}/{name} of the Etcd cannot be read: {}", chain(&error));
            TaskResult::retry(TaskError::new("ERR_SECRET_NOT_READ", description))
        })
    }
}

fn value(secret: &Secret, name: &str, key: &str) -> Result<Vec<u8>, TaskResult> {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone()).ok_or_else(|| {
        let description = format!("The Secret {name} has no key {key:?}");
        TaskResult::retry(TaskError::new("ERR_SECRET_NOT_READ", description))
    })
}

fn scheme(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}

/// The Service behind which all members answer.
#[derive(Debug, PartialEq, Eq)]
struct Service {
    /// Its name in the cluster. Without `.svc` it could be a public name: `main-client.dev` is one of the domain `dev`.
    host: String,
    /// What certificates are checked for. The Secrets of an Etcd are made by its user; all that is certain of a certificate
    /// with which etcd-druid works is that it has this name, because etcd-druid itself dials it. The authority of the Etcd
    /// signed the certificate, so the shorter name is as good a proof.
    verified: String,
}

impl Service {
    fn of(etcd: &Etcd) -> Self {
        let name = names::etcd::client_service(etcd.metadata.name.as_deref().unwrap_or_default());
        let verified = format!("{name}.{}", etcd.metadata.namespace.as_deref().unwrap_or_default());
        Self { host: format!("{verified}.svc"), verified }
    }
}

/// How to speak with the members of an etcd cluster.
pub struct Members {
    address: String,
    verified: String,
    tls: Option<etcd::Tls>,
    reach: Reach,
}

impl Members {
    /// Whichever member answers.
    pub fn any(&self) -> Result<etcd::Etcd, etcd::Error> {
        self.at(&self.address)?.verified_as(&self.verified)
    }

    /// The member that serves at this address, which its own certificate has to be for.
    pub fn at(&self, address: &str) -> Result<etcd::Etcd, etcd::Error> {
        etcd::Etcd::new(address, self.tls.as_ref(), &self.reach)
    }
}

/// What a call to etcd that failed means for a task.
pub(super) fn of_etcd(error: &etcd::Error) -> TaskResult {
    let error = TaskError::new(error.code(), chain(error));
    if error.is_final() { TaskResult::failed(error) } else { TaskResult::retry(error) }
}

#[cfg(test)]
mod tests {
    use kube::api::ObjectMeta;

    use super::*;

    #[test]
    fn the_service_is_dialled_in_the_cluster_and_verified_as_etcd_druid_does() {
        let metadata = ObjectMeta { name: Some("main".into()), namespace: Some("dev".into()), ..ObjectMeta::default() };
        let service = Service::of(&Etcd { metadata, ..Etcd::default() });
        assert_eq!((service.host.as_str(), service.verified.as_str()), ("main-client.dev.svc", "main-client.dev"));
    }
}
