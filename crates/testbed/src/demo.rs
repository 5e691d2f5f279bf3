//! `make demo`: a cluster with our kinds in it, and what to try next.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};

use crate::{
    cluster::Cluster,
    error::{Doing, Result},
    harness::{self, Seen},
    progress::Steps,
    tools::Tools,
};

/// Installs the kinds and says what to try.
pub async fn run(cluster: &Cluster, steps: &Steps) -> Result<()> {
    let client = harness::client(&cluster.kubeconfig()).await?;
    let step = steps.begin("installing the custom resource definitions");
    let count = install_definitions(&client).await?;
    step.done(&format!("{count} kinds"));
    let kubectl = Tools::control_plane(steps)?.program("kubectl");
    println!(
        "
The cluster {:?} is up ({}) and knows {count} kinds of Messina. In this folder, try:

  export KUBECONFIG={}
  export PATH={}:$PATH
  kubectl explain scyllacluster.spec.alternator
  kubectl create namespace scylla
  kubectl apply --server-side -f deploy/examples/scyllacluster.yaml
  kubectl get scylladb --namespace scylla

`make demo-down` removes it all.",
        cluster.name,
        cluster.describe(),
        cluster.kubeconfig().display(),
        kubectl.parent().unwrap_or(&kubectl).display(),
    );
    Ok(())
}

/// Installs every definition and waits until the API server serves it.
pub async fn install_definitions(client: &Client) -> Result<usize> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definitions = messina_api::crd::all();
    let params = PatchParams::apply("messina-testbed").force();
    for definition in &definitions {
        let name = definition.metadata.name.as_deref().unwrap_or_default();
        api.patch(name, &params, &Patch::Apply(definition)).await.doing(|| format!("installing {name}"))?;
    }
    for definition in &definitions {
        await_served(client, definition).await?;
    }
    Ok(definitions.len())
}

/// Waits until a kind can be listed; it may be called established a moment before.
async fn await_served(client: &Client, definition: &CustomResourceDefinition) -> Result<()> {
    let spec = &definition.spec;
    for version in &spec.versions {
        let kind = GroupVersionKind::gvk(&spec.group, &version.name, &spec.names.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &spec.names.plural);
        let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let what = format!("{} to be served", spec.names.plural);
        harness::eventually(&what, Duration::from_secs(60), || async {
            Ok(match objects.list_metadata(&ListParams::default().limit(1)).await {
                Ok(_) => Seen::Ready(()),
                Err(error) => Seen::NotYet(error.to_string()),
            })
        })
        .await?;
    }
    Ok(())
}
