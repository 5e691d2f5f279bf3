//! Steps of docs/guides/migrate-from-scylla-operator.md that concern neither operator: webhooks and the ClusterRole of
//! pods.

use k8s_openapi::api::{admissionregistration::v1::ValidatingWebhookConfiguration, rbac::v1::ClusterRole};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use messina_e2e::{SOON, accepts, in_a_namespace, kubectl, objects};
use messina_testbed::harness::{Seen, eventually, until};
use serde_json::{Value, json};

const MANIFEST: &str = include_str!("../../../deploy/operator.yaml");
const PAGE: &str = include_str!("../../../docs/guides/migrate-from-scylla-operator.md");
/// The command of that page which ends the aggregation of the ClusterRole.
const NO_AGGREGATION: &str = r#"[{"op": "remove", "path": "/aggregationRule"}]"#;

fn datacenter() -> Value {
    json!({
        "apiVersion": "scylla.scylladb.com/v1alpha1", "kind": "ScyllaDBDatacenter", "metadata": {"name": "orders"},
        "spec": {
            "clusterName": "orders", "datacenterName": "dc", "scyllaDB": {"image": "scylladb/scylla:2026.2.4"},
            "scyllaDBManagerAgent": {"image": "agent:3.12.0"},
            "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
        },
    })
}

/// Changes a datacenter as a user does, or returns the error.
async fn change(client: &Client, namespace: &str, reason: &str) -> Result<(), String> {
    let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
    let patch = Patch::Merge(json!({"spec": {"forceRedeploymentReason": reason}}));
    let changed = datacenters.patch("orders", &PatchParams::default(), &patch).await;
    changed.map(drop).map_err(|error| error.to_string())
}

/// Step 2: webhooks without a server refuse changes of a ScyllaDBDatacenter, but none of its status.
#[tokio::test]
async fn webhooks_of_scylla_operator_block_changes_until_removed() {
    in_a_namespace("takeover-webhook", async |client, namespace| {
        accepts(client, namespace, &datacenter().to_string()).await;
        let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let name = format!("scylla-operator-{namespace}");
        let webhook = json!({"metadata": {"name": name}, "webhooks": [{
            "name": "webhook.scylla.scylladb.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail",
            "clientConfig": {"service": {"name": "scylla-operator-webhook", "namespace": namespace, "path": "/validate"}},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [{
                "apiGroups": ["scylla.scylladb.com"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["scylladbdatacenters"],
            }],
        }]});
        webhooks.create(&PostParams::default(), &serde_json::from_value(webhook).unwrap()).await.unwrap();
        let refused = eventually("the webhook to be asked", SOON, async || {
            let reason = jiff::Timestamp::now().to_string();
            Ok(change(client, namespace, &reason).await.map_or_else(Seen::Ready, |()| Seen::NotYet(reason)))
        });
        let refused = refused.await.unwrap();
        assert!(refused.contains("failed calling webhook"), "{refused}");
        let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
        let status = Patch::Merge(json!({"status": {"nodes": 1}}));
        datacenters.patch_status("orders", &PatchParams::default(), &status).await.unwrap();
        webhooks.delete(&name, &DeleteParams::default()).await.unwrap();
        let passes = eventually("changes to pass", SOON, async || {
            let changed = change(client, namespace, "afterwards").await;
            Ok(changed.map_or_else(Seen::NotYet, Seen::Ready))
        });
        passes.await.unwrap();
    })
    .await;
}

fn has_rules(rules: Value) -> impl Fn(Option<ClusterRole>) -> Seen<()> {
    move |seen| {
        let now = json!(seen.map(|role| role.rules));
        if now == rules { Seen::Ready(()) } else { Seen::NotYet(now.to_string()) }
    }
}

/// Steps 3 and 5: Kubernetes overwrites our rules as long as the role is aggregated, and leaves them alone afterwards.
#[tokio::test]
async fn cluster_role_is_aggregated_until_its_rule_is_removed() {
    assert!(PAGE.contains(&format!("--type=json --patch='{NO_AGGREGATION}'")), "the page has the same command");
    in_a_namespace("takeover-role", async |client, namespace| {
        let roles: Api<ClusterRole> = Api::all(client.clone());
        let (name, part) = (format!("scyllacluster-member-{namespace}"), format!("aggregate-to-{namespace}"));
        let selector = json!({"messina.test/aggregate": namespace});
        let theirs = json!([{"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list", "patch", "update", "watch"]}]);
        let aggregated = json!({
            "metadata": {"name": name},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": selector}]},
        });
        let source = json!({"metadata": {"name": part, "labels": selector}, "rules": theirs});
        for role in [&aggregated, &source] {
            let role: ClusterRole = serde_json::from_value(role.clone()).unwrap();
            roles.create(&PostParams::default(), &role).await.unwrap();
        }
        until(roles.clone(), &name, "the rules to be aggregated", SOON, has_rules(theirs.clone())).await.unwrap();

        let is_role = |one: &&Value| one["kind"] == "ClusterRole" && one["metadata"]["name"] == "scyllacluster-member";
        let mut ours = objects(MANIFEST).iter().find(is_role).cloned().unwrap();
        ours["metadata"]["name"] = json!(name);
        let apply = async || {
            let params = PatchParams::apply("kubectl").force();
            roles.patch(&name, &params, &Patch::Apply(&ours)).await.unwrap()
        };
        let applied = apply().await;
        assert_eq!(json!(applied.rules), ours["rules"]);
        until(roles.clone(), &name, "the rules to be aggregated again", SOON, has_rules(theirs)).await.unwrap();

        kubectl(["patch", "clusterrole", &name, "--type=json", &format!("--patch={NO_AGGREGATION}")]).unwrap();
        let applied = apply().await;
        assert_eq!(applied.aggregation_rule, None);
        // A further aggregation would be visible after this change.
        let more = Patch::Merge(json!({"rules": []}));
        roles.patch(&part, &PatchParams::default(), &more).await.unwrap();
        until(roles.clone(), &name, "the rules to be ours", SOON, has_rules(ours["rules"].clone())).await.unwrap();
        for role in [&name, &part] {
            roles.delete(role, &DeleteParams::default()).await.unwrap();
        }
    })
    .await;
}
