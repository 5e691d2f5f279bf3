//! Names, labels and annotations. Other programs rely on them: they are an API.

pub mod annotation;
pub mod finalizer;
mod hashed;
mod image;
pub mod label;

pub use hashed::{MAX_LABEL, MAX_SUBDOMAIN, NameError, truncated_hashed_name};
pub use image::{NoVersion, image_version};

/// The namespace of the global ScyllaDB Manager. Without it, no cluster is registered.
pub const MANAGER_NAMESPACE: &str = "scylla-manager";

/// The volume of a pod that holds the data of its node.
pub const DATA_VOLUME: &str = "data";

/// Names of scylla-operator, whose datacenters Messina takes over.
pub mod scylla_operator {
    /// The lease of its leader, in the namespace that it runs in.
    pub const LEASE: &str = "scylla-operator-lock";

    /// The paths of its program in pods: in its image, and where an init container copies it to.
    pub const PROGRAMS: [&str; 2] = ["/usr/bin/scylla-operator", "/mnt/shared/scylla-operator"];

    /// The Secret with the CA of Alternator's serving certificate, and the ConfigMap of the same name with the CA
    /// certificate.
    pub fn alternator_serving_ca(datacenter: &str) -> String {
        format!("{datacenter}-alternator-local-serving-ca")
    }

    /// Whether this field manager is scylla-operator. Its requests set no field manager, so the API server uses the
    /// user agent up to the first slash, `scylla-operator (linux`. Its sidecars have another one.
    pub fn is_field_manager(manager: &str) -> bool {
        manager.strip_prefix("scylla-operator").is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
    }
}

/// Names of the objects of a ScyllaDBDatacenter named `datacenter`.
pub mod datacenter {
    use super::{DATA_VOLUME, MAX_SUBDOMAIN, NameError, truncated_hashed_name};

    /// The StatefulSet of a rack. `scylla_datacenter` is the name of the datacenter in ScyllaDB.
    pub fn rack_stateful_set(datacenter: &str, scylla_datacenter: &str, rack: &str) -> String {
        format!("{datacenter}-{scylla_datacenter}-{rack}")
    }

    /// The pod of a node and the Service of the same name.
    pub fn member(rack_stateful_set: &str, ordinal: i32) -> String {
        format!("{rack_stateful_set}-{ordinal}")
    }

    /// The PersistentVolumeClaim of a node.
    pub fn data_claim(member: &str) -> String {
        format!("{DATA_VOLUME}-{member}")
    }

    /// Returns the node of a PersistentVolumeClaim with this name.
    pub fn member_of_claim(claim: &str) -> Option<&str> {
        claim.strip_prefix(DATA_VOLUME)?.strip_prefix('-')
    }

    /// The Service of all nodes.
    pub fn identity_service(datacenter: &str) -> String {
        format!("{datacenter}-client")
    }

    /// The ServiceAccount of the pods, and the RoleBinding of the same name.
    pub fn member_service_account(datacenter: &str) -> String {
        format!("{datacenter}-member")
    }

    /// The PodDisruptionBudget.
    pub fn pod_disruption_budget(datacenter: &str) -> String {
        datacenter.to_owned()
    }

    /// The Secret with the token that agents and ScyllaDB Manager share.
    pub fn agent_auth_token(datacenter: &str) -> String {
        format!("{datacenter}-auth-token")
    }

    /// The ConfigMap with the operator's part of `scylla.yaml`.
    pub fn managed_config(datacenter: &str) -> String {
        format!("{datacenter}-managed-config")
    }

    /// The ConfigMap with the operator's part of the agents' configuration.
    pub fn managed_agent_config(datacenter: &str) -> String {
        format!("{datacenter}-manager-agent-config")
    }

    /// The ConfigMap with the snitch configuration of a rack.
    pub fn snitch_config(datacenter: &str, rack: &str) -> String {
        format!("{datacenter}-{rack}-snitch-config")
    }

    /// The ConfigMap that holds the state of an upgrade.
    pub fn upgrade_context(datacenter: &str) -> String {
        format!("{datacenter}-upgrade-context")
    }

