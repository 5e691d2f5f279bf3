//! Compares our planned objects with those of the peer.

use serde_json::{Map, Value, json};

/// Merges the fields of `more` into `object`.
pub(crate) fn merge(object: &mut Value, more: &Value) {
    match (object, more) {
        (Value::Object(object), Value::Object(more)) => {
            for (key, value) in more {
                merge(object.entry(key).or_insert(Value::Null), value);
            }
        }
        (object, more) => *object = more.clone(),
    }
}

/// Normalizes an object: removes empty values, and values that equal their defaults.
pub(crate) fn meaning(object: &Value) -> Value {
    match object {
        Value::Object(fields) => {
            let mut kept: Map<String, Value> = fields
                .iter()
                .map(|(key, value)| (key.clone(), if key == "emptyDir" { value.clone() } else { meaning(value) }))
                .filter(|(key, value)| key == "emptyDir" || !is_empty(value))
                .filter(|(key, value)| !(key == "protocol" && value == "TCP"))
                .collect();
            let port = kept.get("port").cloned();
            if kept.get("targetPort").is_some_and(|target| *target == 0 || Some(target) == port.as_ref()) {
                kept.remove("targetPort");
            }
            if kept.get("kind").is_some_and(|kind| kind == "PersistentVolumeClaim") {
                kept.retain(|key, _| !["apiVersion", "kind"].contains(&key.as_str()));
            }
            Value::Object(kept)
        }
        Value::Array(elements) => Value::Array(elements.iter().map(meaning).collect()),
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Returns where two objects differ. Order matters in lists, but not among environment variables.
pub(crate) fn differences(expected: &Value, actual: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    collect("", expected, actual, &mut found);
    found
}

#[derive(Debug)]
pub(crate) struct Difference {
    pub(crate) path: String,
    pub(crate) expected: Option<Value>,
    pub(crate) actual: Option<Value>,
}

impl Difference {
    pub(crate) fn is_missing_in_ours(&self) -> bool {
        self.actual.is_none()
    }
}

fn collect(path: &str, expected: &Value, actual: &Value, found: &mut Vec<Difference>) {
    let mut note = |path: String, expected: Option<&Value>, actual: Option<&Value>| {
        found.push(Difference { path, expected: expected.cloned(), actual: actual.cloned() });
    };
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            for (key, value) in expected {
                match actual.get(key) {
                    Some(other) => collect(&format!("{path}.{key}"), value, other, found),
                    None => found.push(Difference {
                        path: format!("{path}.{key}"),
                        expected: Some(value.clone()),
                        actual: None,
                    }),
                }
            }
            for (key, value) in actual.iter().filter(|(key, _)| !expected.contains_key(*key)) {
                found.push(Difference { path: format!("{path}.{key}"), expected: None, actual: Some(value.clone()) });
            }
        }
        (Value::Array(expected), Value::Array(actual)) if expected.len() == actual.len() => {
            let (mut expected, mut actual) = (expected.clone(), actual.clone());
            if path.ends_with(".env") {
                let name = |variable: &Value| variable["name"].to_string();
                expected.sort_by_key(name);
                actual.sort_by_key(name);
            }
            for (position, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
                collect(&format!("{path}[{position}]"), expected, actual, found);
            }
        }
        (expected, actual) if expected == actual => {}
        (expected, actual) => note(path.to_owned(), Some(expected), Some(actual)),
    }
}

pub(crate) fn describe(differences: &[Difference]) -> String {
    let line = |one: &Difference| format!("  {}: expected {:?}, got {:?}\n", one.path, one.expected, one.actual);
    differences.iter().take(20).map(line).collect()
}

/// The peer's StatefulSet with our own programs in place of its scripts: flags that both have, arguments for ScyllaDB
/// and files for the agent are taken over. There is no hook before the stop, because our sidecar drains by itself.
pub(crate) fn with_our_commands(stateful_set: &mut Value) {
    let pod = &mut stateful_set["spec"]["template"]["spec"];
    for list in ["initContainers", "containers"] {
        for container in pod[list].as_array_mut().into_iter().flatten() {
            let name = container["name"].as_str().unwrap().to_owned();
            if let Some(fields) = container.as_object_mut() {
                fields.remove("lifecycle");
            }
            let theirs: Vec<String> = serde_json::from_value(container["command"].clone()).unwrap_or_default();
            let ours = match name.as_str() {
                "sidecar-injection" => words("/usr/bin/messina inject /mnt/shared"),
                "scylladb-bootstrap-barrier" => ours("/mnt/shared/messina bootstrap-barrier", &theirs[2..]),
                "scylladb-api-status-probe" => ours("/usr/bin/messina probe", &theirs[3..]),
                "scylladb-ignition" => ours("/usr/bin/messina ignition", &theirs[2..]),
                "scylla" => sidecar(&theirs),
                "scylla-manager-agent" => agent(&theirs),
                "scylladb-node-exporter" => continue,
                other => panic!("a container that we know nothing of: {other}"),
            };
            container["command"] = json!(ours);
        }
    }
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Flags that only the peer's program has.
fn is_peers_own(flag: &str) -> bool {
    flag.starts_with("--loglevel") || flag.starts_with("--feature-gates")
}

fn ours(beginning: &str, flags: &[String]) -> Vec<String> {
    words(beginning).into_iter().chain(flags.iter().filter(|flag| !is_peers_own(flag)).cloned()).collect()
}

fn sidecar(theirs: &[String]) -> Vec<String> {
    let separator = theirs.iter().position(|word| word == "--").unwrap();
    let (_, call) = theirs[separator - 1].split_once("/mnt/shared/scylla-operator sidecar ").unwrap();
    let (call, _) = call.split_once(" -- ").unwrap();
    let flags: Vec<String> = call.split_whitespace().filter(|word| *word != "\\").map(str::to_owned).collect();
    ours("/mnt/shared/messina sidecar", &flags).into_iter().chain(theirs[separator..].iter().cloned()).collect()
}

fn agent(theirs: &[String]) -> Vec<String> {
    let (_, call) = theirs.last().unwrap().split_once("exec ").unwrap();
    let call = call.replace('"', "");
    let call = call.split_whitespace().filter(|word| *word != "\\").map(str::to_owned);
    words("/mnt/shared/messina await-node --").into_iter().chain(call).collect()
}

/// Alternator's certificate as the specification of Alternator names it.
pub(crate) fn with_our_certificates(text: &str) -> String {
    text.replace("-alternator-local-serving-", "-local-alternator-serving-")
}
