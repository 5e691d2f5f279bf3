//! A row of the table: a field, the values that test datacenters give it, and where each value is seen.

use std::fmt;

use k8s_openapi::ByteString;
use messina_api::names::datacenter as names;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};

/// A datacenter of the tests. Fields that exclude each other are in different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// Has no value of the table: no effect may be seen in it.
    Base,
    /// Has most fields.
    Everything,
    /// Has other values of fields that have several effects.
    Alternative,
    /// Has IP version 6, which the light cluster does not have.
    Ipv6,
    /// Has values that the operator refuses.
    Refused,
    /// Has simulated nodes, in the cluster with Kubernetes nodes.
    Nodes,
}

impl Setup {
    /// The datacenters that need no Kubernetes nodes.
    pub(super) const LIGHT: [Self; 5] = [Self::Base, Self::Everything, Self::Alternative, Self::Ipv6, Self::Refused];

    /// The name of the datacenter.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Everything => "everything",
            Self::Alternative => "alternative",
            Self::Ipv6 => "ipv6",
            Self::Refused => "refused",
            Self::Nodes => messina_e2e::datacenter::NAME,
        }
    }

    /// The datacenter without the values of the table: what is required, and what lets racks start side by side.
    fn skeleton(self) -> Value {
        if self == Self::Nodes {
            let mut manifest = messina_e2e::datacenter::manifest(&[("first", 1), ("second", 1)]);
            manifest["spec"]["enableParallelNodeOperations"] = json!(true);
            return manifest;
        }
        json!({
            "apiVersion": "scylla.scylladb.com/v1alpha1",
            "kind": "ScyllaDBDatacenter",
            "metadata": {"name": self.name()},
            "spec": {
                "clusterName": "base",
                "enableParallelNodeOperations": true,
                "scyllaDB": {"image": "docker.io/scylladb/scylla:2026.2.0"},
                "rackTemplate": {"nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}},
                "racks": [{"name": "first"}, {"name": "second"}],
            },
        })
    }

    /// The datacenter with all values of the table that are for it.
    pub(super) fn manifest(self, rows: &[Row]) -> Value {
        let mut manifest = self.skeleton();
        for row in rows {
            for setting in row.settings.iter().filter(|setting| setting.setup == self) {
                *place(&mut manifest, &row.field) = setting.value.clone();
            }
        }
        manifest
    }
}

/// The place of a field in a manifest. Of a list of objects, it is in the second one.
fn place<'a>(manifest: &'a mut Value, field: &str) -> &'a mut Value {
    field.split('.').fold(manifest, |within, segment| match segment.strip_suffix("[]") {
        Some(list) => &mut within[list][1],
        None => &mut within[segment],
    })
}

/// One of the two racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rack {
    /// The first rack, which has all values from the template.
    Template = 0,
    /// The second rack, which overrides all values of the template.
    Own = 1,
}

/// Where an effect is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Datacenter,
    StatefulSet(Rack),
    /// The Service of the rack's first node.
    Service(Rack),
    /// The pod of the rack's first node.
    Pod(Rack),
    IdentityService,
    /// The operator's part of `scylla.yaml`.
    ManagedConfig,
    SnitchConfig(Rack),
    /// The Ingress for all nodes.
    Ingress,
    /// The Secret with the certificate of Alternator.
    AlternatorCertificate,
    /// The output of a command on the rack's first node, as JSON.
    Node(Rack, &'static [&'static str]),
}

impl Object {
    /// API version, kind and name in this datacenter. A node is named as its pod.
    pub(super) fn reference(self, manifest: &Value) -> (&'static str, &'static str, String) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&manifest["metadata"]["name"]);
        let scylla_datacenter = manifest["spec"]["datacenterName"].as_str().unwrap_or(&name);
        let rack_name = |rack: Rack| text(&manifest["spec"]["racks"][rack as usize]["name"]);
        let stateful_set = |rack| names::rack_stateful_set(&name, scylla_datacenter, &rack_name(rack));
        let member = |rack| names::member(&stateful_set(rack), 0);
        match self {
            Self::Datacenter => ("scylla.scylladb.com/v1alpha1", "ScyllaDBDatacenter", name),
            Self::StatefulSet(rack) => ("apps/v1", "StatefulSet", stateful_set(rack)),
            Self::Service(rack) => ("v1", "Service", member(rack)),
            Self::Pod(rack) | Self::Node(rack, _) => ("v1", "Pod", member(rack)),
            Self::IdentityService => ("v1", "Service", names::identity_service(&name)),
            Self::ManagedConfig => ("v1", "ConfigMap", names::managed_config(&name)),
            Self::SnitchConfig(rack) => ("v1", "ConfigMap", names::snitch_config(&name, &rack_name(rack))),
            Self::Ingress => ("networking.k8s.io/v1", "Ingress", names::cql_ingress(&names::identity_service(&name))),
            Self::AlternatorCertificate => ("v1", "Secret", names::alternator_serving_certificate(&name)),
        }
    }
}

