//! DNS and the default StorageClass of clusters with Kubernetes nodes.

use std::time::Duration;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node, ServiceAccount},
};
use kube::{Api, Client, ResourceExt, api::ListParams};

use crate::{
    error::{Doing, Result},
    harness::{self, Seen},
};

/// Installs DNS and the StorageClass.
pub async fn install(client: &Client) -> Result<()> {
    install_storage(client).await?;
    harness::apply(client, include_str!("../manifests/dns.yaml"), None).await.map(drop)
}

/// Installs the StorageClass.
pub async fn install_storage(client: &Client) -> Result<()> {
    harness::apply(client, include_str!("../manifests/storage.yaml"), None).await.map(drop)
}

/// Waits for the ServiceAccount without which the API server admits no pod.
pub async fn await_default_service_account(client: &Client, limit: Duration) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    harness::until(accounts, "default", "the default service account", limit, |account| match account {
        Some(_) => Seen::Ready(()),
        None => Seen::NotYet("it does not exist".into()),
    })
    .await
}

/// Waits for `count` Kubernetes nodes to be ready.
pub async fn await_nodes(client: &Client, count: usize, limit: Duration) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    harness::eventually(&format!("{count} Kubernetes nodes to be ready"), limit, || async {
        let nodes = nodes.list(&ListParams::default()).await.doing(|| "listing Kubernetes nodes".into())?;
        let ready: Vec<String> = nodes.iter().filter(|node| is_ready(node)).map(ResourceExt::name_any).collect();
        Ok(if ready.len() >= count { Seen::Ready(()) } else { Seen::NotYet(format!("ready: {ready:?}")) })
    })
    .await
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Waits for the cluster's DNS to answer.
pub async fn await_dns(client: &Client, limit: Duration) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kube-system");
    harness::until(deployments, "coredns", "the cluster's DNS", limit, |deployment| {
        match deployment.and_then(|deployment| deployment.status) {
            Some(status) if status.available_replicas.unwrap_or_default() > 0 => Seen::Ready(()),
            status => Seen::NotYet(format!("{status:?}")),
        }
    })
    .await
}

/// Creates Kubernetes nodes that KWOK simulates.
pub async fn add_fake_nodes(client: &Client, count: u32) -> Result<()> {
    for number in 1..=count {
        let node = format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: fake-{number}, annotations: {{kwok.x-k8s.io/node: fake}}, \
             labels: {{kubernetes.io/hostname: fake-{number}}}}}}}"
        );
        harness::apply(client, &node, None).await?;
    }
    Ok(())
}
