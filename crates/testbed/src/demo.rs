//! `make demo`: a cluster with our kinds in it, and what to try next.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use std::time::Duration;

use crate::{
    cluster::Cluster,
    error::{Doing, Result},
    harness::{self, Seen},
    progress::Steps,
};

/// Installs the kinds and says what to try.
pub async fn run(cluster: &Cluster, steps: &Steps) -> Result<()> {
    let client = harness::client(&cluster.kubeconfig()).await?;
    let step = steps.begin("installing the custom resource definitions");
    let count = install_definitions(&client).await?;
    step.done(&format!("{count} kinds"));
    println!(
        "\nThe cluster {:?} is up ({}) and knows {count} kinds. Try:\n\n  \
         export KUBECONFIG={}\n  \
         export PATH={}:$PATH\n  \
         kubectl explain scyllacluster.spec.alternator\n  \
         kubectl apply --server-side -f deploy/examples/\n  \
         kubectl get scylladb\n\n\
         `make demo-down` removes it all.",
        cluster.name,
        cluster.describe(),
        cluster.kubeconfig().display(),
        crate::tools::Tools::control_plane(steps)?
            .program("kubectl")
            .parent()
            .unwrap_or(std::path::Path::new(""))
            .display(),
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
        harness::until(api.clone(), name, &format!("{name} to be served"), Duration::from_secs(60), |definition| {
            let conditions = definition.and_then(|definition| definition.status?.conditions).unwrap_or_default();
            match conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True") {
                true => Seen::Ready(()),
                false => Seen::NotYet(format!("{conditions:?}")),
            }
        })
        .await?;
    }
    Ok(definitions.len())
}
