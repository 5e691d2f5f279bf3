//! `make demo`: a cluster with the operator and a datacenter, and commands to try.

use std::{path::Path, process::Command, time::Duration};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};

use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;

use crate::{
    cluster::Cluster,
    deploy,
    error::{Doing, Result},
    exec,
    harness::{self, Seen, program},
    progress::Steps,
    tools::Tools,
};

/// The datacenter of the demonstration.
const DATACENTER: &str = include_str!("demo.yaml");

/// Starts the operator and a datacenter of three racks, prints its status and commands to try.
pub async fn run(cluster: &Cluster, steps: &Steps) -> Result<()> {
    let client = harness::client(&cluster.kubeconfig()).await?;
    let step = steps.begin("importing the images into the cluster");
    deploy::images(cluster, &Steps::quiet())?;
    step.done("operator, simulated ScyllaDB, agent");
    deploy::operator(&client, steps).await?;
    let step = steps.begin("starting a datacenter of three racks");
    harness::apply(&client, DATACENTER, None).await?;
    let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), "scylla");
    harness::until(datacenters, "orders", "the datacenter to be available", Duration::from_secs(300), |seen| {
        let status = seen.and_then(|datacenter| datacenter.status).unwrap_or_default();
        let ready = status.ready_nodes.unwrap_or(0);
        step.progress(&format!("{ready} of 3 nodes are ready"));
        let conditions = status.conditions.unwrap_or_default();
        let available = conditions.iter().find(|condition| condition.type_ == "Available");
        match available {
            Some(condition) if condition.status == "True" => Seen::Ready(()),
            Some(condition) => Seen::NotYet(condition.message.clone()),
            None => Seen::NotYet("the operator has not reconciled it yet".into()),
        }
    })
    .await?;
    step.done("Available=True");
    steps.print_line(format!("\nThe demo was ready after {:.1} s.\n", steps.elapsed().as_secs_f64()));
    let kubectl_messina = program("kubectl-messina")?;
    let mut status = Command::new(&kubectl_messina);
    status.args(["status", "--namespace", "scylla", "--kubeconfig"]).arg(cluster.kubeconfig());
    print!("{}", exec::output("kubectl messina status", &mut status)?);
    let kubectl = Tools::control_plane(steps)?.program("kubectl");
    let folder = |program: &Path| program.parent().unwrap_or(program).display().to_string();
    println!(
        "
The cluster {:?} is up ({}). Commands to try in this folder:

  export KUBECONFIG={}
  export PATH={}:{}:$PATH
  kubectl messina status --namespace scylla
  kubectl get scylladbdatacenters,pods,services --namespace scylla
  kubectl patch scylladbdatacenter orders --namespace scylla --type=json \\
    --patch='[{{\"op\": \"add\", \"path\": \"/spec/racks/0/nodes\", \"value\": 2}}]'
  kubectl exec --namespace scylla orders-messina-1-a-0 -c scylla -- nodetool status
  kubectl exec --namespace scylla orders-messina-1-b-0 -c scylla -- simctl pause   # the node stops answering
  kubectl exec --namespace scylla orders-messina-1-b-0 -c scylla -- simctl resume
  kubectl delete service orders-client --namespace scylla   # the operator recreates it
  kubectl logs --namespace messina deployment/messina
  kubectl delete scylladbdatacenter orders --namespace scylla   # the volumes are kept

`make demo-down` removes the cluster.",
        cluster.name,
        cluster.describe(),
        cluster.kubeconfig().display(),
        folder(&kubectl),
        folder(&kubectl_messina),
    );
    Ok(())
}

/// Installs all CustomResourceDefinitions and waits until the API server serves them.
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

/// Waits until a kind can be listed, which is a moment after its definition is established.
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