    /// The Secret with the CA of client certificates, and the ConfigMap of the same name with the CA certificate.
    pub fn client_ca(datacenter: &str) -> String {
        format!("{datacenter}-local-client-ca")
    }

    /// The Secret with the administrator's client certificate.
    pub fn admin_client_certificate(datacenter: &str) -> String {
        format!("{datacenter}-local-user-admin")
    }

    /// The Secret with the CA of the CQL serving certificate, and the ConfigMap of the same name with the CA
    /// certificate.
    pub fn serving_ca(datacenter: &str) -> String {
        format!("{datacenter}-local-serving-ca")
    }

    /// The Secret with the CQL serving certificate.
    pub fn serving_certificate(datacenter: &str) -> String {
        format!("{datacenter}-local-serving-certs")
    }

    /// The Secret with the connection bundles of the administrator's CQL clients.
    pub fn admin_cql_connection_configs(datacenter: &str) -> String {
        format!("{datacenter}-local-cql-connection-configs-admin")
    }

    /// The Secret with the CA of Alternator's serving certificate, and the ConfigMap of the same name with the CA
    /// certificate.
    pub fn alternator_serving_ca(datacenter: &str) -> String {
        format!("{datacenter}-local-alternator-serving-ca")
    }

    /// The Secret with Alternator's serving certificate.
    pub fn alternator_serving_certificate(datacenter: &str) -> String {
        format!("{datacenter}-local-alternator-serving-certs")
    }

    /// The Ingress for CQL of a Service.
    pub fn cql_ingress(service: &str) -> String {
        format!("{service}-cql")
    }

    /// The cleanup Job of a node.
    pub fn cleanup_job(member: &str) -> String {
        format!("cleanup-{member}")
    }

    /// The ScyllaDBStatusReport of the datacenter's nodes.
    pub fn status_report(datacenter: &str) -> Result<String, NameError> {
        truncated_hashed_name(MAX_SUBDOMAIN, &[datacenter])
    }
}

/// Names of the objects of a ScyllaDBCluster named `cluster`, in its namespace and in other Kubernetes clusters.
pub mod cluster {
    use super::{MAX_LABEL, MAX_SUBDOMAIN, NameError, hashed::name_hash, truncated_hashed_name};

    /// The Service of all nodes of all datacenters, in the namespace of the ScyllaDBCluster, and its EndpointSlice.
    pub fn identity_service(cluster: &str) -> Result<String, NameError> {
        truncated_hashed_name(MAX_LABEL, &[cluster, "client"])
    }

    /// The Secret with the token that all agents and ScyllaDB Manager share.
    pub fn agent_auth_token(cluster: &str) -> Result<String, NameError> {
        truncated_hashed_name(MAX_SUBDOMAIN, &[cluster, "auth-token"])
    }

    /// The namespace of a datacenter in its Kubernetes cluster. `namespace` is that of the ScyllaDBCluster.
    pub fn remote_namespace(namespace: &str, datacenter: &str) -> String {
        format!("{namespace}-{}", name_hash(&[namespace, datacenter]))
    }

    /// The RemoteOwner of the objects of a datacenter in its Kubernetes cluster.
    pub fn remote_owner(namespace: &str, cluster: &str, datacenter: &str) -> String {
        format!("{cluster}-{}", name_hash(&[namespace, datacenter]))
    }

    /// The ScyllaDBDatacenter of a datacenter.
    pub fn scylladb_datacenter(cluster: &str, datacenter: &str) -> String {
        format!("{cluster}-{datacenter}")
    }

    /// The Service with the seeds of a datacenter for the other datacenters, and its EndpointSlice.
    pub fn seed_service(cluster: &str, datacenter: &str) -> String {
        format!("{cluster}-{datacenter}-seed")
    }

    /// The ScyllaDBStatusReport of the whole cluster in the namespace of a datacenter.
    pub fn status_report(cluster: &str, datacenter: &str) -> Result<String, NameError> {
        truncated_hashed_name(MAX_SUBDOMAIN, &[cluster, datacenter, "external"])
    }
}

