//! Objects of a datacenter as scylla-operator left them, written in its name.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use messina_api::names::{annotation, label};
use messina_e2e::{SOON, accepts};
use messina_operator::certificates::{EcdsaKeySize, Key, KeyKind, sign};
use messina_plan::datacenter::certificates::{Purpose, SignedCertificate, SigningRequest};
use messina_testbed::harness::{Seen, eventually};
use serde_json::{Value, json};

/// Field managers of scylla-operator: it sets none, so the API server uses the beginning of its user agent.
pub(super) const OPERATOR: &str = "scylla-operator (linux";
pub(super) const SIDECAR: &str = "scylla-sidecar (linux";
/// Field manager of a user who edits objects.
pub(super) const USER: &str = "kubectl-edit";
/// The annotation with the hash of scylla-operator's last write. As long as it is unchanged, scylla-operator does not
/// write the object again.
pub(super) const MANAGED_HASH: &str = label::MANAGED_HASH;
/// What a user adds to objects of a datacenter.
pub(super) const NOTE: &str = "example.com/note";
const RING: &str = "the-ring";

/// Kinds that Messina does not write yet; each is the beginning of a file's name.
const LEFT_OUT: [&str; 5] = [
    "scyllacluster-",
    "scylladbdatacenter-",
    "scylladbdatacenternodesstatusreport-",
    "scylladbmanagerclusterregistration-",
    "scylladbmanagertask-",
];

/// The folder with the objects of a datacenter of scylla-operator; prints if there is none.
pub(super) fn folder(name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let folder = env::var_os("MESSINA_SHARED").map_or(beside, PathBuf::from).join("compat/golden").join(name);
    if !folder.is_dir() {
        println!("skipped: {} is not there", folder.display());
        return None;
    }
    Some(folder)
}

/// A datacenter of scylla-operator, and its objects.
pub(super) struct Golden {
    pub(super) name: String,
    /// The objects as they were created, by kind and name.
    pub(super) objects: BTreeMap<(String, String), Value>,
    /// Certificates of authorities, by the name of their Secret.
    pub(super) authorities: BTreeMap<String, String>,
}

