//! The configuration files of nodes, and the hash whose change restarts nodes.

use std::collections::BTreeMap;

use base64::{Engine, prelude::BASE64_STANDARD};
use k8s_openapi::api::core::v1::ConfigMap;
use messina_api::{
    names::{self, label},
    scylla::v1alpha1::{AlternatorWriteIsolation, IpFamily},
};
use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use crate::{
    datacenter::{
        layout::{AGENT_CONFIG_FILE, CONFIG_MAPS, SECRETS},
        model::{
            metadata::{cluster_labels, owned},
            observed::Observed,
            plan::Untouched,
            settings::Gates,
            spec::{Alternator, Datacenter, Rack},
        },
        objects::token::token,
        state::counts::removed_racks,
    },
    metadata::{self, map},
};

const MANAGED_CONFIG_FILE: &str = "scylladb-managed-config.yaml";

/// Key of the user's `scylla.yaml`.
const USERS_CONFIG_FILE: &str = "scylla.yaml";

const RACK_FILE: &str = "cassandra-rackdc.properties";

/// The operator's part of `scylla.yaml`.
pub(crate) fn managed_config(datacenter: &Datacenter, gates: Gates) -> ConfigMap {
    let name = names::datacenter::managed_config(&datacenter.name);
    config_map(datacenter, name, MANAGED_CONFIG_FILE, &managed_config_text(datacenter, gates))
}

/// The operator's part of the agents' configuration.
pub(crate) fn managed_agent_config(datacenter: &Datacenter) -> ConfigMap {
    let address = by_family(datacenter, "127.0.0.1", "::");
    let text = format!("scylla:\n  api_address: \"{address}\"\n  api_port: 10000\n");
    config_map(datacenter, names::datacenter::managed_agent_config(&datacenter.name), AGENT_CONFIG_FILE, &text)
}

/// The snitch configuration of a rack.
pub(crate) fn snitch_config(datacenter: &Datacenter, rack: &Rack) -> ConfigMap {
    let text = format!("dc={}\nrack={}\nprefer_local=false\n", datacenter.scylla_datacenter, rack.name);
    config_map(datacenter, names::datacenter::snitch_config(&datacenter.name, &rack.name), RACK_FILE, &text)
}

/// Returns the ConfigMaps of removed racks, which their nodes still read.
pub(crate) fn untouched(observed: &Observed) -> Vec<Untouched> {
    let datacenter = &observed.datacenter;
    removed_racks(observed)
        .filter_map(|stateful_set| metadata::label(stateful_set, label::RACK))
        .map(|rack| names::datacenter::snitch_config(&datacenter.name, rack))
        .filter(|name| observed.config_maps.contains_key(name))
        .map(|name| Untouched { kind: "ConfigMap", name })
        .collect()
}

fn config_map(datacenter: &Datacenter, name: String, file: &str, text: &str) -> ConfigMap {
    ConfigMap {
        metadata: owned(datacenter, name, cluster_labels(datacenter)),
        data: Some(map([(file, text)])),
        ..ConfigMap::default()
    }
}

fn by_family<'a>(datacenter: &Datacenter, four: &'a str, six: &'a str) -> &'a str {
    if *datacenter.ip_family() == IpFamily::IPv6 { six } else { four }
}

/// Renders the operator's part of `scylla.yaml`. Strings are written as JSON, which is valid YAML regardless of their
/// contents.
fn managed_config_text(datacenter: &Datacenter, gates: Gates) -> String {
    let any = by_family(datacenter, "0.0.0.0", "::");
    let mut lines = vec![
        format!("cluster_name: {}", json!(datacenter.cluster_name)),
        format!("rpc_address: \"{any}\""),
        format!("api_address: \"{}\"", by_family(datacenter, "127.0.0.1", "::")),
        format!("listen_address: \"{any}\""),
        "seed_provider:".into(),
        "  - class_name: org.apache.cassandra.locator.SimpleSeedProvider".into(),
        "    parameters:".into(),
        format!("      - seeds: \"{}\"", by_family(datacenter, "127.0.0.1", "::1")),
        "endpoint_snitch: GossipingPropertyFileSnitch".into(),
        "internode_compression: all".into(),
    ];
    if gates.automatic_tls_certificates {
        lines.extend([
            "native_transport_port_ssl: 9142".into(),
            "native_shard_aware_transport_port_ssl: 19142".into(),
            "client_encryption_options:".into(),
            "  enabled: true".into(),
            "  optional: false".into(),
            format!("  certificate: {SECRETS}/serving-certs/tls.crt"),
            format!("  keyfile: {SECRETS}/serving-certs/tls.key"),
            "  require_client_auth: true".into(),
            format!("  truststore: {CONFIG_MAPS}/client-ca/ca-bundle.crt"),
        ]);
    }
    if let Some(alternator) = &datacenter.alternator {
        lines.extend(alternator_lines(alternator));
    }
    lines.join("\n") + "\n"
}

