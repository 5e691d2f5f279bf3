//! Other Kubernetes clusters: [`RemoteKubernetesCluster`] says how to reach one, [`RemoteOwner`] stands in one for an
//! owner that lives elsewhere.

use k8s_openapi::{api::core::v1::SecretReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// How to reach another Kubernetes cluster.
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
    /// A Secret whose key `kubeconfig` holds a kubeconfig for the other cluster. Its user needs the rights that the
    /// operator has here.
    pub kubeconfig_secret_ref: Option<SecretReference>,
    /// How the connection is watched.
    #[schemars(extend("default" = {"periodSeconds": 60}))]
    pub client_healthcheck_probes: Option<ClientHealthcheckProbes>,
}

/// How a connection to another Kubernetes cluster is watched.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientHealthcheckProbes {
    /// Time in seconds from one probe of the connection to the next.
    pub period_seconds: Option<i32>,
}

/// Status of the connection.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoteKubernetesClusterStatus {
    /// The generation of this object that the rest of the status speaks of.
    pub observed_generation: Option<i64>,
    /// Conditions of the connection: Available when probes succeed, Progressing, Degraded, and the same for each
    /// component.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Option<Vec<Condition>>,
}

/// Owner of what the operator made in this Kubernetes cluster for an object in another one. Its labels name that
/// object; deleting it deletes what it owns. It is made by the operator and not meant to be edited.
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
