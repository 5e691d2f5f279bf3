//! The admission policy that restricts the tokens of nodes.

use k8s_openapi::api::{
    core::v1::{Pod, Service, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use messina_api::names::{annotation, label};
use messina_e2e::{
    SOON,
    datacenter::{TestDatacenter, manifest},
};
use messina_testbed::harness::{Seen, eventually};
use serde_json::{Value, json};

use crate::testbed::skip_if_unsuitable;

const NODE: &str = "orders-dc-a-0";
const ACCOUNT: &str = "orders-member";
/// A ServiceAccount that does not belong to the datacenter.
const FOREIGN: &str = "x-member";
/// A Service that does not belong to the datacenter.
const OTHER: &str = "other";

#[tokio::test]
async fn node_token_may_only_write_the_annotations_of_its_sidecar() {
    skip_if_unsuitable!();
    let datacenter = TestDatacenter::create("policies", &[]).await;
    datacenter.apply(&manifest(&[("a", 1)])).await;
    // The sidecar has written the host ID.
    datacenter.settled(1).await;
    // The operator keeps labels that the test sets.
    datacenter.pause(Some("a test")).await;
    datacenter.condition("Paused", "True", |_| true).await;
    let ports = json!([{"name": "cql", "port": 9042}]);
    create::<Service>(&datacenter, json!({"metadata": {"name": OTHER}, "spec": {"ports": ports}})).await;

    let pod = datacenter.api::<Pod>().get(NODE).await.unwrap();
    let node = Token::create(&datacenter, ACCOUNT, Some(&pod)).await;
    eventually("the policy to be enforced", SOON, async || {
        let refused = node.update::<Service>(NODE, json!({"spec": {"selector": {"app": "other"}}})).await;
        Ok(match refused {
            Err(message) if message.contains("messina-nodes") => Seen::Ready(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await
    .unwrap();

    sidecar_annotations_are_allowed(&datacenter, &node).await;
    other_changes_of_the_service_are_refused(&node).await;
    other_services_are_refused(&node).await;
    scylla_operator_permissions_allow_no_more(&datacenter, &node).await;
    token_without_a_pod_is_refused(&datacenter).await;
    foreign_service_account_is_ignored(&datacenter).await;
    datacenter.remove().await;
}

async fn sidecar_annotations_are_allowed(datacenter: &TestDatacenter, node: &Token) {
    for key in annotation::BY_SIDECAR {
        for value in [json!("new"), Value::Null] {
            let patch = json!({"metadata": {"annotations": {key: value}}});
            assert_eq!(node.update::<Service>(NODE, patch).await, Ok(()), "{key}: {value}");
        }
    }
    let left = json!({"metadata": {"labels": {label::DECOMMISSIONED: "true"}}});
    refuses(node.update::<Service>(NODE, left.clone()).await, "it was not asked to leave");
    let asked = json!({"metadata": {"labels": {label::DECOMMISSIONED: "false"}}});
    datacenter.patch::<Service>(NODE, asked).await;
    assert_eq!(node.update::<Service>(NODE, left).await, Ok(()), "it was asked to leave");
    let stays = json!({"metadata": {"labels": {label::DECOMMISSIONED: null}}});
    refuses(node.update::<Service>(NODE, stays.clone()).await, "it does not withdraw that");
    datacenter.patch::<Service>(NODE, stays).await;
}

async fn other_changes_of_the_service_are_refused(node: &Token) {
    let metadata = |field: &str, value: Value| json!({"metadata": {field: value}});
    for patch in [
        json!({"spec": {"selector": {"app": "other"}}}),
        json!({"spec": {"ports": [{"name": "cql", "port": 9042, "targetPort": 1}]}}),
        json!({"spec": {"type": "NodePort"}}),
        json!({"spec": {"externalIPs": ["192.0.2.1"]}}),
        json!({"spec": {"publishNotReadyAddresses": false}}),
        metadata("ownerReferences", json!([])),
        metadata("finalizers", json!(["example.com/stays"])),
        metadata("labels", json!({label::REPLACE: ""})),
        metadata("labels", json!({label::NODE_MAINTENANCE: ""})),
        metadata("labels", json!({label::CLUSTER: "other"})),
        metadata("labels", json!({label::SERVICE_TYPE: null})),
        metadata("labels", json!({"of-somebody": "else"})),
        metadata("annotations", json!({annotation::RING_QUESTION: "1"})),
        metadata("annotations", json!({annotation::LEAVING_HOST_ID: "some-host-id"})),
        metadata("annotations", json!({annotation::START_EMPTY: "some-host-id"})),
        metadata("annotations", json!({annotation::LAST_CLEANED_UP_TOKEN_RING_HASH: null})),
        metadata("annotations", json!({annotation::PAUSE: "true"})),
        // An allowed and a forbidden change together.
        metadata("annotations", json!({annotation::HOST_ID: "some-host-id", "of-somebody": "else"})),
    ] {
        refuses(node.update::<Service>(NODE, patch.clone()).await, &patch.to_string());
    }
}

async fn other_services_are_refused(node: &Token) {
    let patch = json!({"metadata": {"annotations": {annotation::RING_ANSWER: "{}"}}});
    for service in ["orders-client", OTHER] {
        refuses(node.update::<Service>(service, patch.clone()).await, service);
    }
}

/// During a takeover, nodes have the role of scylla-operator.
async fn scylla_operator_permissions_allow_no_more(datacenter: &TestDatacenter, node: &Token) {
    let all = json!(["create", "delete", "patch", "update"]);
    let rules =
        json!([{"apiGroups": [""], "resources": ["pods", "pods/status", "services", "services/status"], "verbs": all}]);
    grant(datacenter, ACCOUNT, "more", rules).await;
    let report = json!({"metadata": {"annotations": {annotation::NODE_STATUS_REPORT: "{}"}}});
    eventually("the role to be in force", SOON, async || {
        let accepted = node.update::<Pod>(NODE, report.clone()).await;
        Ok(accepted.map_or_else(Seen::NotYet, Seen::Ready))
    })
    .await
    .unwrap();
    refuses(node.update::<Pod>(NODE, json!({"metadata": {"labels": {label::RACK: "b"}}})).await, "a label of the pod");
    refuses(node.update::<Pod>(NODE, json!({"spec": {"activeDeadlineSeconds": 1}})).await, "the pod's specification");
    let host_id = json!({"metadata": {"annotations": {annotation::HOST_ID: "some-host-id"}}});
    refuses(node.update::<Pod>(NODE, host_id).await, "an annotation for Services");
    refuses(node.update::<Service>(NODE, report).await, "an annotation for pods");

    let (services, pods) = (node.api::<Service>(), node.api::<Pod>());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let spec = json!({"metadata": {"name": "new"}, "spec": {"ports": [{"port": 9042}]}});
    refuses(failed(services.create(&dry, &serde_json::from_value(spec).unwrap()).await), "to create a Service");
    let deletion = DeleteParams { dry_run: true, ..DeleteParams::default() };
    refuses(failed(services.delete(NODE, &deletion).await), "to delete its Service");
    refuses(failed(pods.delete(NODE, &deletion).await), "to delete its pod");
    let condition = json!({"type": "x", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-11-17T00:00:00Z"});
    let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    refuses(failed(services.patch_status(NODE, &dry, &status).await), "the status of its Service");
    let status = Patch::Merge(json!({"status": {"message": "new"}}));
    refuses(failed(pods.patch_status(NODE, &dry, &status).await), "the status of its pod");
    // Whole objects, as scylla-operator's sidecars write them.
    let mut service = services.get(NODE).await.unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    service.metadata.annotations.get_or_insert_default().insert(annotation::HOST_ID.into(), "some-host-id".into());
    assert_eq!(failed(services.replace(NODE, &dry, &service).await), Ok(()));
    service.metadata.labels.get_or_insert_default().insert(label::REPLACE.into(), String::new());
    refuses(failed(services.replace(NODE, &dry, &service).await), "a label in the whole object");
}

async fn token_without_a_pod_is_refused(datacenter: &TestDatacenter) {
    let token = Token::create(datacenter, ACCOUNT, None).await;
    let patch = json!({"metadata": {"annotations": {annotation::HOST_ID: "some-host-id"}}});
    refuses(token.update::<Service>(NODE, patch).await, "no pod");
}

/// The name alone does not make it a ServiceAccount of a datacenter.
async fn foreign_service_account_is_ignored(datacenter: &TestDatacenter) {
    create::<ServiceAccount>(datacenter, json!({"metadata": {"name": FOREIGN}})).await;
    let rules = json!([{"apiGroups": [""], "resources": ["services"], "verbs": ["patch"]}]);
    grant(datacenter, FOREIGN, FOREIGN, rules).await;
    let token = Token::create(datacenter, FOREIGN, None).await;
    for service in [NODE, OTHER] {
        eventually("the role to be in force", SOON, async || {
            let accepted = token.update::<Service>(service, json!({"spec": {"selector": {"app": "other"}}})).await;
            Ok(accepted.map_or_else(Seen::NotYet, Seen::Ready))
        })
        .await
        .unwrap();
    }
}

/// Checks that the policy, and not something else, refuses a request.
#[track_caller]
fn refuses(outcome: Result<(), String>, what: &str) {
    let is_refused =
        outcome.as_ref().is_err_and(|message| message.contains("ValidatingAdmissionPolicy 'messina-nodes'"));
    assert!(is_refused, "{what}: {outcome:?}");
}

fn failed<T, E: std::fmt::Display>(outcome: Result<T, E>) -> Result<(), String> {
    outcome.map(drop).map_err(|error| error.to_string())
}

async fn create<K>(datacenter: &TestDatacenter, object: Value)
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + serde::Serialize
        + serde::de::DeserializeOwned
        + std::fmt::Debug,
{
    let object: K = serde_json::from_value(object).unwrap();
    datacenter.api::<K>().create(&PostParams::default(), &object).await.unwrap();
}

async fn grant(datacenter: &TestDatacenter, account: &str, role: &str, rules: Value) {
    create::<Role>(datacenter, json!({"metadata": {"name": role}, "rules": rules})).await;
    let binding = json!({
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": datacenter.namespace}],
    });
    create::<RoleBinding>(datacenter, binding).await;
}

/// A client with a token.
struct Token {
    client: Client,
    namespace: String,
}

impl Token {
    /// Requests a token of the account, bound to the pod as the kubelet does.
    async fn create(datacenter: &TestDatacenter, account: &str, pod: Option<&Pod>) -> Self {
        let bound = |pod: &Pod| {
            let (name, uid) = (&pod.metadata.name, &pod.metadata.uid);
            json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid})
        };
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": pod.map(bound)},
        });
        let accounts = datacenter.api::<ServiceAccount>();
        let made: Value =
            accounts.create_subresource("token", account, &PostParams::default(), &request).await.unwrap();
        let token = made["status"]["token"].as_str().unwrap().to_owned();
        let admin = Kubeconfig::read_from(datacenter.cluster.kubeconfig()).unwrap();
        let mut config = Config::from_custom_kubeconfig(admin, &KubeConfigOptions::default()).await.unwrap();
        config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
        Self { client: Client::try_from(config).unwrap(), namespace: datacenter.namespace.clone() }
    }

    fn api<K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Whether the API server would accept this change.
    async fn update<K>(&self, name: &str, patch: Value) -> Result<(), String>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + serde::de::DeserializeOwned
            + std::fmt::Debug,
    {
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        failed(self.api::<K>().patch(name, &dry, &Patch::Merge(&patch)).await)
    }
}
