//! The configuration of a node: arguments, `scylla.yaml` and rackdc properties, in this order of precedence.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::{
    args::{Arguments, is_true},
    membership::HostId,
};

/// An invalid configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("Could not open file at {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file is not YAML.
    #[error("{} is not valid YAML", path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// A value is invalid.
    #[error("{option}: {value:?} is not {expected}")]
    Value {
        /// The name in `scylla.yaml`.
        option: String,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
    /// Other nodes could not reach the node.
    #[error("a node that listens on {0} needs a broadcast address: others cannot reach it there")]
    NoBroadcastAddress(IpAddr),
}

/// The program that reads the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The image's entrypoint. It passes listen address, RPC address and seeds to ScyllaDB as arguments, which override
    /// the file.
    Image,
    /// ScyllaDB itself.
    Scylla,
}

/// Files for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// The certificate chain, in PEM.
    pub certificate: PathBuf,
    /// Its key, in PEM.
    pub key: PathBuf,
    /// The CA of client certificates, if they are required.
    pub client_authorities: Option<PathBuf>,
}

/// The DynamoDB-compatible API.
#[derive(Clone, Debug)]
pub struct AlternatorConfig {
    /// The listen address.
    pub address: IpAddr,
    /// Its port without encryption.
    pub port: Option<u16>,
    /// Its port with encryption.
    pub https_port: Option<u16>,
    /// The certificate.
    pub encryption: Option<Encryption>,
    /// Whether requests must be signed.
    pub enforces_authorization: bool,
    /// The users, with the secret of each: the salted hash of the role's password.
    pub users: BTreeMap<String, String>,
}

/// The durations of the simulation.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The interval of gossip rounds.
    pub gossip_interval: Duration,
    /// The time without a response after which a node is down.
    pub failure_timeout: Duration,
    /// The time after which a node stops trying to join.
    pub join_timeout: Duration,
    /// How long a bootstrap or replace streams.
    pub bootstrap: Duration,
    /// How long a decommission or removal streams.
    pub decommission: Duration,
}

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Only nodes with the same cluster name join.
    pub cluster_name: String,
    /// The seeds: addresses or names.
    pub seeds: Vec<String>,
    /// The listen address for other nodes.
    pub listen_address: IpAddr,
    /// The address that other nodes connect to.
    pub broadcast_address: IpAddr,
    /// The listen address for CQL clients.
    pub rpc_address: IpAddr,
    /// The address that CQL clients connect to.
    pub broadcast_rpc_address: IpAddr,
    /// The listen address of the REST API.
    pub api: SocketAddr,
    /// The listen address of metrics.
    pub prometheus: SocketAddr,
    /// The port between nodes.
    pub storage_port: u16,
    /// The CQL port.
    pub native_port: u16,
    /// The CQL port with encryption, if it is another one.
    pub native_port_ssl: Option<u16>,
    /// Encryption of CQL.
    pub client_encryption: Option<Encryption>,
    /// Whether CQL clients must log in.
    pub requires_login: bool,
    /// The DynamoDB-compatible API.
    pub alternator: AlternatorConfig,
    /// The datacenter.
    pub datacenter: String,
    /// The rack.
    pub rack: String,
    /// The number of tokens of a node.
    pub num_tokens: usize,
    /// The directory of all data.
    pub workdir: PathBuf,
    /// The directory of tables.
    pub data_dir: PathBuf,
    /// The dead node that this one replaces at its first start.
    pub replaces: Option<HostId>,
    /// Number of shards.
    pub shards: usize,
    /// The durations of the simulation.
    pub pace: Pace,
    /// Keyspaces of users, with their tables.
    pub keyspaces: BTreeMap<String, Vec<String>>,
    /// The version that the node reports.
    pub release_version: String,
    /// The arguments, for faults that apply before the start.
    pub arguments: Arguments,
    /// All settings by their names in `scylla.yaml`, for the REST API.
    pub entries: Map<String, Value>,
}

