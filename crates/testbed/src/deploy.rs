//! The operator and simulated nodes in a cluster: their images, and the operator as users deploy it.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};
use messina_scylla_sim::image::{Content, DIRECTORIES, FILES};

use crate::{
    cache,
    cluster::Cluster,
    demo::install_definitions,
    error::Result,
    harness::{self, Seen, program},
    image::Image,
    progress::Steps,
};

/// The operator's image, as `deploy/operator.yaml` names it.
pub const OPERATOR_IMAGE: &str = "localhost/messina/messina:dev";
/// The simulated node in the place of ScyllaDB.
pub const SCYLLA_IMAGE: &str = "localhost/scylladb/scylla:2026.2.4";
/// The same, another version.
pub const NEWER_SCYLLA_IMAGE: &str = "localhost/scylladb/scylla:2026.2.5";
/// The stand-in for the agent of ScyllaDB Manager.
pub const AGENT_IMAGE: &str = "localhost/scylladb/scylla-manager-agent:3.12.0";
/// Where certificates of public authorities are on Debian, and in the operator's image.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The operator as users deploy it.
const OPERATOR: &str = include_str!("../../../deploy/operator.yaml");

/// Makes the images and imports them into every node.
pub fn images(cluster: &Cluster, steps: &Steps) -> Result<()> {
    let operator = Image::new(OPERATOR_IMAGE, ["/usr/bin/messina"])
        .user("65532:65532")
        .file(program("messina")?, "/usr/bin/messina")
        .file(AUTHORITIES, AUTHORITIES);
    import(cluster, &operator, steps)?;
    for reference in [SCYLLA_IMAGE, NEWER_SCYLLA_IMAGE, AGENT_IMAGE] {
        import(cluster, &node(reference)?, steps)?;
    }
    Ok(())
}

fn node(reference: &str) -> Result<Image> {
    const PROGRAM: &str = "/usr/bin/scylla-sim";
    let mut image = Image::new(reference, ["/docker-entrypoint.py"]).file(program("scylla-sim")?, PROGRAM);
    for (path, content) in FILES {
        image = match content {
            Content::Program => image.link(PROGRAM, *path),
            Content::Text(text) => image.text(*text, *path),
        };
    }
    Ok(DIRECTORIES.iter().fold(image, |image, path| image.folder(*path)))
}

fn import(cluster: &Cluster, image: &Image, steps: &Steps) -> Result<()> {
    // Others may make images for other clusters.
    let archive = cluster.folder().join(format!("image-{}.tar", std::process::id()));
    let imported = image.write(&archive).and_then(|()| cluster.import(&archive, steps));
    cache::remove(&archive)?;
    imported
}

/// Installs the definitions and the operator, and waits until all its copies are ready.
pub async fn operator(client: &Client, steps: &Steps) -> Result<()> {
    let step = steps.begin("installing the custom resource definitions");
    let count = install_definitions(client).await?;
    step.done(&format!("{count} kinds"));
    let step = steps.begin("starting the operator");
    harness::apply(client, OPERATOR, None).await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "messina");
    let copies = harness::until(deployments, "messina", "the operator to be ready", Duration::from_secs(120), |seen| {
        let status = seen.as_ref().and_then(|deployment| deployment.status.clone()).unwrap_or_default();
        let wanted = seen.and_then(|deployment| deployment.spec?.replicas).unwrap_or(1);
        let ready = status.ready_replicas.unwrap_or(0);
        step.progress(&format!("{ready} of {wanted} copies are ready"));
        if ready >= wanted { Seen::Ready(ready) } else { Seen::NotYet(format!("{ready} of {wanted} copies are ready")) }
    })
    .await?;
    step.done(&format!("{copies} copies"));
    Ok(())
}
