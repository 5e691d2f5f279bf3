//! The Kubernetes node of the shared cluster that is reserved for one test, because that test deletes the Node object.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    error::{Doing, Result},
    harness::{self, Seen},
    manifests,
};

/// The name of the Kubernetes node: the last one of the shared cluster.
pub const NODE: &str = "n3";
/// The key of its taint and of its label.
pub const KEY: &str = "messina.test/reserved";
/// The value of its taint and of its label.
pub const VALUE: &str = "volumes";

/// Taints and labels the Kubernetes node, and moves the pods of `kube-system` that the scheduler put there before.
pub async fn reserve(client: &Client) -> Result<()> {
    let doing = || format!("reserving the Kubernetes node {NODE}");
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(NODE).await.doing(doing)?;
    let mut taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
    if !taints.iter().any(|taint| taint.key == KEY) {
        let (key, value, effect) = (KEY.to_owned(), Some(VALUE.to_owned()), "NoSchedule".to_owned());
        taints.push(Taint { key, value, effect, ..Taint::default() });
        let patch = json!({"metadata": {"labels": {KEY: VALUE}}, "spec": {"taints": taints}});
        nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(patch)).await.doing(doing)?;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let of_node = ListParams::default().fields(&format!("spec.nodeName={NODE}"));
    harness::eventually(&format!("no pod of kube-system to be on {NODE}"), Duration::from_secs(60), || async {
        let left = pods.list(&of_node).await.doing(doing)?;
        for pod in left.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            // The pod may be gone by now.
            let _ = pods.delete(&pod.name_any(), &DeleteParams::default()).await;
        }
        let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
        Ok(if names.is_empty() { Seen::Ready(()) } else { Seen::NotYet(names.join(", ")) })
    })
    .await?;
    manifests::await_dns(client, Duration::from_secs(60)).await
}