impl Config {
    /// Reads the configuration from the arguments and the files that they name.
    pub fn load(arguments: Arguments, caller: Caller) -> Result<Self, ConfigError> {
        let options_file = Path::new(arguments.get("options-file").unwrap_or("/etc/scylla/scylla.yaml"));
        let yaml = read(options_file)?;
        let rackdc_file = match arguments.get("sim-rackdc-file") {
            Some(path) => PathBuf::from(path),
            None => options_file.with_file_name("cassandra-rackdc.properties"),
        };
        let rackdc = fs::read_to_string(rackdc_file).unwrap_or_default();
        let entries = if yaml.trim().is_empty() {
            Map::new()
        } else {
            serde_saphyr::from_str::<Option<Map<String, Value>>>(&yaml)
                .map_err(|source| ConfigError::Yaml { path: options_file.to_owned(), source: Box::new(source) })?
                .unwrap_or_default()
        };
        Self::of(entries, &rackdc, arguments, caller, own_address())
    }

    fn of(
        mut entries: Map<String, Value>,
        rackdc: &str,
        arguments: Arguments,
        caller: Caller,
        own_address: Option<IpAddr>,
    ) -> Result<Self, ConfigError> {
        if caller == Caller::Image {
            apply_entrypoint_arguments(&mut entries, &arguments, own_address);
        }
        for (option, value) in arguments.iter().filter(|(option, _)| !NOT_IN_FILE.contains(option)) {
            entries.insert(option.replace('-', "_"), scalar(value));
        }
        // This option is repeated for each of its keys.
        let encryption = arguments.all("alternator-encryption-options").join(",");
        if !encryption.is_empty() {
            entries.insert("alternator_encryption_options".to_owned(), key_values(&encryption));
        }

        let entry = Entries(&entries);
        let listen_address = entry.address("listen_address")?.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let broadcast_address = entry.address("broadcast_address")?.unwrap_or(listen_address);
        if broadcast_address.is_unspecified() {
            return Err(ConfigError::NoBroadcastAddress(listen_address));
        }
        let rpc_address = entry.address("rpc_address")?.unwrap_or(listen_address);
        let broadcast_rpc_address = entry
            .address("broadcast_rpc_address")?
            .unwrap_or(if rpc_address.is_unspecified() { broadcast_address } else { rpc_address });
        let api_address = entry.address("api_address")?.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let api = SocketAddr::new(api_address, entry.port("api_port")?.unwrap_or(10000));
        let prometheus_address = entry.address("prometheus_address")?.unwrap_or(listen_address);
        let prometheus = SocketAddr::new(prometheus_address, entry.port("prometheus_port")?.unwrap_or(9180));
        let workdir = PathBuf::from(entry.text("workdir").unwrap_or("/var/lib/scylla"));
        let data_dir = entry.data_dir().unwrap_or_else(|| workdir.join("data"));
        let (datacenter, rack) = entry.place(rackdc);
        let alternator = AlternatorConfig {
            address: entry.address("alternator_address")?.unwrap_or(listen_address),
            port: entry.port("alternator_port")?,
            https_port: entry.port("alternator_https_port")?,
            encryption: entry.encryption("alternator_encryption_options"),
            enforces_authorization: entry.is_on("alternator_enforce_authorization"),
            users: pairs(&arguments.all("sim-alternator-user")),
        };
        let keyspaces = pairs(&arguments.all("sim-keyspace"))
            .into_iter()
            .map(|(keyspace, tables)| (keyspace, tables.split(',').map(str::to_owned).collect()))
            .collect();
        let time = |option, default| arguments.duration(option).unwrap_or(Duration::from_millis(default));
        let pace = Pace {
            gossip_interval: time("sim-gossip-interval", 200).max(Duration::from_millis(10)),
            failure_timeout: time("sim-failure-timeout", 2000),
            join_timeout: time("sim-join-timeout", 10_000),
            bootstrap: time("sim-bootstrap-duration", 1000),
            decommission: time("sim-decommission-duration", 1000),
        };

        let config = Self {
            cluster_name: entry.text("cluster_name").unwrap_or_default().to_owned(),
            seeds: entry.seeds(),
            listen_address,
            broadcast_address,
            rpc_address,
            broadcast_rpc_address,
            api,
            prometheus,
            storage_port: entry.port("storage_port")?.unwrap_or(7000),
            native_port: entry.port("native_transport_port")?.unwrap_or(9042),
            native_port_ssl: entry.port("native_transport_port_ssl")?,
            client_encryption: entry.encryption("client_encryption_options").filter(|_| entry.is_encrypted()),
            requires_login: entry.text("authenticator").is_some_and(|name| name.ends_with("PasswordAuthenticator")),
            alternator,
            datacenter,
            rack,
            num_tokens: usize::from(entry.port("num_tokens")?.unwrap_or(16)).max(1),
            workdir,
            data_dir,
            replaces: arguments.get("replace-node-first-boot").and_then(HostId::parse),
            shards: arguments.get("smp").and_then(|smp| smp.parse().ok()).unwrap_or(1).max(1),
            pace,
            keyspaces,
            release_version: arguments.get("sim-release-version").unwrap_or("2026.2.4").to_owned(),
            arguments,
            entries: Map::new(),
        };
        Ok(Self { entries: complete(entries, &config), ..config })
    }

