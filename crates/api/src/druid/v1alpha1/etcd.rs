//! The fields of an [`Etcd`] that tasks need.
//!
//! These types are for reading only: they omit most fields, so writing an Etcd would lose them. etcd-druid installs its
//! definition.

use k8s_openapi::{api::core::v1::SecretReference, apimachinery::pkg::apis::meta::v1::Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// An etcd cluster.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "druid.gardener.cloud",
    version = "v1alpha1",
    kind = "Etcd",
    plural = "etcds",
    namespaced,
    status = "EtcdStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    schema = "disabled"
)]
pub struct EtcdSpec {
    /// Number of members. 0 hibernates the etcd cluster.
    pub replicas: Option<i32>,
    /// How the members serve.
    pub etcd: Option<EtcdConfig>,
    /// The sidecar that takes snapshots.
    pub backup: Option<BackupSpec>,
}

impl Etcd {
    /// Number of members that are ready. etcd-druid omits `status.readyReplicas` when it is zero, so an absent field is 0.
    pub fn ready_replicas(&self) -> i32 {
        self.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)
    }
}

/// How the members of an etcd cluster serve.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdConfig {
    /// Port for clients. Defaults to 2379.
    pub client_port: Option<i32>,
    /// TLS towards clients. If unset, etcd serves plain text.
    pub client_url_tls: Option<TlsConfig>,
}

/// The sidecar of each member that takes snapshots.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackupSpec {
    /// Port of the sidecar. Defaults to 8080.
    pub port: Option<i32>,
    /// TLS of the sidecar. If unset, the sidecar serves plain text.
    pub tls: Option<TlsConfig>,
    /// The store of the snapshots. If unset, no snapshots are taken.
    pub store: Option<StoreSpec>,
    /// The image of the sidecar.
    pub image: Option<String>,
}

/// A store of snapshots.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StoreSpec {
    /// The provider: S3, GCS, ABS, Swift, OSS, OCS, ECS, or Local for a directory on the Kubernetes node.
    pub provider: Option<String>,
    /// The bucket, container or folder.
    pub container: Option<String>,
    /// The prefix of the names of all snapshots.
    pub prefix: Option<String>,
    /// The Secret with the credentials of the provider.
    pub secret_ref: Option<SecretReference>,
    /// The endpoint of the provider, if it is not the default one.
    pub endpoint_override: Option<String>,
}

/// TLS settings of clients.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsConfig {
    /// The Secret with the CA certificates for the server certificate.
    #[serde(rename = "tlsCASecretRef")]
    pub tls_ca_secret_ref: Option<KeyedSecretReference>,
    /// The Secret, of type kubernetes.io/tls, with the client certificate. If unset, clients present no certificate.
    #[serde(rename = "clientTLSSecretRef")]
    pub client_tls_secret_ref: Option<SecretReference>,
}

/// A key of a Secret.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KeyedSecretReference {
    /// Name of the Secret.
    pub name: Option<String>,
    /// Ignored: the Secrets of an Etcd are in its namespace.
    pub namespace: Option<String>,
    /// The key. Defaults to `bundle.crt`.
    pub data_key: Option<String>,
}

/// Status of an etcd cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdStatus {
    /// The most recent generation of the Etcd that etcd-druid has observed.
    pub observed_generation: Option<i64>,
    /// Whether all members are ready.
    pub ready: Option<bool>,
    /// Number of members that are ready; absent when there are none. Read it with [`Etcd::ready_replicas`].
    pub ready_replicas: Option<i32>,
    /// Number of members.
    pub replicas: Option<i32>,
    /// Conditions of the cluster: Ready when it has a quorum, AllMembersReady, BackupReady and others.
    pub conditions: Option<Vec<EtcdCondition>>,
    /// The members.
    pub members: Option<Vec<EtcdMember>>,
}

/// A condition of an etcd cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdCondition {
    /// The type of the condition.
    #[serde(rename = "type")]
    pub condition_type: Option<String>,
    /// The status: True, False or Unknown.
    pub status: Option<String>,
    /// The machine-readable reason.
    pub reason: Option<String>,
    /// The message.
    pub message: Option<String>,
    /// When `status` changed last.
    pub last_transition_time: Option<Time>,
}

/// A member of an etcd cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EtcdMember {
    /// Name of the member, which is that of its pod.
    pub name: Option<String>,
    /// Its role: Leader, Member or Learner.
    pub role: Option<String>,
    /// State: Ready, NotReady or Unknown.
    pub status: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_ready_replicas_are_zero() -> Result<(), serde_json::Error> {
        for (status, expected) in [
            (serde_json::Value::Null, 0),
            (serde_json::json!({"replicas": 1}), 0),
            (serde_json::json!({"readyReplicas": 0}), 0),
            (serde_json::json!({"readyReplicas": 2}), 2),
        ] {
            let etcd: Etcd = serde_json::from_value(serde_json::json!({"spec": {}, "status": status}))?;
            assert_eq!(etcd.ready_replicas(), expected, "{status}");
        }
        Ok(())
    }
}
