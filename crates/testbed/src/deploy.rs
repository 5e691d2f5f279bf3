//! Images of the operator and of simulated nodes, and deployment of the operator as users deploy it.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use k8s_openapi::api::{apps::v1::Deployment, rbac::v1::ClusterRoleBinding};
use kube::{Api, Client, api::DeleteParams};
use messina_scylla_sim::image::{Content, DIRECTORIES, FILES};
use serde_json::{Value, json};

use crate::{
    cache,
    cluster::Cluster,
    demo::install_definitions,
    error::{Doing, Result, malformed},
    exec,
    harness::{self, Seen, program},
    image::Image,
    progress::Steps,
    tools::key,
};

/// The operator's image, as `deploy/operator.yaml` names it.
pub const OPERATOR_IMAGE: &str = "localhost/messina/messina:dev";
/// The image of simulated nodes, in place of ScyllaDB.
pub const SCYLLA_IMAGE: &str = "localhost/scylladb/scylla:2026.2.4";
/// A newer version of that image.
pub const NEWER_SCYLLA_IMAGE: &str = "localhost/scylladb/scylla:2026.2.5";
/// The image that replaces the agent of ScyllaDB Manager.
pub const AGENT_IMAGE: &str = "localhost/scylladb/scylla-manager-agent:3.12.0";
/// Where certificates of public authorities are on Debian, and in the operator's image.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The manifest with which users deploy the operator.
const OPERATOR: &str = include_str!("../../../deploy/operator.yaml");
/// The namespace that it deploys to.
const NAMESPACE: &str = "messina";

/// Imports the images into every Kubernetes node.
pub fn images(cluster: &Cluster, steps: &Steps) -> Result<()> {
    for archive in image_archives(steps)? {
        cluster.import(&archive, steps)?;
    }
    Ok(())
}

/// Writes the images to a folder, for clusters that the testbed has not started. Returns the archives.
pub fn write_images(folder: &Path, steps: &Steps) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).doing(|| format!("creating {}", folder.display()))?;
    let copy = |(archive, name): (PathBuf, &str)| {
        let copied = folder.join(name);
        fs::copy(&archive, &copied).doing(|| format!("writing {}", copied.display()))?;
        Ok(copied)
    };
    image_archives(steps)?.into_iter().zip(["messina.tar", "scylla-sim.tar"]).map(copy).collect()
}

/// The images as archives, cached as long as the programs in them do not change.
pub fn image_archives(steps: &Steps) -> Result<[PathBuf; 2]> {
    const PROGRAM: &str = "/usr/bin/scylla-sim";
    let operator = archive("operator", &program("messina")?, steps, |program| {
        Image::new(OPERATOR_IMAGE, ["/usr/bin/messina"])
            .user("65532:65532")
            .file(program, "/usr/bin/messina")
            .file(AUTHORITIES, AUTHORITIES)
    })?;
    let node = archive("scylla-sim", &program("scylla-sim")?, steps, |program| {
        let mut image = Image::new(SCYLLA_IMAGE, ["/docker-entrypoint.py"])
            .also_named(NEWER_SCYLLA_IMAGE)
            .also_named(AGENT_IMAGE)
            .file(program, PROGRAM);
        for (path, content) in FILES {
            image = match content {
                Content::Program => image.link(PROGRAM, *path),
                Content::Text(text) => image.text(*text, *path),
            };
        }
        DIRECTORIES.iter().fold(image, |image, path| image.folder(*path))
    })?;
    Ok([operator, node])
}

/// The archive of an image with this program, without debug information: every Kubernetes node reads and unpacks it.
fn archive(name: &str, program: &Path, steps: &Steps, image: impl Fn(&Path) -> Image) -> Result<PathBuf> {
    let metadata = fs::metadata(program).doing(|| format!("reading {}", program.display()))?;
    let images = cache::root()?.join("images");
    let made_from =
        [format!("{:?}", image(program)), format!("{}.{} {}", metadata.mtime(), metadata.mtime_nsec(), metadata.len())];
    let folder = images.join(format!("{name}-{}", key(&made_from)));
    cache::once(&folder, steps, "building an image", |partial| {
        let stripped = partial.join(name);
        let mut strip = Command::new("strip");
        strip.args(["--strip-debug", "-o"]).arg(&stripped).arg(program);
        let source = if exec::output("strip", &mut strip).is_ok() { stripped.as_path() } else { program };
        image(source).write(&partial.join("image.tar"))?;
        cache::remove(&stripped)
    })?;
    remove_old_archives(&images, name, &folder)?;
    Ok(folder.join("image.tar"))
}

/// Deletes archives of earlier builds of the same program, which are large. An archive that another test run may still
/// import is kept until the next time.
fn remove_old_archives(images: &Path, name: &str, current: &Path) -> Result<()> {
    let entries = fs::read_dir(images).doing(|| format!("reading {}", images.display()))?;
    let is_old = |folder: &Path| {
        let age = fs::metadata(folder).and_then(|folder| folder.modified()).ok().and_then(|time| time.elapsed().ok());
        age.is_some_and(|age| age > Duration::from_secs(3600))
    };
    for folder in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        let other = folder.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
        let is_key = |text: &str| text.len() == 8 && text.chars().all(|one| one.is_ascii_hexdigit());
        let is_of_name = other.rsplit_once('-').is_some_and(|(of, key)| of == name && is_key(key));
        if is_of_name && folder.is_dir() && folder != current && is_old(&folder) {
            cache::remove(&folder)?;
        }
    }
    Ok(())
}

