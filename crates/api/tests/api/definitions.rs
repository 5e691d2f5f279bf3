//! The definitions are those in `deploy/crds/`, include those of the peers, and are valid.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use messina_api::crd;
use serde_json::{Value, json};

use crate::{DEFINITIONS, element, first, is_required, properties, shared, visit_nodes};

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crds")
}

fn assert_none(faults: Vec<String>, rule: &str) {
    assert!(faults.is_empty(), "{rule}; {} faults:\n  {}", faults.len(), first(&faults));
}

#[test]
fn deployed_definitions_are_those_of_the_types() {
    let expected: BTreeMap<String, String> =
        crd::all().iter().map(|definition| (crd::file_name(definition), crd::yaml(definition).unwrap())).collect();
    let found: BTreeSet<String> =
        fs::read_dir(files()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();

    let mut faults = Vec::new();
    for (file, text) in &expected {
        if !found.contains(file) {
            faults.push(format!("{file} is missing"));
        } else if fs::read_to_string(files().join(file)).unwrap() != *text {
            faults.push(format!("{file} differs from its type"));
        }
    }
    faults.extend(found.iter().filter(|file| !expected.contains_key(*file)).map(|file| format!("{file} is left over")));
    assert_none(faults, "deploy/crds is outdated: run `make crds`");
}

#[test]
fn definitions_include_those_of_the_peers() {
    let tool = shared().join("tools/crd_conformance.py");
    let peers = shared().join("compat/crds");
    if let Some(absent) = [&tool, &peers].into_iter().find(|path| !path.exists()) {
        return eprintln!("skipped: {} is not there", absent.display());
    }
    match Command::new("python3").args(["-c", "import yaml"]).output() {
        Err(error) => return eprintln!("skipped: python3 cannot be run: {error}"),
        Ok(output) if !output.status.success() => return eprintln!("skipped: python3 has no module yaml"),
        Ok(_) => {}
    }
    // The tool skips kinds that we do not serve; the environment must not add others.
    let output = Command::new("python3").arg(&tool).arg(files()).arg(&peers).env_remove("SKIP_KINDS").output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{} ended with {}:\n{text}", tool.display(), output.status);
    // The number of nodes is compared, so that the tool cannot skip any without a failure.
    let last = String::from_utf8_lossy(&output.stdout).lines().last().map(str::to_owned);
    assert_eq!(last.as_deref(), Some("7116 schema nodes compared, 0 differences"), "{text}");
    eprintln!("{}", last.unwrap_or_default());
}

/// Fields that embed a type of Kubernetes, or a list of it. Their own fields have no descriptions, which would make the
/// definitions too large for etcd.
const EMBEDDED: [&str; 13] = [
    "agentResources",
    "agentVolumeMounts",
    "conditions",
    "imagePullSecrets",
    "kubeconfigSecretRef",
    "nodeAffinity",
    "podAffinity",
    "podAntiAffinity",
    "readinessGates",
    "resources",
    "tolerations",
    "volumeMounts",
    "volumes",
];

#[test]
fn every_field_has_a_description_and_embedded_types_have_none() {
    let mut faults = Vec::new();
    let mut embedded = BTreeSet::new();
    for definition in DEFINITIONS.iter() {
        for (name, property) in properties(&definition.schema) {
            // The API server describes metadata itself.
            if name != "metadata" {
                describe(property, &format!("{}.{name}", definition.kind), &mut embedded, &mut faults);
            }
        }
    }
    assert_none(faults, "fields have descriptions, and fields of embedded types have none");
    // A name that is no longer embedded would hide a field without a description.
    assert_eq!(embedded, BTreeSet::from(EMBEDDED), "fields that embed a type of Kubernetes");
}

/// Checks a field and its descendants, and collects the fields that embed a type of Kubernetes.
fn describe(schema: &Value, path: &str, embedded: &mut BTreeSet<&'static str>, faults: &mut Vec<String>) {
    if schema.get("description").is_none() {
        faults.push(format!("{path}: has no description"));
    }
    let mut inner = schema;
    while let Some(element) = element(inner) {
        inner = element;
    }
    let field = path.rsplit('.').next().and_then(|field| EMBEDDED.into_iter().find(|embedded| *embedded == field));
    if let Some(field) = field
        && properties(inner).all(|(_, property)| property.get("description").is_none())
    {
        embedded.insert(field);
        for (name, property) in properties(inner) {
            visit_nodes(property, &format!("{path}.{name}"), &mut |path, node| {
                if node.contains_key("description") {
                    faults.push(format!("{path}: has a description, although it is embedded"));
                }
            });
        }
    } else {
        for (name, property) in properties(inner) {
            describe(property, &format!("{path}.{name}"), embedded, faults);
        }
    }
}

#[test]
fn descriptions_are_sentences_in_paragraphs() {
    let mut faults = Vec::new();
    let mut descriptions = 0;
    for definition in DEFINITIONS.iter() {
        visit_nodes(&definition.schema, &definition.kind, &mut |path, node| {
            let Some(text) = node.get("description").and_then(Value::as_str) else { return };
            descriptions += 1;
            if !text.ends_with('.') {
                faults.push(format!("{path}: does not end with a full stop: {text:?}"));
            }
            if text.split("\n\n").any(|paragraph| paragraph.is_empty() || paragraph.contains('\n')) {
                faults.push(format!("{path}: has a line break inside a paragraph: {text:?}"));
            }
        });
    }
    assert_none(faults, "descriptions consist of sentences, with line breaks between paragraphs only");
    eprintln!("{descriptions} descriptions");
}

/// Rules whose violation makes the API server reject a definition, or not enforce it.
#[test]
fn every_schema_is_structural() {
    let mut faults = Vec::new();
    let mut nodes = 0;
    for definition in DEFINITIONS.iter() {
        visit_nodes(&definition.schema, &definition.kind, &mut |path, node| {
            nodes += 1;
            let is = |keyword: &str| node.get(keyword) == Some(&Value::Bool(true));
            let int_or_string = is("x-kubernetes-int-or-string");
            let mut fault = |fault: String| faults.push(format!("{path}: {fault}"));

            for keyword in ["$ref", "allOf", "oneOf", "not", "nullable", "uniqueItems"] {
                if node.contains_key(keyword) {
                    fault(format!("has {keyword}"));
                }
            }
            if let Some(any_of) = node.get("anyOf")
                && !(int_or_string && *any_of == json!([{"type": "integer"}, {"type": "string"}]))
            {
                fault("has anyOf".into());
            }
            match (node.get("type"), int_or_string || is("x-kubernetes-preserve-unknown-fields")) {
                (None, false) => fault("has no type".into()),
                (Some(_), _) if int_or_string => fault("has a type beside x-kubernetes-int-or-string".into()),
                (Some(Value::String(one)), _) if one == "array" && !node.contains_key("items") => {
                    fault("is a list of anything".into());
                }
                (None, true) | (Some(Value::String(_)), _) => {}
                (Some(types), _) => fault(format!("has the type {types}")),
            }
            if node.contains_key("properties") && node.contains_key("additionalProperties") {
                fault("has properties beside additionalProperties".into());
            }
            let known = node.get("properties").and_then(Value::as_object);
            for required in node.get("required").and_then(Value::as_array).into_iter().flatten() {
                if !required.as_str().is_some_and(|name| known.is_some_and(|known| known.contains_key(name))) {
                    fault(format!("requires {required}, which is no field of it"));
                }
            }
            let keys = node.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            if (node.get("x-kubernetes-list-type") == Some(&"map".into())) != keys.is_some_and(|keys| !keys.is_empty())
            {
                fault("is a map without keys, or has keys without being one".into());
            }
            for key in keys.into_iter().flatten().filter_map(Value::as_str) {
                let property = &node["items"]["properties"][key];
                if !is_required(&node["items"], key) && property.get("default").is_none() {
                    fault(format!("has the key {key}, which an item may lack"));
                }
            }
        });
    }
    assert_none(faults, "not a structural schema");
    eprintln!("{nodes} schema nodes");
}

#[test]
fn names_scopes_and_subresources() {
    let status = json!({"status": {}});
    let none = Value::Null;
    let scale = json!({
        "status": {},
        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
    });
    let (namespaced, cluster) = ("Namespaced", "Cluster");
    let (scylla, druid) = ("scylla.scylladb.com", "druid.gardener.cloud");
    type Row<'a> = (&'a str, &'a str, &'a str, &'a [&'a str], &'a [&'a str], &'a str, &'a Value);
    // Group, version, kind, short names, categories, scope, subresources.
    let expected: [Row<'_>; 9] = [
        (scylla, "v1", "ScyllaCluster", &[], &["scylladb"], namespaced, &scale),
        (scylla, "v1alpha1", "ScyllaDBCluster", &["sdbc"], &["scylladb"], namespaced, &status),
        (scylla, "v1alpha1", "ScyllaDBDatacenter", &["sdc"], &["scylladb"], namespaced, &status),
        (scylla, "v1alpha1", "ScyllaDBManagerClusterRegistration", &[], &["scylladb"], namespaced, &status),
        (scylla, "v1alpha1", "ScyllaDBManagerTask", &[], &["scylladb"], namespaced, &status),
        (scylla, "v1alpha1", "ScyllaDBStatusReport", &[], &["scylladb"], namespaced, &none),
        (scylla, "v1alpha1", "RemoteKubernetesCluster", &[], &["scylladb"], cluster, &status),
        (scylla, "v1alpha1", "RemoteOwner", &[], &["scylladb"], namespaced, &none),
        (druid, "v1alpha1", "EtcdOperatorTask", &["eot", "eots"], &[], namespaced, &status),
    ];
    let found: Vec<Value> = crd::all().iter().map(|definition| serde_json::to_value(definition).unwrap()).collect();
    assert_eq!(found.len(), expected.len(), "number of definitions");
    for (definition, (group, version, kind, short_names, categories, scope, subresources)) in found.iter().zip(expected)
    {
        let spec = &definition["spec"];
        let plural = format!("{}s", kind.to_lowercase());
        assert_eq!(spec["group"], group, "group of {kind}");
        assert_eq!(spec["names"]["kind"], kind, "kind of {kind}");
        assert_eq!(spec["names"]["plural"], plural, "plural of {kind}");
        assert_eq!(spec["names"]["singular"], kind.to_lowercase(), "singular of {kind}");
        assert_eq!(definition["metadata"]["name"], format!("{plural}.{group}"), "name of {kind}");
        assert_eq!(list(&spec["names"]["shortNames"]), short_names, "short names of {kind}");
        assert_eq!(list(&spec["names"]["categories"]), categories, "categories of {kind}");
        assert_eq!(spec["scope"], scope, "scope of {kind}");
        let [only] = spec["versions"].as_array().unwrap().as_slice() else { panic!("{kind} has several versions") };
        assert_eq!(only["name"], version, "version of {kind}");
        assert_eq!(only["served"], true, "whether {kind} is served");
        assert_eq!(only["storage"], true, "whether {kind} is stored");
        assert_eq!(only["subresources"], *subresources, "subresources of {kind}");
        // A status that is no subresource can be changed with the spec; one without a schema is pruned.
        let has_status = only["schema"]["openAPIV3Schema"]["properties"].get("status").is_some();
        assert_eq!(has_status, subresources.get("status").is_some(), "status of {kind}");
    }
}

fn list(texts: &Value) -> Vec<&str> {
    texts.as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect()
}
