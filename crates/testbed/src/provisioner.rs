//! Provisions volumes for claims: folders of the Kubernetes node to which the claim's first pod was scheduled.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use futures::StreamExt;
use k8s_openapi::{
    api::core::v1::{
        HostPathVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
        PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;

use crate::{
    cache,
    error::{Doing, Result},
    harness, node,
};

const NAME: &str = "messina.testbed/local";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Provisions volumes for the claims of the cluster in `folder`, for ever.
pub async fn run(folder: &Path) -> Result<()> {
    let client = harness::client(&folder.join("pki/admin.kubeconfig")).await?;
    let provisioner = Provisioner { client: client.clone(), folder: folder.to_owned() };
    let claims = watcher::watcher(Api::<PersistentVolumeClaim>::all(client.clone()), watcher::Config::default());
    let volumes = watcher::watcher(Api::<PersistentVolume>::all(client), watcher::Config::default());
    let serve_claims = claims.default_backoff().applied_objects().for_each(|claim| async {
        match claim {
            Ok(claim) => log(provisioner.serve(&claim).await),
            Err(error) => eprintln!("watching claims: {error}"),
        }
    });
    let reclaim_volumes = volumes.default_backoff().applied_objects().for_each(|volume| async {
        match volume {
            Ok(volume) => log(provisioner.reclaim(&volume).await),
            Err(error) => eprintln!("watching volumes: {error}"),
        }
    });
    tokio::join!(serve_claims, reclaim_volumes);
    Ok(())
}

fn log(result: Result<()>) {
    if let Err(error) = result {
        eprintln!("{error}");
    }
}

struct Provisioner {
    client: Client,
    folder: PathBuf,
}

impl Provisioner {
    /// Creates the volume of a claim, or expands it.
    async fn serve(&self, claim: &PersistentVolumeClaim) -> Result<()> {
        let annotation = |name: &str| claim.annotations().get(name).map(String::as_str);
        if annotation("volume.kubernetes.io/storage-provisioner") != Some(NAME)
            || claim.metadata.deletion_timestamp.is_some()
        {
            return Ok(());
        }
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let Some(spec) = &claim.spec else { return Ok(()) };
        let Some(wanted) = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"))
        else {
            return Ok(());
        };
        if let Some(volume) = &spec.volume_name {
            let has = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
            if has.is_some_and(|has| has != wanted) {
                // A folder has no size limit, so only the objects change.
                let params = PatchParams::default();
                let grown = json!({"capacity": {"storage": wanted}});
                let patch = Patch::Merge(json!({"spec": grown}));
                volumes.patch(volume, &params, &patch).await.doing(|| format!("expanding {volume}"))?;
                let claims: Api<PersistentVolumeClaim> =
                    Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
                let patch = Patch::Merge(json!({"status": grown}));
                claims
                    .patch_status(&claim.name_any(), &params, &patch)
                    .await
                    .doing(|| format!("expanding {}", claim.name_any()))?;
            }
            return Ok(());
        }
        let Some(node) = annotation("volume.kubernetes.io/selected-node") else { return Ok(()) };
        let name = format!("pvc-{}", claim.uid().unwrap_or_default());
        let folder = node::folder(&self.folder, node).join("volumes").join(&name);
        fs::create_dir_all(&folder)
            .and_then(|()| fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)))
            .doing(|| format!("creating {}", folder.display()))?;
        let volume = PersistentVolume {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                annotations: Some([(PROVISIONED_BY.to_owned(), NAME.to_owned())].into()),
                ..Default::default()
            },
            spec: Some(PersistentVolumeSpec {
                access_modes: spec.access_modes.clone(),
                capacity: Some([("storage".to_owned(), wanted.clone())].into()),
                claim_ref: Some(ObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("PersistentVolumeClaim".into()),
                    name: claim.metadata.name.clone(),
                    namespace: claim.metadata.namespace.clone(),
                    uid: claim.metadata.uid.clone(),
                    ..Default::default()
                }),
                host_path: Some(HostPathVolumeSource {
                    path: format!("{}/volumes/{name}", node::HERE),
                    type_: Some("Directory".into()),
                }),
                node_affinity: Some(VolumeNodeAffinity {
                    required: Some(NodeSelector {
                        node_selector_terms: vec![NodeSelectorTerm {
                            match_expressions: Some(vec![NodeSelectorRequirement {
                                key: "kubernetes.io/hostname".into(),
                                operator: "In".into(),
                                values: Some(vec![node.to_owned()]),
                            }]),
                            ..Default::default()
                        }],
                    }),
                }),
                persistent_volume_reclaim_policy: Some("Delete".into()),
                storage_class_name: spec.storage_class_name.clone(),
                ..Default::default()
            }),
            ..Default::default()
        };
        match volumes.create(&PostParams::default(), &volume).await {
            // An earlier event of the claim created it; Kubernetes will bind it.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => created.map(drop).doing(|| format!("creating the volume {name}")),
        }
    }

    /// Deletes a volume whose claim is gone.
    async fn reclaim(&self, volume: &PersistentVolume) -> Result<()> {
        let released = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released");
        let deletes =
            volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
        let ours = volume.annotations().get(PROVISIONED_BY).is_some_and(|by| by == NAME);
        let Some(node) = node_of(volume).filter(|_| released && deletes && ours) else { return Ok(()) };
        cache::remove(&node::folder(&self.folder, node).join("volumes").join(volume.name_any()))?;
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        volumes
            .delete(&volume.name_any(), &DeleteParams::default())
            .await
            .map(drop)
            .doing(|| format!("removing {}", volume.name_any()))
    }
}

/// The Kubernetes node of a volume of this provisioner.
fn node_of(volume: &PersistentVolume) -> Option<&str> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let expressions = affinity.node_selector_terms.first()?.match_expressions.as_ref()?;
    expressions.first()?.values.as_ref()?.first().map(String::as_str)
}
