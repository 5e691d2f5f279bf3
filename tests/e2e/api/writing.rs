//! Partial writes: the scale and status subresources, and several field managers of one object.

use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use messina_api::scylla::{v1::ScyllaCluster, v1alpha1::ScyllaDBDatacenter};
use messina_e2e::{accepts, accepts_status, in_a_namespace};
use serde_json::{Value, json};

use super::cluster;

#[tokio::test]
async fn scale_subresource_reads_and_writes_replicas() {
    in_a_namespace("scale", async |client, namespace| {
        let api: Api<ScyllaCluster> = Api::namespaced(client.clone(), namespace);
        accepts(client, namespace, &cluster("scaled", "{replicas: 2, version: 2026.2.4}")).await;
        let scale = api.get_scale("scaled").await.unwrap();
        assert_eq!(scale.spec.unwrap().replicas, Some(2));

        // As kubectl scale does it, and as autoscalers do.
        let patch = Patch::Merge(json!({"spec": {"replicas": 5}}));
        api.patch_scale("scaled", &PatchParams::default(), &patch).await.unwrap();
        assert_eq!(api.get("scaled").await.unwrap().spec.replicas, Some(5));
        let mut scale = api.get_scale("scaled").await.unwrap();
        scale.spec.as_mut().unwrap().replicas = Some(1);
        api.replace_scale("scaled", &PostParams::default(), &scale).await.unwrap();
        let scaled = api.get("scaled").await.unwrap();
        assert_eq!(scaled.spec.replicas, Some(1));
        assert_eq!(scaled.spec.version.as_deref(), Some("2026.2.4"), "scaling changed something else");

        let ready = cluster("scaled", "{}, status: {replicas: 4}");
        accepts_status(client, namespace, &ready).await;
        let scale = api.get_scale("scaled").await.unwrap();
        assert_eq!(scale.status.unwrap().replicas, 4);
        assert_eq!(scale.spec.unwrap().replicas, Some(1), "the status is taken for the spec");
    })
    .await;
}

#[tokio::test]
async fn cluster_without_replicas_can_be_scaled() {
    in_a_namespace("scale-first", async |client, namespace| {
        let api: Api<ScyllaCluster> = Api::namespaced(client.clone(), namespace);
        accepts(client, namespace, &cluster("unscaled", "{}")).await;
        let patch = Patch::Merge(json!({"spec": {"replicas": 3}}));
        api.patch_scale("unscaled", &PatchParams::default(), &patch).await.unwrap();
        assert_eq!(api.get("unscaled").await.unwrap().spec.replicas, Some(3));
    })
    .await;
}

#[tokio::test]
async fn lists_with_keys_are_merged_and_others_are_atomic() {
    in_a_namespace("merging", async |client, namespace| {
        for manager in ["one", "two"] {
            let claims = json!({"claims": [{"name": format!("claim-of-{manager}")}]});
            let spec = json!({"rackTemplate": {"scyllaDB": {"resources": claims}}});
            applies(client, namespace, manager, json!({"spec": spec})).await.unwrap();
        }
        let merged = datacenters(client, namespace).get("merged").await.unwrap();
        let resources = merged.spec.rack_template.unwrap().scylladb.unwrap().resources.unwrap();
        let claims: Vec<String> = resources.claims.unwrap().into_iter().map(|claim| claim.name).collect();
        assert_eq!(claims, ["claim-of-one", "claim-of-two"]);

        // A manager that omits an item gives up that item, and no other.
        applies(client, namespace, "one", json!({"spec": {"clusterName": "a"}})).await.unwrap();
        let merged = datacenters(client, namespace).get("merged").await.unwrap();
        let resources = merged.spec.rack_template.unwrap().scylladb.unwrap().resources.unwrap();
        let claims: Vec<String> = resources.claims.unwrap().into_iter().map(|claim| claim.name).collect();
        assert_eq!(claims, ["claim-of-two"]);

        // The order of racks matters, so the list is atomic.
        let racks = |name: &str| json!({"spec": {"clusterName": "a", "racks": [{"name": name}]}});
        applies(client, namespace, "one", racks("a")).await.unwrap();
        let conflict = applies(client, namespace, "two", racks("b")).await.unwrap_err();
        assert!(conflict.contains(r#"conflict with "one": .spec.racks"#), "{conflict}");
    })
    .await;
}

#[tokio::test]
async fn conditions_are_merged_by_their_type() {
    in_a_namespace("merging-status", async |client, namespace| {
        applies(client, namespace, "user", json!({"spec": {"clusterName": "a"}})).await.unwrap();
        let api = datacenters(client, namespace);
        let condition = |condition: &str, status: &str| {
            json!({
                "type": condition,
                "status": status,
                "reason": "AsExpected",
                "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        for (manager, conditions) in [
            ("one", vec![condition("Available", "True")]),
            ("two", vec![condition("Progressing", "True")]),
            ("two", vec![condition("Progressing", "False")]),
        ] {
            let object = object(json!({"status": {"conditions": conditions}}));
            let params = PatchParams::apply(manager).validation_strict();
            api.patch_status("merged", &params, &Patch::Apply(&object)).await.unwrap();
        }
        let merged = api.get("merged").await.unwrap();
        let conditions = merged.status.unwrap().conditions.unwrap();
        let conditions: Vec<_> = conditions.iter().map(|c| (c.type_.as_str(), c.status.as_str())).collect();
        assert_eq!(conditions, [("Available", "True"), ("Progressing", "False")]);
    })
    .await;
}

fn datacenters(client: &Client, namespace: &str) -> Api<ScyllaDBDatacenter> {
    Api::namespaced(client.clone(), namespace)
}

/// Applies fields of one datacenter, without forcing conflicts.
async fn applies(client: &Client, namespace: &str, manager: &str, fields: Value) -> Result<(), String> {
    let params = PatchParams::apply(manager).validation_strict();
    let applied = datacenters(client, namespace).patch("merged", &params, &Patch::Apply(&object(fields))).await;
    applied.map(drop).map_err(|error| error.to_string())
}

fn object(mut fields: Value) -> Value {
    fields["apiVersion"] = "scylla.scylladb.com/v1alpha1".into();
    fields["kind"] = "ScyllaDBDatacenter".into();
    fields["metadata"] = json!({"name": "merged"});
    fields
}
