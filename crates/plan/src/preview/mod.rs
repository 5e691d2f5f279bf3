//! What the operator would create for manifests, without a cluster.
//!
//! It is what the controller plans, asked again and again as if every StatefulSet rolled out at once, until all racks
//! are there. What only a cluster could give is shown as a placeholder.

mod stored;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use k8s_openapi::api::{
    apps::v1::{StatefulSet, StatefulSetStatus},
    core::v1::Secret,
};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use serde::Serialize;
use serde_json::Value;

use crate::datacenter::{
    Cached, CertificateChain, Component, Datacenter, Gates, InvalidField, Objects, Observed, Plan, UserObjects,
    certificates, plan, validate,
};

/// Stands for the UID that an API server would give to the user's object.
pub const UID: &str = "<uid>";
/// Stands for the token that would be made of random letters.
pub const TOKEN: &str = "<random>";
/// Stands for certificates and keys.
pub const SIGNED: &str = "<signed>";

/// A text with objects as YAML.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// What the text is called, such as the name of its file.
    pub file: String,
    /// The text.
    pub text: String,
}

/// What is the same for all objects.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of objects that name none.
    pub namespace: String,
    /// The image of the operator, which also runs beside each node.
    pub operator_image: String,
    /// The image of the exporter of a machine's metrics.
    pub node_exporter_image: String,
}

/// What would be created.
#[derive(Clone, Debug, Default)]
pub struct Preview {
    /// What would be created for each datacenter.
    pub datacenters: Vec<Planned>,
    /// What is wrong, one line each. An operator would create nothing for those.
    pub errors: Vec<String>,
    /// What else there is to say, one line each.
    pub notes: Vec<String>,
}

/// What would be created for a datacenter.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its manifest.
    pub file: String,
    /// The datacenter.
    pub datacenter: Datacenter,
    /// The objects, when all racks are there.
    pub objects: Objects,
}

/// What would be created for everything in the manifests.
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
            return self.errors.push(format!("{file}: there is a document that is no object"));
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
            return self.notes.push(format!("{about}: it is not planned, because only ScyllaDBDatacenters are so far"));
        }
        match planned(object, settings) {
            Ok((datacenter, plan)) => {
                // What is told by nodes once they run is not waited for where none runs.
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
    // Who brings a UID has it from a cluster, and it would be the owner's there.
    object.metadata.uid.get_or_insert_with(|| UID.to_owned());
    object.metadata.generation.get_or_insert(1);
    let datacenter = validate(&object)?;
    let cached = Cached {
        node_exporter_image: settings.node_exporter_image.clone(),
        gates: Gates { automatic_tls_certificates: true, ..Gates::default() },
        new_token: TOKEN.to_owned(),
        // Whatever is in them.
        user_objects: UserObjects {
            config_maps: datacenter.config_map_references().into_iter().map(|name| (name, Arc::default())).collect(),
            secrets: datacenter.secret_references().into_iter().map(|name| (name, Arc::default())).collect(),
        },
        ..Cached::new(datacenter.clone(), &settings.operator_image)
    };
    Ok((datacenter, completed(cached)))
}

/// The plan when all certificates and racks are there.
fn completed(mut cached: Cached) -> Plan {
    store_outline(&mut cached);
    loop {
        let observed = observed(&cached);
        let plan = with_outline(&observed, plan(&observed));
        let known = cached.stateful_sets.len();
        cached.stateful_sets.extend(plan.objects.stateful_sets.iter().cloned().map(rolled_out));
        // Ingresses are for Services that are there.
        cached.services.insert(plan.objects.identity_service.clone());
        // No rack is new, so none will be.
        if cached.stateful_sets.len() == known {
            return plan;
        }
    }
}

fn observed(cached: &Cached) -> Observed {
    Observed::from_cached(cached.clone(), [])
}

/// Nodes wait for their certificates, whatever these say.
fn store_outline(cached: &mut Cached) {
    let chains = certificates::outline(&observed(cached), SIGNED).0;
    for CertificateChain { authority, bundle, former_bundle, certificate } in chains {
        cached.secrets.extend(authority.into_iter().chain(certificate));
        cached.config_maps.extend(bundle.into_iter().chain(former_bundle));
    }
}

/// A plan takes placeholders for certificates that cannot be read, and would have them signed anew.
fn with_outline(observed: &Observed, mut plan: Plan) -> Plan {
    plan.progressing.retain(|note| note.component != Component::Certificates);
    (plan.objects.certificates, plan.objects.cql_connection_configs) = certificates::outline(observed, SIGNED);
    plan
}

/// The StatefulSet as it is when Kubernetes has done everything that it asks for.
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
    /// The objects as a YAML stream, in the order in which they are needed.
    pub fn yaml(&self) -> Result<String, serde_saphyr::ser_error::Error> {
        // Named one by one, so that none is forgotten.
        let Objects {
            service_account,
            role_binding,
            agent_auth_token,
            managed_config,
            managed_agent_config,
            snitch_configs,
            pod_disruption_budget,
            identity_service,
            member_services,
            certificates,
            cql_connection_configs,
            stateful_sets,
            ingresses,
            // They come and go with the life of the nodes.
            cleanup_jobs: _,
        } = &self.objects;
        let Datacenter { namespace, name, .. } = &self.datacenter;
        let mut stream = Stream(format!("# {}: ScyllaDBDatacenter {namespace}/{name}\n", self.file));
        stream.add([service_account])?;
        stream.add([role_binding])?;
        stream.add(agent_auth_token.clone().map(readable).as_ref())?;
        stream.add([managed_config, managed_agent_config])?;
        stream.add(snitch_configs)?;
        stream.add([identity_service])?;
        stream.add(member_services)?;
        stream.add([pod_disruption_budget])?;
        for CertificateChain { authority, bundle, former_bundle, certificate } in certificates {
            stream.add(authority.clone().map(readable).as_ref())?;
            stream.add(bundle)?;
            stream.add(former_bundle)?;
            stream.add(certificate.clone().map(readable).as_ref())?;
        }
        stream.add(cql_connection_configs.clone().map(readable).as_ref())?;
        stream.add(stateful_sets)?;
        stream.add(ingresses)?;
        Ok(stream.0)
    }
}

struct Stream(String);

impl Stream {
    fn add<'a, K: Serialize + 'a>(
        &mut self,
        objects: impl IntoIterator<Item = &'a K>,
    ) -> Result<(), serde_saphyr::ser_error::Error> {
        for object in objects {
            self.0 += "---\n";
            self.0 += &serde_saphyr::to_string(object)?;
        }
        Ok(())
    }
}

/// The same Secret with its texts as texts, so that the placeholder can be seen. Others keep their form.
fn readable(mut secret: Secret) -> Secret {
    let text = |bytes: &k8s_openapi::ByteString| String::from_utf8(bytes.0.clone()).ok();
    let texts = secret.data.iter().flatten().map(|(key, bytes)| Some((key.clone(), text(bytes)?))).collect();
    if let Some(texts) = texts {
        (secret.data, secret.string_data) = (None, Some(texts));
    }
    secret
}