/// The expected value of an effect.
#[derive(Clone, Debug)]
pub(super) enum Expected {
    /// This value, and nothing else.
    Is(Value),
    /// All fields and elements of this value; others may be beside them.
    Has(Value),
    /// A text with this in it.
    Says(&'static str),
    /// A certificate, in a Secret, for this DNS name or address.
    Certifies(&'static [u8]),
    /// The same value as at this place of another object.
    SameAs(Object, &'static str),
}

/// A place, and what is expected there.
#[derive(Clone, Debug)]
pub(super) struct Effect {
    pub(super) object: Object,
    /// As a JSON pointer; a segment `name=scylla` is the element of a list whose field `name` has this value.
    pub(super) path: String,
    pub(super) expected: Expected,
}

/// The value of a field in one datacenter.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) setup: Setup,
    pub(super) value: Value,
    pub(super) effects: Vec<Effect>,
}

/// A field.
#[derive(Clone, Debug)]
pub(super) struct Row {
    /// Its path in the definition: `spec.racks[].name`.
    pub(super) field: String,
    pub(super) settings: Vec<Setting>,
}

/// A row without settings.
pub(super) fn row(field: impl Into<String>) -> Row {
    Row { field: field.into(), settings: vec![] }
}

impl Row {
    /// Gives the field a value in a datacenter. The effects that follow are those of this value.
    pub(super) fn set(mut self, setup: Setup, value: Value) -> Self {
        self.settings.push(Setting { setup, value, effects: vec![] });
        self
    }

    /// This is expected at this place.
    pub(super) fn seen(mut self, object: Object, path: impl Into<String>, expected: Expected) -> Self {
        let setting = self.settings.last_mut().expect("a value comes before its effects");
        setting.effects.push(Effect { object, path: path.into(), expected });
        self
    }

    /// The value itself is at this place, and nothing else.
    pub(super) fn at(self, object: Object, path: impl Into<String>) -> Self {
        let value = self.settings.last().expect("a value comes before its effects").value.clone();
        self.seen(object, path, Expected::Is(value))
    }

    /// The value is at this place, perhaps among others.
    pub(super) fn among(self, object: Object, path: impl Into<String>) -> Self {
        let value = self.settings.last().expect("a value comes before its effects").value.clone();
        self.seen(object, path, Expected::Has(value))
    }
}

impl Effect {
    /// The objects that decide whether the effect is seen.
    pub(super) fn objects(&self) -> impl Iterator<Item = Object> + use<> {
        let other = if let Expected::SameAs(other, _) = self.expected { Some(other) } else { None };
        [self.object].into_iter().chain(other)
    }

    /// Whether the effect is seen in these objects; else what is there instead.
    pub(super) fn check(&self, read: impl Fn(Object) -> Option<Value>) -> Result<(), String> {
        let find = |object: Object, path: &str| read(object).and_then(|value| found(&value, path).cloned());
        let there = find(self.object, &self.path);
        let is_seen = there.as_ref().is_some_and(|there| match &self.expected {
            Expected::Is(value) => there == value,
            Expected::Has(value) => has(there, value),
            Expected::Says(text) => there.as_str().is_some_and(|there| there.contains(text)),
            Expected::Certifies(name) => certifies(there, name),
            Expected::SameAs(object, path) => find(*object, path).as_ref() == Some(there),
        });
        let describe = |value: Value| format!("{value:.400}");
        if is_seen { Ok(()) } else { Err(there.map_or_else(|| "nothing".to_owned(), describe)) }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:?}: ", self.object, self.path)?;
        match &self.expected {
            Expected::Is(value) => write!(f, "{value}"),
            Expected::Has(value) => write!(f, "among others {value}"),
            other => write!(f, "{other:?}"),
        }
    }
}

fn found<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('/').skip(1).try_fold(value, |within, segment| match (within, segment.split_once('=')) {
        (Value::Array(list), Some((key, wanted))) => list.iter().find(|one| one[key] == wanted),
        (Value::Array(list), None) => list.get(segment.parse::<usize>().ok()?),
        _ => within.get(segment),
    })
}

fn has(there: &Value, expected: &Value) -> bool {
    match (there, expected) {
        (Value::Object(there), Value::Object(expected)) => {
            expected.iter().all(|(key, value)| there.get(key).is_some_and(|there| has(there, value)))
        }
        (Value::Array(there), Value::Array(expected)) => {
            expected.iter().all(|value| there.iter().any(|there| has(there, value)))
        }
        _ => there == expected,
    }
}

/// Names and addresses are in a certificate byte by byte.
fn certifies(there: &Value, name: &[u8]) -> bool {
    let pem: Option<ByteString> = serde_json::from_value(there.clone()).ok();
    let certificate = pem.and_then(|pem| CertificateDer::from_pem_slice(&pem.0).ok());
    certificate.is_some_and(|der| der.windows(name.len()).any(|window| window == name))
}
