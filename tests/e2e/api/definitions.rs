//! The CustomResourceDefinitions: installation as users do it, size, and descriptions.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};
use messina_api::crd;
use messina_e2e::{DEFINITIONS, SOON, kubectl, light};
use messina_testbed::harness::{self, Seen};

use super::each_field;

/// The files that users install.
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/crds");

/// The default limit of etcd for an object: 1.5 MiB, and a transaction has more than the object.
const ETCD_LIMIT: usize = 1024 * 1024;

#[tokio::test]
async fn definitions_applied_by_kubectl_are_established() {
    let client = light().await;
    let printed = kubectl(["apply", "--server-side", "-f", FILES]).unwrap();
    for definition in DEFINITIONS.iter() {
        let line = format!("{} serverside-applied", definition.name_any());
        assert!(printed.contains(&line), "{} is not among what was applied:\n{printed}", crd::file_name(definition));
        is_accepted(&client, &definition.name_any()).await;
    }

    let before = resource_versions(&client).await;
    kubectl(["apply", "--server-side", "-f", FILES]).unwrap();
    assert_eq!(resource_versions(&client).await, before, "applying the same files again changed something");
}

/// Waits until the API server accepts a definition and its schema.
async fn is_accepted(client: &Client, name: &str) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    harness::until(api, name, &format!("{name} to be accepted"), SOON, |definition| {
        let conditions = definition.and_then(|definition| definition.status?.conditions).unwrap_or_default();
        let is = |condition: &str, status: &str| conditions.iter().any(|c| c.type_ == condition && c.status == status);
        let is_structural = !conditions.iter().any(|condition| condition.type_ == "NonStructuralSchema");
        match is("Established", "True") && is("NamesAccepted", "True") && is_structural {
            true => Seen::Ready(()),
            false => Seen::NotYet(format!("{conditions:?}")),
        }
    })
    .await
    .unwrap();
}

async fn resource_versions(client: &Client) -> BTreeMap<String, Option<String>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut versions = BTreeMap::new();
    for definition in DEFINITIONS.iter() {
        let stored = api.get(&definition.name_any()).await.unwrap();
        versions.insert(stored.name_any(), stored.resource_version());
    }
    versions
}

#[tokio::test]
async fn definitions_fit_into_etcd() {
    let client = light().await;
    let mut sizes = vec![];
    for definition in DEFINITIONS.iter() {
        let name = definition.name_any();
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        // The response as sent: compact, with managed fields.
        let stored = client.request_text(harness::get(&path).unwrap()).await.unwrap();
        assert!(stored.contains("managedFields"), "{name} came without its managed fields");
        sizes.push((stored.len(), name));
    }
    sizes.sort();
    println!("sizes in bytes: {sizes:?}");
    let (largest, name) = sizes.last().unwrap();
    println!("the largest: {name}, {largest} bytes of {ETCD_LIMIT}");
    assert!(*largest < ETCD_LIMIT, "{name} has {largest} bytes");
}

#[tokio::test]
async fn kubectl_explains_alternator() {
    light().await;
    let described = descriptions("ScyllaCluster", "spec.alternator");
    let look = async || {
        // The descriptions of a new or changed kind are published a moment after it is served.
        let printed = match kubectl(["explain", "scyllacluster.spec.alternator"]) {
            Ok(printed) => printed,
            Err(complaint) => return Ok(Seen::NotYet(complaint)),
        };
        let words = in_one_line(&printed);
        let missing = described.iter().find(|(field, description)| {
            let is_there = field.is_empty() || printed.contains(&format!("\n  {field}\t"));
            !is_there || !words.contains(&in_one_line(description))
        });
        Ok(match missing {
            None => Seen::Ready(()),
            Some((field, description)) => Seen::NotYet(format!("no {field:?} as {description:?} in\n{printed}")),
        })
    };
    harness::eventually("kubectl to explain scyllacluster.spec.alternator", SOON, look).await.unwrap();
    for field in ["port", "writeIsolation", "insecureEnableHTTP", "insecureDisableAuthorization", "servingCertificate"]
    {
        assert!(described.contains_key(field), "there is no {field}, only {described:?}");
    }
}

/// The descriptions of a field and of its direct children, by name; the field itself has the empty name.
fn descriptions(kind: &str, of: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let definition = DEFINITIONS.iter().find(|definition| definition.spec.names.kind == kind).unwrap();
    each_field(definition, |path, schema| {
        let Some(below) = path.strip_prefix(of) else { return };
        let field = below.trim_start_matches('.');
        if !field.contains(['.', '[', '{']) {
            let description = schema["description"].as_str().unwrap_or_else(|| panic!("{path} has no description"));
            found.insert(field.to_owned(), description.to_owned());
        }
    });
    found
}

/// kubectl breaks lines where it likes.
fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
