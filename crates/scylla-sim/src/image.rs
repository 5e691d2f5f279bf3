//! The files of the image of the simulated node.

/// The content of a file of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The program `scylla-sim`, executable. Its name selects its function.
    Program,
    /// A text file.
    Text(&'static str),
}

/// The files of the image, with their contents.
pub const FILES: &[(&str, Content)] = &[
    ("/docker-entrypoint.py", Content::Program),
    ("/usr/bin/scylla", Content::Program),
    ("/usr/bin/nodetool", Content::Program),
    ("/usr/bin/scylla-manager-agent", Content::Program),
    ("/usr/bin/simctl", Content::Program),
    ("/etc/scylla/scylla.yaml", Content::Text(SCYLLA_YAML)),
    ("/etc/scylla/cassandra-rackdc.properties", Content::Text(RACKDC_PROPERTIES)),
    ("/etc/scylla-manager-agent/scylla-manager-agent.yaml", Content::Text(AGENT_YAML)),
];

/// Directories that must exist.
pub const DIRECTORIES: &[&str] = &["/var/lib/scylla", "/etc/scylla.d", "/tmp"];

const SCYLLA_YAML: &str = r#"num_tokens: 16
commitlog_sync: periodic
commitlog_sync_period_in_ms: 10000
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters:
      - seeds: "127.0.0.1"
listen_address: localhost
rpc_address: localhost
native_transport_port: 9042
native_shard_aware_transport_port: 19042
api_port: 10000
api_address: 127.0.0.1
endpoint_snitch: SimpleSnitch
batch_size_warn_threshold_in_kb: 128
batch_size_fail_threshold_in_kb: 1024
murmur3_partitioner_ignore_msb_bits: 12
"#;

const RACKDC_PROPERTIES: &str =
    "# dc=my_data_center\n# rack=my_rack\n# prefer_local=<false | true>\n# dc_suffix=<suffix>\n";

const AGENT_YAML: &str = "auth_token:\n";
