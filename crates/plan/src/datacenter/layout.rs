//! Names, paths and ports in the pods and objects of a datacenter.

/// The container that runs ScyllaDB.
pub(crate) const SCYLLA_CONTAINER: &str = "scylla";

/// The init container that waits for all other nodes to be up before a new one joins.
pub(crate) const BARRIER_CONTAINER: &str = "scylladb-bootstrap-barrier";

/// The path to which the init container copies the operator's program, for containers of other images.
pub(crate) const INJECTED_PROGRAM: &str = "/mnt/shared/messina";

/// The operator's program in its own image.
pub(crate) const PROGRAM: &str = "/usr/bin/messina";

pub(crate) const DATA_FOLDER: &str = "/var/lib/scylla";

pub(crate) const SHARED_FOLDER: &str = "/mnt/shared";

/// Where the ScyllaDB container mounts the operator's ConfigMaps, one directory each.
pub(crate) const CONFIG_MAPS: &str = "/var/run/configmaps/scylla-operator.scylladb.com/scylladb";

pub(crate) const SECRETS: &str = "/var/run/secrets/scylla-operator.scylladb.com/scylladb";

pub(crate) const PROBE_PORT: i32 = 8080;

pub(crate) const IGNITION_PORT: i32 = 42081;

pub(crate) const AGENT_PORT: i32 = 10001;

pub(crate) const NODE_EXPORTER_PORT: i32 = 9100;

/// Key of the agent's configuration, in ConfigMaps and Secrets.
pub(crate) const AGENT_CONFIG_FILE: &str = "scylla-manager-agent.yaml";

/// Key of the token in the Secret.
pub(crate) const TOKEN_FILE: &str = "auth-token.yaml";

/// All pods are created at once.
pub(crate) const PARALLEL: &str = "Parallel";

/// A pod is created when the one before it is ready.
pub(crate) const ORDERED_READY: &str = "OrderedReady";

/// The annotation that `kubectl rollout restart` sets on the pod template. It belongs to the user.
pub(crate) const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// Key of the certificate in a Secret.
pub(crate) const CERTIFICATE: &str = "tls.crt";

/// Key of the private key in a Secret.
pub(crate) const KEY: &str = "tls.key";

/// Key of the CA bundle in a ConfigMap.
pub(crate) const BUNDLE: &str = "ca-bundle.crt";

/// The default image of the node exporter.
pub const NODE_EXPORTER_IMAGE: &str = "docker.io/scylladb/scylladb-node-exporter:latest";
