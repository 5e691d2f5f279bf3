//! The CustomResourceDefinition of Etcd with the fields that tasks and the testbed read. Other fields are preserved and
//! not validated. etcd-druid installs its own.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use messina_api::druid::v1alpha1::Etcd;
use serde_json::{Value, json};

use crate::{
    error::{Doing, Result, malformed},
    harness::{self, Seen},
};

const NAME: &str = "etcds.druid.gardener.cloud";

/// Installs the definition, unless it exists, and waits until the API server serves it.
pub async fn install(client: &Client) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let there = api.get_opt(NAME).await.doing(|| format!("looking for {NAME}"))?;
    if there.is_none() {
        let params = PatchParams::apply("messina-testbed").force();
        api.patch(NAME, &params, &Patch::Apply(definition()?)).await.doing(|| format!("installing {NAME}"))?;
    }
    await_served(client, Duration::from_secs(60)).await
}

/// Waits until Etcds can be listed.
pub async fn await_served(client: &Client, limit: Duration) -> Result<()> {
    let etcds: Api<Etcd> = Api::all(client.clone());
    harness::eventually("etcds to be served", limit, || async {
        Ok(match etcds.list_metadata(&ListParams::default().limit(1)).await {
            Ok(_) => Seen::Ready(()),
            Err(error) => Seen::NotYet(error.to_string()),
        })
    })
    .await
}

fn definition() -> Result<CustomResourceDefinition> {
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME},
        "spec": {
            "group": "druid.gardener.cloud",
            "scope": "Namespaced",
            "names": {"kind": "Etcd", "listKind": "EtcdList", "plural": "etcds", "singular": "etcd"},
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
                    {"name": "Members", "type": "integer", "jsonPath": ".status.readyReplicas"},
                    {"name": "Backup", "type": "string", "jsonPath": ".status.conditions[?(@.type=='BackupReady')].status"},
                ],
                "schema": {"openAPIV3Schema": open(json!({"spec": spec(), "status": status()}))},
            }],
        },
    }))
    .map_err(malformed("writing the definition of Etcd"))
}

/// The schema of an object with these fields, which preserves unknown ones.
fn open(properties: Value) -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": properties})
}

fn spec() -> Value {
    let text = json!({"type": "string"});
    let port = json!({"type": "integer", "format": "int32"});
    let secret = open(json!({"name": text, "namespace": text}));
    let tls = open(json!({
        "tlsCASecretRef": open(json!({"name": text, "namespace": text, "dataKey": text})),
        "serverTLSSecretRef": secret,
        "clientTLSSecretRef": secret,
    }));
    open(json!({
        "replicas": {"type": "integer", "format": "int32"},
        "etcd": open(json!({"clientPort": port, "serverPort": port, "clientUrlTls": tls})),
        "backup": open(json!({
            "port": port,
            "tls": tls,
            "image": text,
            "store": open(json!({"provider": text, "container": text, "prefix": text})),
        })),
    }))
}

fn status() -> Value {
    let text = json!({"type": "string"});
    let count = json!({"type": "integer", "format": "int32"});
    let condition = open(json!({
        "type": text, "status": text, "reason": text, "message": text,
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "lastUpdateTime": {"type": "string", "format": "date-time"},
    }));
    let member = open(json!({"name": text, "role": text, "status": text}));
    open(json!({
        "observedGeneration": {"type": "integer", "format": "int64"},
        "ready": {"type": "boolean"},
        "replicas": count,
        "readyReplicas": count,
        "conditions": {"type": "array", "items": condition},
        "members": {"type": "array", "items": member},
    }))
}
