//! Clients and settings with which handlers access an etcd cluster, its sidecars and Kubernetes.

use std::sync::Arc;

use k8s_openapi::api::{batch::v1::Job, core::v1::Secret};
use kube::{Api, Client};
use messina_api::{
    druid::v1alpha1::{Etcd, TlsConfig},
    names,
};
use messina_clients::{Resolver, backup_restore, backup_restore::Sidecar, etcd};
use messina_plan::etcd_task::{TaskError, TaskResult, code};
use messina_runtime::{error::chain, fence::Fence, queue::ObjectKey, store::Store};

/// The key of the CA bundle in a Secret, unless the Etcd sets `dataKey`.
const DEFAULT_CA_KEY: &str = "bundle.crt";

/// The dependencies of handlers.
pub struct Dependencies {
    /// Client of the Kubernetes API.
    pub client: Client,
    /// Resolver of the names of etcd members and sidecars.
    pub resolver: Resolver,
    /// Whether this process is the leader. The client of the Kubernetes API checks it by itself; calls to etcd and to
    /// sidecars have to check it here.
    pub fence: Fence,
    /// The image of etcd-backup-restore for Jobs, unless the Etcd sets one.
    pub backup_restore_image: String,
    /// The Jobs of tasks.
    pub jobs: Arc<Store<Job>>,
}

impl Dependencies {
    /// Returns a client of the etcd-backup-restore sidecars of an etcd cluster.
    pub async fn sidecar(&self, etcd: &Etcd) -> Result<Sidecar, TaskResult> {
        let backup = etcd.spec.backup.as_ref();
        let port = backup.and_then(|backup| backup.port).unwrap_or(backup_restore::PORT.into());
        let tls = backup.and_then(|backup| backup.tls.as_ref());
        let ca_bundle = match tls {
            Some(tls) => Some(self.ca_bundle(etcd, tls, "spec.backup.tls").await?),
            None => None,
        };
        let ClientService { host, server_name } = ClientService::of(etcd);
        let address = format!("{}://{host}:{port}", scheme(tls.is_some()));
        Sidecar::new(&address, ca_bundle.as_deref(), &self.resolver)
            .and_then(|sidecar| sidecar.verified_as(&server_name))
            .map_err(|error| TaskResult::failed(TaskError::new(error.code(), chain(&error))))
    }

    /// Returns a connector to the members of an etcd cluster.
    pub async fn members(&self, etcd: &Etcd) -> Result<MemberConnector, TaskResult> {
        let config = etcd.spec.etcd.as_ref();
        let port = config.and_then(|config| config.client_port).unwrap_or(etcd::PORT.into());
        let tls = match config.and_then(|config| config.client_url_tls.as_ref()) {
            Some(tls) => {
                let ca_bundle = self.ca_bundle(etcd, tls, "spec.etcd.clientUrlTls").await?;
                let client_certificate =
                    match tls.client_tls_secret_ref.as_ref().and_then(|secret| secret.name.as_deref()) {
                        Some(name) => Some(self.client_certificate(etcd, name).await?),
                        None => None,
                    };
                Some(etcd::Tls { ca_bundle, client_certificate })
            }
            None => None,
        };
        let ClientService { host, server_name } = ClientService::of(etcd);
        let address = format!("{}://{host}:{port}", scheme(tls.is_some()));
        Ok(MemberConnector { address, server_name, tls, resolver: self.resolver.clone() })
    }

    async fn ca_bundle(&self, etcd: &Etcd, tls: &TlsConfig, field: &str) -> Result<Vec<u8>, TaskResult> {
        let reference = tls.tls_ca_secret_ref.clone().unwrap_or_default();
        let Some(name) = reference.name else {
            return Err(TaskResult::failed(TaskError::new(
                code::PRECONDITION,
                format!(
                    "{field}.tlsCASecretRef.name of the Etcd is not set, so the operator cannot verify the server \
                     certificate: set it in the Etcd, then create another task"
                ),
            )));
        };
        let key = reference.data_key.unwrap_or_else(|| DEFAULT_CA_KEY.into());
        self.secret(etcd, &name).await.and_then(|secret| value(&secret, &name, &key))
    }