/// Names of objects in ScyllaDB Manager.
pub mod manager {
    use super::{MAX_SUBDOMAIN, NameError, truncated_hashed_name};

    /// The ScyllaDBManagerClusterRegistration of a cluster. `kind` is ScyllaDBCluster or ScyllaDBDatacenter.
    pub fn registration(kind: &str, name: &str) -> Result<String, NameError> {
        truncated_hashed_name(MAX_SUBDOMAIN, &[kind, name])
    }

    /// The ScyllaDBManagerTask of a task of a ScyllaCluster. `task_type` is Backup or Repair.
    pub fn task_of_scylla_cluster(scylla_cluster: &str, task_type: &str, task: &str) -> Result<String, NameError> {
        truncated_hashed_name(MAX_SUBDOMAIN, &[scylla_cluster, task_type, task])
    }

    /// Name of a cluster in ScyllaDB Manager, unless an annotation overrides it. `namespace` is given for the global
    /// ScyllaDB Manager, which serves all namespaces.
    pub fn cluster_in_manager(namespace: Option<&str>, kind: &str, name: &str) -> String {
        match namespace {
            Some(namespace) => format!("{namespace}/{kind}/{name}"),
            None => format!("{kind}/{name}"),
        }
    }
}

/// Names of the objects of an Etcd.
pub mod etcd {
    /// The Service for clients of etcd and of the sidecar that takes snapshots.
    pub fn client_service(etcd: &str) -> String {
        format!("{etcd}-client")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_node() {
        let rack = datacenter::rack_stateful_set("full", "us-east-1", "a");
        assert_eq!(rack, "full-us-east-1-a");
        let member = datacenter::member(&rack, 2);
        assert_eq!(member, "full-us-east-1-a-2");
        assert_eq!(datacenter::data_claim(&member), "data-full-us-east-1-a-2");
        assert_eq!(datacenter::cleanup_job(&member), "cleanup-full-us-east-1-a-2");
    }

    #[test]
    fn field_managers_of_scylla_operator_are_not_those_of_its_sidecars() {
        let is_its = scylla_operator::is_field_manager;
        assert!(is_its("scylla-operator") && is_its("scylla-operator (linux"));
        for other in ["scylla-sidecar (linux", "scylla-operator-ignition (linux", "scylla-operator-e2e", "messina", ""]
        {
            assert!(!is_its(other), "{other}");
        }
    }

    #[test]
    fn names_of_a_cluster_in_several_datacenters() {
        assert_eq!(cluster::identity_service("cluster").as_deref(), Ok("cluster-client-bowxv"));
        assert_eq!(cluster::agent_auth_token("cluster").as_deref(), Ok("cluster-auth-token-2s75a"));
        assert_eq!(cluster::remote_namespace("scylla", "dc1"), "scylla-28t03");
        assert_eq!(cluster::remote_owner("scylla", "cluster", "dc1"), "cluster-28t03");
        assert_eq!(cluster::status_report("cluster", "dc2").as_deref(), Ok("cluster-dc2-external-hglri"));
        assert_eq!(datacenter::status_report("cluster-dc1").as_deref(), Ok("cluster-dc1-7p9ut"));
    }

    #[test]
    fn names_of_tasks_translated_from_v1() {
        let task = |task_type, task| manager::task_of_scylla_cluster("full", task_type, task);
        assert_eq!(task("Backup", "daily-backup").as_deref(), Ok("full-backup-daily-backup-3ot5s"));
        assert_eq!(task("Repair", "weekly-repair").as_deref(), Ok("full-repair-weekly-repair-1vivx"));
    }

    #[test]
    fn names_inside_of_scylladb_manager() {
        assert_eq!(manager::cluster_in_manager(None, "ScyllaDBCluster", "orders"), "ScyllaDBCluster/orders");
        assert_eq!(
            manager::cluster_in_manager(Some("shop"), "ScyllaDBCluster", "orders"),
            "shop/ScyllaDBCluster/orders"
        );
    }
}