impl Golden {
    /// Creates the datacenter, changed by `change`, and then its objects, each as `prepare` leaves it.
    pub(super) async fn load(
        client: &Client,
        namespace: &str,
        folder: &Path,
        change: impl FnOnce(&mut Value),
        prepare: impl Fn(&mut Value),
    ) -> Self {
        let mut datacenter = read(&folder.join("input-datacenter.yaml"));
        change(&mut datacenter);
        let stored = accepts(client, namespace, &datacenter.to_string()).await;
        let name = stored["metadata"]["name"].as_str().unwrap().to_owned();
        let mut golden = Self { name, objects: BTreeMap::new(), authorities: BTreeMap::new() };
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder.join("objects")).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        let mut objects: Vec<Value> = files.iter().filter(|file| is_loaded(file)).map(|file| read(file)).collect();
        // Pods need the objects that they mount, and a ServiceAccount.
        objects.sort_by_key(|object| object["kind"] == "StatefulSet");
        for mut object in objects {
            golden.fill_in(&mut object, namespace, &stored["metadata"]["uid"]);
            prepare(&mut object);
            let api = api(client, namespace, &object);
            let params = PostParams { field_manager: Some(OPERATOR.into()), ..PostParams::default() };
            let created = api.create(&params, &serde_json::from_value(object.clone()).unwrap()).await;
            let created = created.unwrap_or_else(|error| panic!("{error}: {object}"));
            let kind = object["kind"].as_str().unwrap().to_owned();
            forget_age(&api, &created.name_any()).await;
            golden.objects.insert((kind, created.name_any()), serde_json::to_value(&created).unwrap());
        }
        golden.identify_nodes(client, namespace).await;
        golden
    }

    /// Sets the namespace and the owner of an object, and values that the golden files omit.
    fn fill_in(&mut self, object: &mut Value, namespace: &str, uid: &Value) {
        object.as_object_mut().unwrap().remove("status");
        object["metadata"].as_object_mut().unwrap().remove("generation");
        object["metadata"]["namespace"] = namespace.into();
        object["metadata"]["ownerReferences"][0]["uid"] = uid.clone();
        object["metadata"]["annotations"][MANAGED_HASH] = "the-hash-of-scylla-operator".into();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        match object["kind"].as_str().unwrap() {
            "Service" => {
                for field in ["clusterIP", "clusterIPs"] {
                    object["spec"].as_object_mut().unwrap().remove(field);
                }
                let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
                // Written by the sidecar.
                annotations.remove(annotation::HOST_ID);
                annotations.remove(annotation::CURRENT_TOKEN_RING_HASH);
                if let Some(ring) = annotations.get_mut(annotation::LAST_CLEANED_UP_TOKEN_RING_HASH) {
                    *ring = RING.into();
                }
            }
            "RoleBinding" => object["subjects"][0]["namespace"] = namespace.into(),
            "ConfigMap" if name.ends_with("-ca") => {
                object["data"]["ca-bundle.crt"] = self.authority(&name).certificate.into()
            }
            "Secret" if name.ends_with("-ca") => {
                let SignedCertificate { certificate, key } = self.authority(&name);
                object.as_object_mut().unwrap().remove("data");
                object["stringData"] = json!({"tls.crt": certificate, "tls.key": key});
            }
            "Secret" if name.ends_with("-auth-token") => {
                object.as_object_mut().unwrap().remove("data");
                object["stringData"] = json!({"auth-token.yaml": "auth_token: the-token\n"});
            }
            "Secret" if object["data"].is_object() => {
                // These are signed again by their authorities.
                let data = object["data"].as_object_mut().unwrap();
                let names: Vec<String> = data.keys().cloned().collect();
                object.as_object_mut().unwrap().remove("data");
                object["stringData"] = names.into_iter().map(|name| (name, json!("none"))).collect();
            }
            _ => {}
        }
    }

    /// An authority of this name. Its Secret and its ConfigMap have the same one.
    fn authority(&mut self, name: &str) -> SignedCertificate {
        let now = Timestamp::now();
        let order = SigningRequest {
            secret: name.to_owned(),
            purpose: Purpose::Authority,
            common_name: Some(name.to_owned()),
            dns_names: [].into(),
            addresses: [].into(),
            not_before: now - SignedDuration::from_mins(1),
            not_after: now + SignedDuration::from_hours(10 * 365 * 24),
            signer: None,
            reason: String::new(),
        };
        // ConfigMaps come before Secrets, by the names of their files.
        let key = Key::new(KeyKind::Ecdsa(EcdsaKeySize::Bits256)).unwrap();
        match self.authorities.remove(&format!("{name}.key")) {
            Some(key) => SignedCertificate { certificate: self.authorities[name].clone(), key },
            None => {
                let signed = sign(&order, &key).unwrap();
                self.authorities.insert(name.to_owned(), signed.certificate.clone());
                self.authorities.insert(format!("{name}.key"), signed.key.clone());
                signed
            }
        }
    }

    /// Sets the host ID and the ring annotations of every node.
    async fn identify_nodes(&self, client: &Client, namespace: &str) {
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        for (number, service) in self.members().enumerate() {
            let identity = json!({"metadata": {"annotations": {
                annotation::HOST_ID: host_id(number), annotation::CURRENT_TOKEN_RING_HASH: RING,
            }}});
            let params = PatchParams { field_manager: Some(SIDECAR.into()), ..PatchParams::default() };
            services.patch(service, &params, &Patch::Merge(&identity)).await.unwrap();
        }
    }

    /// Names of the nodes' Services, which are those of their pods.
    pub(super) fn members(&self) -> impl Iterator<Item = &str> {
        let is_member = |object: &Value| object["metadata"]["labels"]["scylla/rack"].is_string();
        let services = self.objects.iter().filter(move |((kind, _), object)| kind == "Service" && is_member(object));
        services.map(|((_, name), _)| name.as_str())
    }

    pub(super) fn stateful_sets(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().filter(|(kind, _)| kind == "StatefulSet").map(|(_, name)| name.as_str())
    }

    /// A user adds an annotation to every object.
    pub(super) async fn annotate(&self, client: &Client, namespace: &str) {
        for ((_, name), object) in &self.objects {
            let note = json!({"metadata": {"annotations": {NOTE: "mine"}}});
            let params = PatchParams { field_manager: Some(USER.into()), ..PatchParams::default() };
            api(client, namespace, object).patch(name, &params, &Patch::Merge(&note)).await.unwrap();
        }
    }

    /// Writes all objects as scylla-operator does where something else has written them since, an hour ago.
    pub(super) async fn take_back(&self, client: &Client, namespace: &str) {
        for ((_, name), object) in &self.objects {
            let api = api(client, namespace, object);
            let existing = api.get(name).await.unwrap();
            let mut wanted: DynamicObject = serde_json::from_value(object.clone()).unwrap();
            for (key, value) in existing.annotations() {
                wanted.annotations_mut().entry(key.clone()).or_insert_with(|| value.clone());
            }
            for (key, value) in existing.labels() {
                wanted.labels_mut().entry(key.clone()).or_insert_with(|| value.clone());
            }
            wanted.metadata.managed_fields = None;
            wanted.metadata.resource_version = existing.metadata.resource_version;
            let params = PostParams { field_manager: Some(OPERATOR.into()), ..PostParams::default() };
            let replaced =
                api.replace(name, &params, &wanted).await.unwrap_or_else(|error| panic!("{error}: {object}"));
            forget_age(&api, &replaced.name_any()).await;
        }
    }

    /// The existing objects, by kind and name.
    pub(super) async fn now(&self, client: &Client, namespace: &str) -> BTreeMap<(String, String), Value> {
        let mut now = BTreeMap::new();
        for ((kind, name), object) in &self.objects {
            if let Some(found) = api(client, namespace, object).get_opt(name).await.unwrap() {
                now.insert((kind.clone(), name.clone()), serde_json::to_value(found).unwrap());
            }
        }
        now
    }
}