    /// Whether this node starts a new cluster if there is none: it is the first of its own seeds.
    pub fn is_first_seed(&self) -> bool {
        self.seeds.first().is_some_and(|seed| seed.parse() == Ok(self.broadcast_address))
    }
}

/// Options that are not in `scylla.yaml`.
const NOT_IN_FILE: &[&str] =
    &["seeds", "options-file", "smp", "cpuset", "memory", "overprovisioned", "io-setup", "data-file-directories"];

/// Sets the entries that the entrypoint always passes to ScyllaDB, which override the file.
fn apply_entrypoint_arguments(entries: &mut Map<String, Value>, arguments: &Arguments, own_address: Option<IpAddr>) {
    let listen = arguments.get("listen-address").map(str::to_owned).or_else(|| own_address.map(|own| own.to_string()));
    let Some(listen) = listen else { return };
    let seeds = arguments.get("seeds").or(arguments.get("broadcast-address")).unwrap_or(&listen);
    entries.insert("seed_provider".to_owned(), json!([{ "parameters": [{ "seeds": seeds }] }]));
    let rpc = arguments.get("rpc-address").unwrap_or(&listen);
    entries.insert("rpc_address".to_owned(), json!(rpc));
    let alternator = arguments.get("alternator-address").unwrap_or(&listen);
    entries.insert("alternator_address".to_owned(), json!(alternator));
    entries.insert("listen_address".to_owned(), json!(listen));
}

/// Adds the entries that the REST API serves and that the file does not have.
fn complete(mut entries: Map<String, Value>, config: &Config) -> Map<String, Value> {
    let ssl_port = config.native_port_ssl.unwrap_or(0);
    let given = [
        ("cluster_name", json!(config.cluster_name)),
        ("listen_address", json!(config.listen_address)),
        ("broadcast_address", json!(config.broadcast_address)),
        ("rpc_address", json!(config.rpc_address)),
        ("broadcast_rpc_address", json!(config.broadcast_rpc_address)),
        ("api_address", json!(config.api.ip())),
        ("api_port", json!(config.api.port())),
        ("prometheus_address", json!(config.prometheus.ip())),
        ("prometheus_port", json!(config.prometheus.port())),
        ("native_transport_port", json!(config.native_port)),
        ("native_transport_port_ssl", json!(ssl_port)),
        ("workdir", json!(config.workdir)),
        ("data_file_directories", json!([config.data_dir])),
    ];
    let defaults = [
        ("rpc_port", json!(9160)),
        ("client_encryption_options", json!({ "enabled": "false" })),
        ("object_storage_endpoints", json!({})),
        ("authenticator", json!("AllowAllAuthenticator")),
        ("uuid_sstable_identifiers_enabled", json!(true)),
        ("consistent_cluster_management", json!(true)),
        ("enable_tablets", json!(false)),
        ("endpoint_snitch", json!("SimpleSnitch")),
    ];
    given.into_iter().for_each(|(name, value)| _ = entries.insert(name.to_owned(), value));
    for (name, value) in defaults {
        entries.entry(name).or_insert(value);
    }
    // Options of a map are strings.
    if let Some(Value::Object(options)) = entries.get_mut("client_encryption_options") {
        options.values_mut().for_each(|value| *value = json!(text_of(value)));
    }
    entries
}