    async fn client_certificate(&self, etcd: &Etcd, name: &str) -> Result<(Vec<u8>, Vec<u8>), TaskResult> {
        let secret = self.secret(etcd, name).await?;
        Ok((value(&secret, name, "tls.crt")?, value(&secret, name, "tls.key")?))
    }

    /// Reads a Secret of an etcd cluster from its namespace.
    pub async fn secret(&self, etcd: &Etcd, name: &str) -> Result<Secret, TaskResult> {
        let namespace = etcd.metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey { namespace: Some(namespace.to_owned()), name: name.to_owned() };
        if !key.is_possible() {
            let description =
                format!("The Etcd references a Secret named {name:?}, which is not a valid name: correct the Etcd");
            return Err(TaskResult::retry(TaskError::new("ERR_SECRET_NOT_READ", description)));
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        api.get(name).await.map_err(|error| {
            let description =
                format!("The operator cannot read Secret {namespace}/{name} of the Etcd: {}", chain(&error));
            TaskResult::retry(TaskError::new("ERR_SECRET_NOT_READ", description))
        })
    }
}

fn value(secret: &Secret, name: &str, key: &str) -> Result<Vec<u8>, TaskResult> {
    secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.clone()).ok_or_else(|| {
        let description = format!("Secret {name} of the Etcd has no key {key:?}: add it");
        TaskResult::retry(TaskError::new("ERR_SECRET_NOT_READ", description))
    })
}

fn scheme(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}

/// The client Service of an etcd cluster, which selects all members.
#[derive(Debug, PartialEq, Eq)]
struct ClientService {
    /// Its DNS name in the Kubernetes cluster. Without `.svc` it could be a public name: `main-client.dev` is in the
    /// domain `dev`.
    host: String,
    /// The name that the server certificate is verified against. Users create the certificates of an Etcd. A
    /// certificate that works with etcd-druid is certain to have only this name, because etcd-druid dials it. The CA
    /// of the Etcd signed the certificate, so the shorter name is as secure.
    server_name: String,
}

impl ClientService {
    fn of(etcd: &Etcd) -> Self {
        let name = names::etcd::client_service(etcd.metadata.name.as_deref().unwrap_or_default());
        let server_name = format!("{name}.{}", etcd.metadata.namespace.as_deref().unwrap_or_default());
        Self { host: format!("{server_name}.svc"), server_name }
    }
}

/// Creates clients of the members of an etcd cluster.
pub struct MemberConnector {
    address: String,
    server_name: String,
    tls: Option<etcd::Tls>,
    resolver: Resolver,
}

impl MemberConnector {
    /// Returns a client of the Service, behind which any member may respond.
    pub fn any_member(&self) -> Result<etcd::Etcd, etcd::Error> {
        self.member_at(&self.address)?.verified_as(&self.server_name)
    }

    /// Returns a client of the member at this URL, whose host its certificate has to be for.
    pub fn member_at(&self, address: &str) -> Result<etcd::Etcd, etcd::Error> {
        etcd::Etcd::new(address, self.tls.as_ref(), &self.resolver)
    }
}

/// Returns the result of a task whose call to etcd failed.
pub(super) fn result_of_error(error: &etcd::Error) -> TaskResult {
    let task_error = TaskError::new(error.code(), chain(error));
    if error.is_permanent() { TaskResult::failed(task_error) } else { TaskResult::retry(task_error) }
}

#[cfg(test)]
mod tests {
    use kube::api::ObjectMeta;

    use super::*;

    #[test]
    fn client_service_is_dialled_in_the_cluster_and_verified_by_its_short_name() {
        let metadata = ObjectMeta { name: Some("main".into()), namespace: Some("dev".into()), ..ObjectMeta::default() };
        let service = ClientService::of(&Etcd { metadata, ..Etcd::default() });
        assert_eq!((service.host.as_str(), service.server_name.as_str()), ("main-client.dev.svc", "main-client.dev"));
    }
}
