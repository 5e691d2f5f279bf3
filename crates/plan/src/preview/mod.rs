//! Renders the objects that the operator would create for manifests, without a Kubernetes cluster.
//!
//! It repeats the controller's plan, as if each StatefulSet rolled out at once, until all racks exist. Values that only
//! a cluster can provide are placeholders.

mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetStatus},
    core::v1::Secret,
};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use serde_json::Value;

use crate::datacenter::{
    Cached, CertificateChain, Component, Datacenter, DesiredObject, Gates, InvalidField, Objects, Observed, Plan,
    UserObjects, certificates, plan, validate,
};

/// Placeholder for the UID of the user's object, which the API server assigns.
pub const UID: &str = "<uid>";
/// Placeholder for the random token.
pub const TOKEN: &str = "<random>";
/// Placeholder for certificates and keys.
pub const SIGNED: &str = "<signed>";

/// A YAML document with objects.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// The name of its file.
    pub file: String,
    /// The YAML.
    pub text: String,
}

/// Settings for all objects.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of objects without one.
    pub namespace: String,
    /// The image of the operator, which also runs in the sidecars of each node.
    pub operator_image: String,
    /// The image of the node exporter.
    pub node_exporter_image: String,
}

/// The objects that the operator would create.
#[derive(Clone, Debug, Default)]
pub struct Preview {
    /// The objects of each datacenter.
    pub datacenters: Vec<Planned>,
    /// Errors, one line each. The operator would create nothing for these objects.
    pub errors: Vec<String>,
    /// Notes for the user, one line each.
    pub notes: Vec<String>,
}

/// The objects that the operator would create for a datacenter.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its manifest.
    pub file: String,
    /// The datacenter.
    pub datacenter: Datacenter,
    /// The objects, when all racks exist.
    pub objects: Objects,
}

/// Returns the objects that the operator would create for the manifests.
pub fn preview(manifests: &[Manifest], settings: &Settings) -> Preview {
    let mut preview = Preview::default();
    for manifest in manifests {
        match serde_saphyr::from_multiple::<Value>(&manifest.text) {
            Ok(objects) => {
                for object in objects.into_iter().flat_map(unpacked) {
                    preview.add(&manifest.file, object, settings);
                }
            }
            Err(error) => preview.errors.push(format!("{}: {error}", manifest.file)),
        }
    }
    preview
}

/// The objects of a list, or the object itself; nothing for an empty document.
fn unpacked(object: Value) -> Vec<Value> {
    match object {
        Value::Null => vec![],
        Value::Object(mut list) if list.get("kind").is_some_and(|kind| kind == "List") => {
            list.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default()
        }
        object => vec![object],
    }
}

impl Preview {
    fn add(&mut self, file: &str, mut object: Value, settings: &Settings) {
        if !object.is_object() {
            return self.errors.push(format!("{file}: a document is not a Kubernetes object"));
        }
        let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let kind = word(&object["kind"]);
        if object["metadata"]["namespace"].is_null() && object["metadata"].is_object() {
            object["metadata"]["namespace"] = settings.namespace.clone().into();
        }
        let metadata = &object["metadata"];
        let about = format!("{file}: {kind} {}/{}", word(&metadata["namespace"]), word(&metadata["name"]));
        let is_datacenter = object["apiVersion"] == "scylla.scylladb.com/v1alpha1" && kind == "ScyllaDBDatacenter";
        if !is_datacenter {
            return self.notes.push(format!("{about}: skipped, because only ScyllaDBDatacenters are supported"));
        }
        match planned(object, settings) {
            Ok((datacenter, plan)) => {
                // Cleanup waits for reports of running nodes, and here are none.
                let progressing = plan.progressing.iter().filter(|note| note.component != Component::Job);
                let notes = plan.degraded.iter().chain(progressing).chain(&plan.warnings);
                self.notes.extend(notes.map(|note| format!("{about}: {}", note.message)));
                self.datacenters.push(Planned { file: file.to_owned(), datacenter, objects: plan.objects });
            }
            Err(invalid) => {
                let lines = invalid.into_iter().map(|field| format!("{about}: {}: {}", field.field, field.message));
                self.errors.extend(lines);
            }
        }
    }
}