struct Entries<'a>(&'a Map<String, Value>);

impl Entries<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    fn is_on(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| is_true(&text_of(value)))
    }

    fn address(&self, name: &str) -> Result<Option<IpAddr>, ConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let text = if text == "localhost" { "127.0.0.1" } else { text };
        let expected = "an IP address";
        let invalid = |_| ConfigError::Value { option: name.to_owned(), value: text.to_owned(), expected };
        text.parse().map(Some).map_err(invalid)
    }

    /// A port; 0 is none.
    fn port(&self, name: &str) -> Result<Option<u16>, ConfigError> {
        let Some(text) = self.0.get(name).map(text_of).filter(|text| !text.is_empty()) else { return Ok(None) };
        let expected = "a port";
        let port: u16 =
            text.parse().map_err(|_| ConfigError::Value { option: name.to_owned(), value: text, expected })?;
        Ok(Some(port).filter(|&port| port != 0))
    }

    fn seeds(&self) -> Vec<String> {
        let given = self.text("seed_provider_parameters").and_then(|text| text.strip_prefix("seeds="));
        let seeds = given.or_else(|| {
            self.0.get("seed_provider")?.get(0)?.get("parameters")?.get(0)?.get("seeds").and_then(Value::as_str)
        });
        let seeds = seeds.unwrap_or_default().split(',').map(str::trim);
        seeds.filter(|seed| !seed.is_empty()).map(str::to_owned).collect()
    }

    fn data_dir(&self) -> Option<PathBuf> {
        self.0.get("data_file_directories")?.get(0)?.as_str().map(PathBuf::from)
    }

    fn is_encrypted(&self) -> bool {
        let enabled = self.0.get("client_encryption_options").and_then(|options| options.get("enabled"));
        enabled.is_some_and(|enabled| is_true(&text_of(enabled)))
    }

    fn encryption(&self, name: &str) -> Option<Encryption> {
        let options = self.0.get(name)?;
        let file =
            |key: &str, default: &str| PathBuf::from(options.get(key).and_then(Value::as_str).unwrap_or(default));
        let requires_client = options.get("require_client_auth").is_some_and(|value| is_true(&text_of(value)));
        Some(Encryption {
            certificate: file("certificate", "/etc/scylla/scylla.crt"),
            key: file("keyfile", "/etc/scylla/scylla.key"),
            client_authorities: requires_client.then(|| file("truststore", "/etc/scylla/scylla.crt")),
        })
    }

    /// Returns datacenter and rack. Only one snitch reads the properties; only snitches of clouds use `dc_suffix`.
    fn place(&self, rackdc: &str) -> (String, String) {
        let reads_file = self.text("endpoint_snitch").is_some_and(|name| name.ends_with("GossipingPropertyFileSnitch"));
        let lines = rackdc.lines().map(str::trim).filter(|line| reads_file && !line.starts_with('#'));
        let properties: BTreeMap<&str, &str> =
            lines.filter_map(|line| line.split_once('=')).map(|(key, value)| (key.trim(), value.trim())).collect();
        let property = |name, default: &str| (*properties.get(name).unwrap_or(&default)).to_owned();
        (property("dc", "datacenter1"), property("rack", "rack1"))
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

fn scalar(text: &str) -> Value {
    match text {
        "true" | "on" => json!(true),
        "false" | "off" => json!(false),
        _ => text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number)),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Parses `a=b:c=d`, the format of maps on ScyllaDB's command line.
fn key_values(text: &str) -> Value {
    let pairs = text.split([':', ',']).filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), json!(value.trim_matches('"')))).collect::<Map<_, _>>().into()
}

