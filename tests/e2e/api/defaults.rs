//! Default values that the API server sets. They are those of scylla-operator, whose users rely on them.

use messina_e2e::{accepts, in_a_namespace};
use serde_json::json;

use super::{cluster, other, task};

#[tokio::test]
async fn defaults_of_a_scylla_cluster() {
    in_a_namespace("defaults", async |client, namespace| {
        let stored = accepts(client, namespace, &cluster("minimal", "{}")).await;
        let everywhere = json!({
            "repository": "docker.io/scylladb/scylla",
            "agentRepository": "docker.io/scylladb/scylla-manager-agent",
            "agentVersion": "latest",
        });
        assert_eq!(stored["spec"], everywhere);

        // Fields of an empty object get defaults; an absent object stays absent.
        let spec = "{version: 2026.2.4, alternator: {}, genericUpgrade: {}, network: {}, repairs: [{name: r}], \
                    backups: [{name: b}], datacenter: {racks: [{name: a}]}, \
                    exposeOptions: {broadcastOptions: {nodes: {type: PodIP, podIP: {}}}}}";
        let stored = accepts(client, namespace, &cluster("filled", spec)).await;
        let mut expected = json!({
            "version": "2026.2.4",
            "alternator": {"servingCertificate": {"type": "OperatorManaged"}},
            "genericUpgrade": {"failureStrategy": "Retry", "pollInterval": "1s"},
            "network": {"ipFamilyPolicy": "SingleStack"},
            "repairs": [
                {"name": "r", "numRetries": 3, "intensity": "1", "parallel": 0, "smallTableThreshold": "1GiB"},
            ],
            "backups": [{"name": "b", "numRetries": 3, "retention": 3}],
            "datacenter": {
                "racks": [{"name": "a", "agentResources": {"requests": {"cpu": "50m", "memory": "10M"}}}],
            },
            "exposeOptions": {
                "nodeService": {"type": "ClusterIP"},
                "broadcastOptions": {
                    "nodes": {"type": "PodIP", "podIP": {"source": "Status"}},
                    "clients": {"type": "ServiceClusterIP"},
                },
            },
        });
        expected.as_object_mut().unwrap().extend(everywhere.as_object().unwrap().clone());
        assert_eq!(stored["spec"], expected);

        // Given values are kept.
        let own = "{repository: a, agentRepository: b, agentVersion: c, \
                   alternator: {servingCertificate: {type: UserManaged}}}";
        let stored = accepts(client, namespace, &cluster("own", own)).await;
        let expected = json!({
            "repository": "a",
            "agentRepository": "b",
            "agentVersion": "c",
            "alternator": {"servingCertificate": {"type": "UserManaged"}},
        });
        assert_eq!(stored["spec"], expected);
    })
    .await;
}

#[tokio::test]
async fn defaults_of_other_kinds() {
    in_a_namespace("defaults-others", async |client, namespace| {
        for (kind, spec, expected) in [
            ("ScyllaDBDatacenter", "{}", json!({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})),
            (
                "ScyllaDBDatacenter",
                "{scyllaDB: {alternatorOptions: {}}, exposeOptions: {broadcastOptions: {}}}",
                json!({
                    "ipFamilies": ["IPv4"],
                    "ipFamilyPolicy": "SingleStack",
                    "scyllaDB": {"alternatorOptions": {"servingCertificate": {"type": "OperatorManaged"}}},
                    "exposeOptions": {
                        "nodeService": {"type": "ClusterIP"},
                        "broadcastOptions": {"nodes": {"type": "PodIP"}, "clients": {"type": "PodIP"}},
                    },
                }),
            ),
            (
                "ScyllaDBCluster",
                "{scyllaDB: {alternatorOptions: {}}, exposeOptions: {broadcastOptions: {}}}",
                json!({
                    "scyllaDB": {"alternatorOptions": {"servingCertificate": {"type": "OperatorManaged"}}},
                    "exposeOptions": {
                        "nodeService": {"type": "Headless"},
                        "broadcastOptions": {"nodes": {"type": "PodIP"}, "clients": {"type": "PodIP"}},
                    },
                }),
            ),
            ("RemoteKubernetesCluster", "{}", json!({"clientHealthcheckProbes": {"periodSeconds": 60}})),
            // Absent fields of tasks are left to ScyllaDB Manager.
            ("ScyllaDBManagerTask", "{backup: {}, repair: {}}", json!({"backup": {}, "repair": {}})),
        ]
        .into_iter()
        {
            let name = format!("{}-{}", kind.to_lowercase(), spec.len());
            let stored = accepts(client, namespace, &other(kind, &name, &format!("spec: {spec}"))).await;
            assert_eq!(stored["spec"], expected, "{kind} {spec}");
        }
        let stored = accepts(client, namespace, &task("task", "{type: T}")).await;
        assert_eq!(stored["spec"], json!({"type": "T"}));
    })
    .await;
}