fn alternator_lines(alternator: &Alternator) -> Vec<String> {
    let write_isolation = match &alternator.write_isolation {
        AlternatorWriteIsolation::AlwaysUseLwt => "always_use_lwt",
        AlternatorWriteIsolation::ForbidRmw => "forbid_rmw",
        AlternatorWriteIsolation::OnlyRmwUsesLwt => "only_rmw_uses_lwt",
        AlternatorWriteIsolation::UnsafeRmw => "unsafe_rmw",
        AlternatorWriteIsolation::Other(other) => other,
    };
    let mut lines = vec![
        format!("alternator_write_isolation: {}", json!(write_isolation)),
        format!("alternator_enforce_authorization: {}", alternator.authorization),
    ];
    lines.extend(alternator.http_port.map(|port| format!("alternator_port: {port}")));
    lines.extend([
        "alternator_https_port: 8043".into(),
        "alternator_encryption_options:".into(),
        format!("  certificate: {SECRETS}/alternator-serving-certs/tls.crt"),
        format!("  keyfile: {SECRETS}/alternator-serving-certs/tls.key"),
    ]);
    lines
}

/// Hashes of the configuration that a node of a rack reads only at start. The operator's part of the agents'
/// configuration is left out: it never changes alone.
pub(crate) struct Inputs {
    /// The hash of the complete configuration.
    pub(crate) all: String,
    /// The hash of earlier operator versions, which left out the user's ConfigMaps and Secrets.
    pub(crate) without_users: String,
}

pub(crate) fn inputs(observed: &Observed, rack: &Rack) -> Inputs {
    let datacenter = &observed.datacenter;
    let users = observed.user_objects.config_maps.get(rack.config_map());
    // Nodes do not read other keys.
    let user = |file: &str| {
        let data = users.and_then(|map| map.data.as_ref()?.get(file).map(|text| json!(text)));
        data.or_else(|| users.and_then(|map| map.binary_data.as_ref()?.get(file).map(|bytes| json!(bytes))))
    };
    let has_agent = datacenter.agent_image.is_some();
    let agents = observed.user_objects.secrets.get(rack.agent_secret()).filter(|_| has_agent);
    let agent = agents.and_then(|secret| secret.data.as_ref()?.get(AGENT_CONFIG_FILE));
    // While the desired token is unknown, it is the stored one.
    let stored = || observed.secrets.get(&names::datacenter::agent_auth_token(&datacenter.name)).cloned();
    let token = token(observed).secret.or_else(stored).filter(|_| has_agent).and_then(|secret| secret.data);
    let hash = |inputs: &[(&'static str, Value)]| {
        let own = [
            ("managed", json!(managed_config(datacenter, observed.gates).data)),
            ("rack", json!(snitch_config(datacenter, rack).data)),
        ];
        let inputs: BTreeMap<&str, Value> = own.into_iter().chain(inputs.iter().cloned()).collect();
        BASE64_STANDARD.encode(Sha512::digest(json!(inputs).to_string()))
    };
    Inputs {
        all: hash(&[
            ("user", json!([user(USERS_CONFIG_FILE), user(RACK_FILE)])),
            ("agent", json!(agent)),
            ("token", json!(token)),
        ]),
        without_users: hash(&[("user", Value::Null), ("agent", Value::Null)]),
    }
}