pub(super) fn host_id(number: usize) -> String {
    format!("{number:08}-1111-1111-1111-111111111111")
}

fn is_loaded(file: &Path) -> bool {
    let name = file.file_name().unwrap().to_string_lossy();
    !LEFT_OUT.iter().any(|beginning| name.starts_with(beginning))
}

fn read(file: &Path) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap()
}

/// The API of an object's kind.
pub(super) fn api(client: &Client, namespace: &str, object: &Value) -> Api<DynamicObject> {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Makes the managed fields of an object an hour older. The API server keeps the times if a patch changes nothing else.
pub(super) async fn forget_age(api: &Api<DynamicObject>, name: &str) {
    let params = PatchParams { field_manager: Some(USER.into()), ..PatchParams::default() };
    let aged = eventually("the records to be older", SOON, async || {
        let object = api.get(name).await.unwrap();
        let now = Timestamp::now();
        let time = (now - SignedDuration::from_hours(1)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        // Kubernetes may write the status meanwhile, and managed fields are patched by index.
        let same = json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.resource_version()});
        let note = json!({"op": "add", "path": "/metadata/annotations/example.com~1aged", "value": now.to_string()});
        let records = 0..object.metadata.managed_fields.as_ref().unwrap().len();
        let older = records.map(
            |index| json!({"op": "replace", "path": format!("/metadata/managedFields/{index}/time"), "value": time}),
        );
        let patch: Value = [same, note].into_iter().chain(older).collect();
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch).unwrap());
        let patched = api.patch(name, &params, &patch).await;
        Ok(patched.map_or_else(|error| Seen::NotYet(error.to_string()), |_| Seen::Ready(())))
    });
    aged.await.unwrap();
}

/// The managed fields of scylla-operator's field managers.
pub(super) fn records_of_operator(object: &Value) -> Vec<&Value> {
    let records = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    records.filter(|record| record["manager"] == OPERATOR && record["subresource"].is_null()).collect()
}
