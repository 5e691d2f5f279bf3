//! Manifests: the examples of Messina, and those of users of scylla-operator and etcd-druid.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use k8s_openapi::serde::{Serialize, de::DeserializeOwned};
use messina_api::{druid::v1alpha1::EtcdOperatorTask, scylla::v1, scylla::v1alpha1};
use messina_e2e::{DEFINITIONS, accepts, in_a_namespace, objects, refuses};
use serde_json::Value;

use super::cluster;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/examples");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/compat/golden");

#[tokio::test]
async fn examples_are_accepted_and_round_trip() {
    let readme = fs::read_to_string(Path::new(EXAMPLES).join("README.md")).unwrap();
    in_a_namespace("examples", async |client, namespace| {
        let mut kinds = BTreeSet::new();
        for file in files(EXAMPLES, |name| name.ends_with(".yaml")) {
            let listed = file.strip_prefix(EXAMPLES).unwrap().display().to_string();
            assert!(readme.contains(&format!("({listed})")), "README.md does not mention {listed}");
            for object in objects(&fs::read_to_string(&file).unwrap()) {
                println!("{listed}: {} {}", object["kind"], object["metadata"]["name"]);
                let mut stored = accepts(client, namespace, &object.to_string()).await;
                let kind = stored["kind"].as_str().unwrap().to_owned();
                if let Some(written) = written_by_our_type(&kind, &stored) {
                    stored["metadata"].take();
                    assert_eq!(written, stored, "{listed}: what our type writes is not what the server has");
                }
                kinds.insert(kind);
            }
        }
        for definition in DEFINITIONS.iter() {
            let kind = &definition.spec.names.kind;
            assert!(kinds.contains(kind), "there is no example of {kind}");
        }
    })
    .await;
}

#[tokio::test]
async fn golden_inputs_are_accepted_and_parsed() {
    if !Path::new(GOLDEN).is_dir() {
        println!("skipped: {GOLDEN} is not there");
        return;
    }
    in_a_namespace("golden", async |client, namespace| {
        let files = files(GOLDEN, |name| name == "input.yaml" || name == "input-datacenter.yaml");
        assert!(!files.is_empty(), "there are no inputs in {GOLDEN}");
        for file in files {
            println!("{}", file.display());
            let stored = accepts(client, namespace, &fs::read_to_string(&file).unwrap()).await;
            let kind = stored["kind"].as_str().unwrap();
            assert!(written_by_our_type(kind, &stored).is_some(), "{kind} is not ours");
        }
    })
    .await;
}

#[tokio::test]
async fn unknown_field_is_refused() {
    in_a_namespace("unknown-fields", async |client, namespace| {
        let misspelt = cluster("misspelt", "{alternator: {writeIsolaton: always}}");
        refuses(client, namespace, &misspelt, r#"unknown field "spec.alternator.writeIsolaton""#).await;
        // The same holds at the root of an object.
        let beside = cluster("beside", "{}, specs: {}");
        refuses(client, namespace, &beside, r#"unknown field "specs""#).await;
    })
    .await;
}

/// All files below a folder whose names match.
fn files(folder: impl AsRef<Path>, is_asked_for: fn(&str) -> bool) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.as_ref().display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, is_asked_for));
        } else if path.file_name().and_then(|name| name.to_str()).is_some_and(is_asked_for) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// An object after deserialization and serialization by Messina's type, without metadata; none for other kinds.
fn written_by_our_type(kind: &str, stored: &Value) -> Option<Value> {
    Some(match kind {
        "ScyllaCluster" => written::<v1::ScyllaCluster>(stored),
        "ScyllaDBCluster" => written::<v1alpha1::ScyllaDBCluster>(stored),
        "ScyllaDBDatacenter" => written::<v1alpha1::ScyllaDBDatacenter>(stored),
        "ScyllaDBManagerClusterRegistration" => written::<v1alpha1::ScyllaDBManagerClusterRegistration>(stored),
        "ScyllaDBManagerTask" => written::<v1alpha1::ScyllaDBManagerTask>(stored),
        "ScyllaDBStatusReport" => written::<v1alpha1::ScyllaDBStatusReport>(stored),
        "RemoteKubernetesCluster" => written::<v1alpha1::RemoteKubernetesCluster>(stored),
        "RemoteOwner" => written::<v1alpha1::RemoteOwner>(stored),
        "EtcdOperatorTask" => written::<EtcdOperatorTask>(stored),
        "NetworkPolicy" | "Secret" => return None,
        _ => panic!("this test does not know {kind}: add its type"),
    })
}

fn written<Kind: Serialize + DeserializeOwned>(stored: &Value) -> Value {
    let read: Kind = serde_json::from_value(stored.clone()).unwrap_or_else(|error| panic!("{error}: {stored}"));
    let mut written = serde_json::to_value(read).unwrap();
    written["metadata"].take();
    written
}
