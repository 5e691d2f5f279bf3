//! The test cases of scylla-operator for a node. Results must be the same, messages may differ.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::{Pod, Service};
use messina_api::{names::label, scylla::v1alpha1::BroadcastAddressType};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    address::{IpFamily, broadcast_address},
    arguments::Arguments,
    configuration::{Document, merge_yaml},
    seeds::{StartingNode, seeds},
};

/// Runs `check` on every case below `folder`, and prints how many there were.
fn each(folder: &str, check: impl Fn(&Path, &Value)) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/compat/cases").join(folder);
    let Ok(files) = fs::read_dir(&folder) else {
        return eprintln!("skipped: {} does not exist, so there are no cases to run", folder.display());
    };
    let files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    for file in &files {
        check(file, &serde_saphyr::from_str(&fs::read_to_string(file).unwrap()).unwrap());
    }
    assert!(!files.is_empty(), "{} is empty", folder.display());
    eprintln!("{}: {} cases", folder.display(), files.len());
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

/// Reads an object of the API; nulls are omitted.
fn object<T: DeserializeOwned>(value: &Value) -> T {
    fn without_nulls(value: &Value) -> Value {
        match value {
            Value::Object(fields) => fields
                .iter()
                .filter(|(_, field)| !field.is_null())
                .map(|(name, field)| (name.clone(), without_nulls(field)))
                .collect(),
            Value::Array(items) => items.iter().map(without_nulls).collect(),
            other => other.clone(),
        }
    }
    serde_json::from_value(without_nulls(value)).unwrap()
}

fn arguments(value: &Value) -> Arguments {
    let fields = value.as_object().unwrap().iter();
    fields.map(|(name, value)| (name.clone(), value.as_str().map(ToOwned::to_owned))).collect()
}

#[test]
fn arguments_are_parsed_as_by_scylla_operator() {
    each("sidecar/scylla-arguments", |file, case| {
        let read = Arguments::parse(case["Args"].as_str().unwrap());
        assert_eq!(read, arguments(&case["ExpectedArgs"]), "{}", file.display());
    });
}

#[test]
fn arguments_are_merged_as_by_scylla_operator() {
    each("sidecar/merge-arguments", |file, case| {
        let merged = arguments(&case["operatorManagedArguments"]).or(arguments(&case["userProvidedArguments"]));
        assert_eq!(merged, arguments(&case["expectedArguments"]), "{}", file.display());
    });
}

#[test]
fn documents_are_merged_as_by_scylla_operator() {
    each("sidecar/merge-yaml", |file, case| {
        let text = |value: &Value| {
            let decoded = BASE64_STANDARD.decode(value.as_str().unwrap()).unwrap();
            String::from_utf8(decoded).unwrap()
        };
        let mut texts = vec![text(&case["initial"])];
        texts.extend(case["overrides"].as_array().into_iter().flatten().map(text));
        let documents: Vec<_> = texts.iter().map(|text| Document { name: "one", text }).collect();
        let merged = merge_yaml(&documents).unwrap();
        let expected = text(&case["expected"]);
        let meaning = |text: &str| serde_saphyr::from_str::<Value>(text).unwrap();
        assert_eq!(meaning(&merged), meaning(&expected), "{}", file.display());
    });
}

/// The cases have no properties: private fields were lost when the cases were exported. So they only show that there
/// are three; `configuration` tests each of them with its own values.
#[test]
fn cases_of_rackdc_properties_are_empty() {
    each("sidecar/merge-snitch-config", |file, case| {
        for config in ["operatorConfig", "userConfig", "expectedConfig"] {
            let fields = case[config].as_object().into_iter().flatten();
            let known = ["DisableExpansion", "Postfix", "Prefix", "WriteSeparator"];
            let unknown: Vec<_> = fields.filter(|(name, _)| !known.contains(&name.as_str())).collect();
            assert!(unknown.is_empty(), "{} has properties now, so compare them: {unknown:?}", file.display());
        }
    });
}

#[test]
fn broadcast_addresses_are_those_of_scylla_operator() {
    each("datacenter/broadcast-address", |file, case| {
        let family = case["preferredFamily"].as_str().map(|family| family.parse().unwrap());
        let address_type: BroadcastAddressType = read(&case["nodeBroadcastAddressType"]);
        let found = broadcast_address(&address_type, &object(&case["svc"]), &object(&case["pod"]), family);
        match case["expectedError"].as_str() {
            None => assert_eq!(found.as_deref(), Ok(case["expected"].as_str().unwrap()), "{}", file.display()),
            Some(_) => assert!(found.is_err(), "{}: {found:?}", file.display()),
        }
    });
}

#[test]
fn seeds_are_those_of_scylla_operator() {
    each("sidecar/seeds", |file, case| {
        let is_service = |value: &&Value| value["metadata"]["labels"].get(label::SERVICE_TYPE).is_some();
        let objects = case["objects"].as_array().unwrap();
        let services: Vec<Service> = objects.iter().filter(is_service).map(object).collect();
        let pods: Vec<Pod> = objects.iter().filter(|value| !is_service(value)).map(object).collect();
        let external: Vec<String> = read::<Option<_>>(&case["externalSeeds"]).unwrap_or_default();
        let family: IpFamily = case["ipFamily"].as_str().unwrap().parse().unwrap();
        let address_type: BroadcastAddressType = read(&case["memberNodesBroadcastType"]);
        let own = broadcast_address(
            &address_type,
            &object(&case["memberService"]),
            &object(&case["memberPod"]),
            Some(family),
        );
        let name = case["memberPod"]["metadata"]["name"].as_str().unwrap();
        // Where the node is not its own seed, the case may omit its address.
        let address = own.unwrap_or_default();
        let node = StartingNode { name, address: &address, address_type: &address_type, family };
        let found = seeds(node, &pods, &services, &external);
        let error = case["expectErrorString"].as_str().unwrap();
        match read::<Option<Vec<String>>>(&case["expectSeeds"]) {
            Some(expected) => assert_eq!(found.as_ref(), Ok(&expected), "{}", file.display()),
            None => assert!(!error.is_empty() && found.is_err(), "{}: {found:?}", file.display()),
        }
    });
}