/// How the deployment of an operator differs from that of users.
#[derive(Clone, Debug, Default)]
pub struct Deployed {
    /// The only namespace that it watches. It is then deployed to a namespace of its own, see [`Deployed::namespace`].
    pub watches: Option<String>,
    /// Settings, as environment variables.
    pub settings: Vec<(&'static str, String)>,
}

impl Deployed {
    /// The namespace of the operator.
    pub fn namespace(&self) -> String {
        self.watches.as_ref().map_or_else(|| NAMESPACE.to_owned(), |watched| format!("{watched}-operator"))
    }

    /// The operator's user name at the API server.
    pub fn user(&self) -> String {
        format!("system:serviceaccount:{}:messina", self.namespace())
    }

    /// The objects to apply.
    fn objects(&self) -> Result<Vec<Value>> {
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(OPERATOR).map_err(malformed("reading YAML"))?;
        let namespace = self.namespace();
        for object in objects.iter_mut().filter(|object| !object.is_null()) {
            if object["metadata"]["namespace"] == NAMESPACE {
                object["metadata"]["namespace"] = json!(namespace);
            }
            for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
                subject["namespace"] = json!(namespace);
            }
            match object["kind"].as_str() {
                Some("Namespace") => object["metadata"]["name"] = json!(namespace),
                // The only cluster-scoped object that names the operator.
                Some("ClusterRoleBinding") => object["metadata"]["name"] = json!(namespace),
                Some("Deployment") => self.add_settings(object),
                _ => {}
            }
        }
        Ok(objects)
    }

    fn add_settings(&self, deployment: &mut Value) {
        let watches = self.watches.iter().map(|namespace| ("MESSINA_NAMESPACE", namespace.clone()));
        let settings = watches.chain(self.settings.iter().cloned());
        if let Some(variables) = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array_mut() {
            variables.extend(settings.map(|(name, value)| json!({"name": name, "value": value})));
        }
    }
}

/// Installs the definitions and the operator as users deploy it, and waits until all its replicas are ready.
pub async fn operator(client: &Client, steps: &Steps) -> Result<()> {
    let step = steps.begin("installing the CustomResourceDefinitions");
    let count = install_definitions(client).await?;
    step.done(&format!("{count} kinds"));
    deploy(client, &Deployed::default(), steps).await
}

/// Deploys an operator, and waits until all its replicas are ready. The definitions are installed already.
pub async fn deploy(client: &Client, deployed: &Deployed, steps: &Steps) -> Result<()> {
    let step = steps.begin("starting the operator");
    for object in deployed.objects()?.into_iter().filter(|object| !object.is_null()) {
        harness::apply(client, &object.to_string(), None).await?;
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &deployed.namespace());
    let copies = harness::until(deployments, "messina", "the operator to be ready", Duration::from_secs(120), |seen| {
        let status = seen.as_ref().and_then(|deployment| deployment.status.clone()).unwrap_or_default();
        let wanted = seen.and_then(|deployment| deployment.spec?.replicas).unwrap_or(1);
        let ready = status.ready_replicas.unwrap_or(0);
        step.progress(&format!("{ready} of {wanted} replicas are ready"));
        if ready >= wanted {
            Seen::Ready(ready)
        } else {
            Seen::NotYet(format!("{ready} of {wanted} replicas are ready"))
        }
    })
    .await?;
    step.done(&format!("{copies} replicas"));
    Ok(())
}

/// Deletes an operator, and does not wait for it. ClusterRoles and admission policies are kept: all operators share
/// them.
pub async fn remove(client: &Client, deployed: &Deployed) -> Result<()> {
    let name = deployed.namespace();
    harness::remove_namespace(client, &name).await?;
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let removed = bindings.delete(&name, &DeleteParams::default()).await;
    removed.map(drop).doing(|| format!("deleting the ClusterRoleBinding {name}"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use messina_api::names::annotation;

    use super::*;

    #[test]
    fn operator_of_one_namespace_shares_only_roles_and_policies() {
        let deployed = Deployed { watches: Some("a".into()), settings: vec![("MESSINA_LEASE_SECONDS", "4".into())] };
        let objects = deployed.objects().unwrap();
        let text = |object: &Value, pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        for object in objects.iter().filter(|object| !object.is_null()) {
            let kind = text(object, "/kind").unwrap();
            let place = text(object, "/metadata/namespace").or(text(object, "/metadata/name")).unwrap();
            let is_shared = ["ClusterRole", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
            assert!(is_shared.contains(&kind.as_str()) || place == "a-operator", "{kind} {place}");
            let subject = text(object, "/subjects/0/namespace");
            assert!(subject.is_none_or(|subject| subject == "a-operator"), "{kind}");
        }
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
        let variables = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        for (name, value) in [("MESSINA_NAMESPACE", "a"), ("MESSINA_LEASE_SECONDS", "4")] {
            let is_set = variables.as_array().unwrap().contains(&json!({"name": name, "value": value}));
            assert!(is_set, "{name}: {variables}");
        }
        assert_eq!(deployed.user(), "system:serviceaccount:a-operator:messina");
    }

    #[test]
    fn admission_policy_allows_the_annotations_that_sidecars_write() {
        let objects = Deployed::default().objects().unwrap();
        let policy = objects.iter().find(|object| object["kind"] == "ValidatingAdmissionPolicy").unwrap();
        let own = policy["spec"]["variables"].as_array().unwrap().iter().find(|one| one["name"] == "own").unwrap();
        let words = own["expression"].as_str().unwrap().split('\'').skip(1).step_by(2);
        let expected = annotation::BY_SIDECAR.iter().copied().chain([annotation::NODE_STATUS_REPORT]);
        assert_eq!(words.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn operator_of_all_namespaces_is_deployed_as_in_the_manifest() {
        let objects: Vec<Value> = serde_saphyr::from_multiple(OPERATOR).unwrap();
        assert_eq!(Deployed::default().objects().unwrap(), objects);
    }
}
