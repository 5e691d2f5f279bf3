//! Other Kubernetes clusters: [`RemoteKubernetesCluster`] has the credentials of one, [`RemoteOwner`] represents there
//! an owner of this cluster.

use k8s_openapi::{api::core::v1::SecretReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// Credentials of another Kubernetes cluster.
#[skip_serializing_none]
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "scylla.scylladb.com",
    version = "v1alpha1",
    kind = "RemoteKubernetesCluster",
    status = "RemoteKubernetesClusterStatus",
    derive = "Default",
    derive = "PartialEq",
    attr = "cfg_attr(all(), serde(default))",
    schema = "disabled",
    category = "scylladb",
    printcolumn(name = "AVAILABLE", type_ = "string", json_path = ".status.conditions[?(@.type=='Available')].status"),
    printcolumn(
        name = "PROGRESSING",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Progressing')].status"
    ),
    printcolumn(name = "DEGRADED", type_ = "string", json_path = ".status.conditions[?(@.type=='Degraded')].status"),
    printcolumn(name = "AGE", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct RemoteKubernetesClusterSpec {
    /// A Secret whose key `kubeconfig` holds a kubeconfig for the other cluster. Its user needs the permissions that
    /// the operator has in this cluster.
    pub kubeconfig_secret_ref: Option<SecretReference>,
    /// Health checks of the connection.
    #[schemars(extend("default" = {"periodSeconds": 60}))]
    pub client_healthcheck_probes: Option<ClientHealthcheckProbes>,
}

/// Health checks of a connection to another Kubernetes cluster.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientHealthcheckProbes {
    /// Interval of the health checks in seconds.
    pub period_seconds: Option<i32>,
}

/// Status of the connection.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoteKubernetesClusterStatus {
    /// The most recent generation of this object that the operator has observed.
    pub observed_generation: Option<i64>,
    /// Conditions of the connection: Available when health checks succeed, Progressing, Degraded, and the same for each
    /// component.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
}

/// Owner of the objects that the operator created in this Kubernetes cluster for an object in another one. Its labels
/// name that object. If it is deleted, the objects that it owns are deleted. The operator creates it; do not edit it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[kube(
    group = "scylla.scylladb.com",
    version = "v1alpha1",
    kind = "RemoteOwner",
    namespaced,
    no_spec,
    derive = "Default",
    derive = "PartialEq",
    schema = "disabled",
    category = "scylladb",
    annotation("scylla-operator.scylladb.com/internal-api-type", "true")
)]
pub struct RemoteOwnership {}
