//! The cases of `shared/compat`: our results are those of the peers.

use std::{
    fs,
    path::{Path, PathBuf},
};

use messina_api::{names, scylla::v1::ScyllaCluster};
use serde_json::Value;

use crate::shared;

fn read(file: &Path) -> Value {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the cases of a folder with their file names; none, with a message, where the shared folder does not exist.
fn cases(decision: &str) -> Vec<(PathBuf, Value)> {
    let folder = shared().join("compat/cases").join(decision);
    let Ok(files) = fs::read_dir(&folder) else {
        eprintln!("skipped: {} is not there, so there are no cases to run", folder.display());
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no cases", folder.display());
    eprintln!("{decision}: {} cases", files.len());
    files.into_iter().map(|file| (file.clone(), read(&file))).collect()
}

/// Returns a result in the form of a case: the text, and whether there was an error.
fn answer<E>(result: Result<String, E>) -> (String, bool) {
    result.map_or((String::new(), true), |text| (text, false))
}

fn expected(case: &Value, text: &str, error: &str) -> (String, bool) {
    (case[text].as_str().unwrap_or_default().to_owned(), !case[error].is_null())
}

#[test]
fn truncated_hashed_names_are_those_of_the_cases() {
    for (file, case) in cases("naming/truncated-hashed-name") {
        let parts: Vec<&str> = case["parts"].as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect();
        let max_length = case["maxLength"].as_u64().unwrap().try_into().unwrap();
        let name = names::truncated_hashed_name(max_length, &parts);
        assert_eq!(answer(name), expected(&case, "expected", "expectedErr"), "{}", file.display());
    }
}

#[test]
fn registration_names_are_those_of_the_cases() {
    for (file, case) in cases("naming/registration-name") {
        let name = case.pointer("/sdc/metadata/name").and_then(Value::as_str).unwrap();
        let name = names::manager::registration("ScyllaDBDatacenter", name);
        assert_eq!(answer(name), expected(&case, "expectedName", "expectedError"), "{}", file.display());
    }
}

#[test]
fn versions_of_images_are_those_of_the_cases() {
    for (file, case) in cases("naming/image-to-version") {
        let version = names::image_version(case["image"].as_str().unwrap()).map(str::to_owned);
        assert_eq!(answer(version), expected(&case, "expectedVersion", "expectedError"), "{}", file.display());
    }
}

#[test]
fn golden_clusters_survive_a_round_trip() {
    let folder = shared().join("compat/golden");
    if !folder.exists() {
        eprintln!("skipped: {} is not there, so there are no clusters to read", folder.display());
        return;
    }
    for example in ["minimal", "full"] {
        let file = folder.join(format!("{example}/objects/scyllacluster-{example}.yaml"));
        let mut given = read(&file);
        let written = serde_json::to_value(serde_json::from_value::<ScyllaCluster>(given.clone()).unwrap()).unwrap();
        // A quantity that was read as a number is written as a string.
        for rack in given["spec"]["datacenter"]["racks"].as_array_mut().unwrap() {
            let cpu = &mut rack["resources"]["limits"]["cpu"];
            *cpu = Value::String(cpu.to_string());
        }
        assert_eq!(written["spec"], given["spec"], "{example}");
        assert_eq!(written["status"], given["status"], "{example}");
    }
}