fn planned(object: Value, settings: &Settings) -> Result<(Datacenter, Plan), Vec<InvalidField>> {
    let object = stored::as_stored(object)?;
    let read = serde_json::from_value::<ScyllaDBDatacenter>(object);
    let mut object = read.map_err(|error| vec![InvalidField { field: "spec".into(), message: error.to_string() }])?;
    // A UID in the manifest is from a cluster, and would be in the owner references there.
    object.metadata.uid.get_or_insert_with(|| UID.to_owned());
    object.metadata.generation.get_or_insert(1);
    let datacenter = validate(&object)?;
    let cached = Cached {
        node_exporter_image: settings.node_exporter_image.clone(),
        gates: Gates { automatic_tls_certificates: true, ..Gates::default() },
        new_token: TOKEN.to_owned(),
        // They are taken to exist; their contents do not matter.
        user_objects: UserObjects {
            config_maps: datacenter.config_map_references().into_iter().map(|name| (name, Arc::default())).collect(),
            secrets: datacenter.secret_references().into_iter().map(|name| (name, Arc::default())).collect(),
        },
        ..Cached::new(datacenter.clone(), &settings.operator_image)
    };
    Ok((datacenter, completed(cached)))
}

/// Returns the plan when all certificates and racks exist.
fn completed(mut cached: Cached) -> Plan {
    store_outline(&mut cached);
    loop {
        let observed = observed(&cached);
        let plan = with_outline(&observed, plan(&observed));
        let known = cached.stateful_sets.len();
        cached.stateful_sets.extend(plan.objects.stateful_sets.iter().cloned().map(rolled_out));
        // Ingresses are created for existing Services.
        cached.services.insert(plan.objects.identity_service.clone());
        // No rack was added, so all exist.
        if cached.stateful_sets.len() == known {
            return plan;
        }
    }
}

fn observed(cached: &Cached) -> Observed {
    Observed::from_cached(cached.clone(), [])
}

/// Stores placeholders for certificates, because nodes wait until these exist.
fn store_outline(cached: &mut Cached) {
    let chains = certificates::outline(&observed(cached), SIGNED).0;
    for CertificateChain { authority, bundle, former_bundle, certificate } in chains {
        cached.secrets.extend(authority.into_iter().chain(certificate));
        cached.config_maps.extend(bundle.into_iter().chain(former_bundle));
    }
}

/// Replaces the certificates of a plan with placeholders. The plan itself would sign the placeholders again, as
/// malformed certificates.
fn with_outline(observed: &Observed, mut plan: Plan) -> Plan {
    plan.progressing.retain(|note| note.component != Component::Certificates);
    (plan.objects.certificates, plan.objects.cql_connection_configs) = certificates::outline(observed, SIGNED);
    plan
}

/// Returns the StatefulSet as it is when Kubernetes has rolled it out.
fn rolled_out(mut stateful_set: StatefulSet) -> StatefulSet {
    let replicas = stateful_set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    stateful_set.metadata.generation = Some(1);
    stateful_set.status = Some(StatefulSetStatus {
        observed_generation: Some(1),
        replicas,
        current_replicas: Some(replicas),
        ready_replicas: Some(replicas),
        available_replicas: Some(replicas),
        updated_replicas: Some(replicas),
        ..StatefulSetStatus::default()
    });
    stateful_set
}

impl Planned {
    /// Returns the objects as a YAML stream, in the order of creation.
    pub fn yaml(&self) -> Result<String, serde_saphyr::ser_error::Error> {
        let Datacenter { namespace, name, .. } = &self.datacenter;
        let mut stream = format!("# {}: ScyllaDBDatacenter {namespace}/{name}\n", self.file);
        // Cleanup Jobs depend on the token ring of running nodes.
        for (_, object) in self.objects.in_order().filter(|(component, _)| *component != Component::Job) {
            stream += "---\n";
            stream += &match object {
                DesiredObject::Secret(secret) => serde_saphyr::to_string(&readable(secret.clone()))?,
                object => serde_saphyr::to_string(&object)?,
            };
        }
        Ok(stream)
    }
}

/// Returns the Secret with `stringData`, so that placeholders are readable. A Secret that is not UTF-8 stays as it is.
fn readable(mut secret: Secret) -> Secret {
    let text = |bytes: &k8s_openapi::ByteString| String::from_utf8(bytes.0.clone()).ok();
    let texts = secret.data.iter().flatten().map(|(key, bytes)| Some((key.clone(), text(bytes)?))).collect();
    if let Some(texts) = texts {
        (secret.data, secret.string_data) = (None, Some(texts));
    }
    secret
}