fn pairs(texts: &[&str]) -> BTreeMap<String, String> {
    let pairs = texts.iter().filter_map(|text| text.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns the address of the host name, as `hostname -i` does in a container.
fn own_address() -> Option<IpAddr> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let hosts = fs::read_to_string("/etc/hosts").ok()?;
    let mut lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default().split_whitespace());
    lines.find_map(|mut words| {
        let address = words.next()?.parse().ok()?;
        words.any(|word| word == name.trim()).then_some(address)
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const FILE: &str = r#"
cluster_name: "minimal"
rpc_address: "0.0.0.0"
listen_address: "0.0.0.0"
endpoint_snitch: "GossipingPropertyFileSnitch"
seed_provider: [{class_name: x, parameters: [{seeds: "127.0.0.1"}]}]
native_transport_port_ssl: 9142
client_encryption_options: {enabled: true, certificate: /c, keyfile: /k, require_client_auth: true, truststore: /ca}
alternator_enforce_authorization: true
alternator_https_port: 8043
alternator_encryption_options: {certificate: /ac, keyfile: /ak}
"#;

    fn config(arguments: &[&str], caller: Caller) -> Result<Config, ConfigError> {
        let arguments = Arguments::parse(arguments.iter().map(|&argument| argument.to_owned())).unwrap();
        let entries = serde_saphyr::from_str(FILE).unwrap();
        Config::of(entries, "dc = us-east-1\nrack=a\nprefer_local=false\n", arguments, caller, "10.1.2.3".parse().ok())
    }

    #[test]
    fn configuration_is_read_from_files_and_arguments() {
        let arguments = ["--seeds=10.0.0.1", "--listen-address=0.0.0.0", "--broadcast-address=10.0.0.7", "--smp=2"];
        let config = config(&arguments, Caller::Image).unwrap();
        assert_eq!(config.cluster_name, "minimal");
        assert_eq!(config.seeds, ["10.0.0.1"]);
        assert_eq!(config.broadcast_rpc_address.to_string(), "10.0.0.7");
        assert_eq!((config.datacenter.as_str(), config.rack.as_str()), ("us-east-1", "a"));
        assert_eq!(config.native_port_ssl, Some(9142));
        assert_eq!(config.client_encryption.unwrap().client_authorities, Some(PathBuf::from("/ca")));
        assert_eq!(config.alternator.https_port, Some(8043));
        assert_eq!(config.alternator.port, None);
        assert!(config.alternator.enforces_authorization);
        assert_eq!(config.shards, 2);
        assert_eq!(config.entries["client_encryption_options"]["enabled"], json!("true"));
    }

    #[test]
    fn entrypoint_overrides_addresses_of_the_file_and_scylla_does_not() {
        let image = config(&[], Caller::Image).unwrap();
        assert_eq!((image.listen_address.to_string(), image.seeds.join(",")), ("10.1.2.3".into(), "10.1.2.3".into()));
        assert!(image.is_first_seed());
        let scylla = config(&["--broadcast-address=10.0.0.7"], Caller::Scylla).unwrap();
        assert_eq!((scylla.rpc_address.to_string(), scylla.seeds.join(",")), ("0.0.0.0".into(), "127.0.0.1".into()));
    }

    #[test]
    fn options_of_a_map_are_merged() {
        let option = "--alternator-encryption-options";
        let arguments = [option, "keyfile=\"/new/k\"", "--alternator-encryption-options=certificate=/new/c"];
        let encryption = config(&arguments, Caller::Image).unwrap().alternator.encryption.unwrap();
        assert_eq!((encryption.certificate, encryption.key), ("/new/c".into(), "/new/k".into()));
    }

    #[test]
    fn unreachable_broadcast_address_is_refused() {
        assert!(matches!(config(&[], Caller::Scylla), Err(ConfigError::NoBroadcastAddress(_))));
    }
}
