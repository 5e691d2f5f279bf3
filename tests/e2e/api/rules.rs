//! Validation rules (CEL) of the definitions: objects that break a rule are refused with its message, objects at its
//! limit are accepted.

use messina_e2e::{DEFINITIONS, accepts, accepts_change, accepts_status, in_a_namespace, refuses, refuses_change};

use super::{cluster, datacenter, each_field, task};

/// Objects that break one rule.
struct Case {
    /// Kind and field of the rule.
    at: &'static str,
    /// A part of the error that no other rule of the field has: of the message, or the name of the field.
    says: &'static str,
    /// Specs that cannot be created.
    created: &'static [&'static str],
    /// Specs that can be created, each with a spec that it cannot be changed to.
    changed: &'static [(&'static str, &'static str)],
}

const CASES: [Case; 8] = [
    Case {
        at: "ScyllaDBDatacenter ",
        says: "spec.clusterName",
        created: &[],
        changed: &[("{clusterName: a}", "{clusterName: b}"), ("{clusterName: a}", "{}"), ("{}", "{clusterName: a}")],
    },
    Case {
        at: "ScyllaDBDatacenter ",
        says: "spec.ipFamilies",
        created: &[],
        changed: &[
            ("{}", "{ipFamilies: [IPv6]}"),
            ("{ipFamilies: [IPv6, IPv4]}", "{ipFamilies: [IPv4, IPv6]}"),
            ("{ipFamilies: [IPv6]}", "{}"),
        ],
    },
    Case {
        at: "ScyllaDBDatacenter ",
        says: "spec.exposeOptions.nodeService.type",
        created: &[],
        changed: &[
            ("{}", "{exposeOptions: {nodeService: {type: Headless}}}"),
            ("{exposeOptions: {nodeService: {type: LoadBalancer}}}", "{exposeOptions: {}}"),
        ],
    },
    Case {
        at: "ScyllaDBDatacenter ",
        says: "spec.exposeOptions.broadcastOptions.nodes.type",
        created: &[],
        changed: &[
            ("{}", "{exposeOptions: {broadcastOptions: {nodes: {type: PodIP}, clients: {type: ServiceClusterIP}}}}"),
            (
                "{exposeOptions: {broadcastOptions: {nodes: {type: PodIP}, clients: {type: PodIP}}}}",
                "{exposeOptions: {broadcastOptions: {nodes: {type: ServiceClusterIP}, clients: {type: PodIP}}}}",
            ),
        ],
    },
    Case {
        at: "ScyllaDBDatacenter ",
        says: "spec.exposeOptions.broadcastOptions.clients.type",
        created: &[],
        changed: &[
            ("{}", "{exposeOptions: {broadcastOptions: {nodes: {type: ServiceClusterIP}, clients: {type: PodIP}}}}"),
            (
                "{exposeOptions: {broadcastOptions: {nodes: {type: PodIP}, clients: {type: PodIP}}}}",
                "{exposeOptions: {broadcastOptions: {nodes: {type: PodIP}, clients: {type: ServiceClusterIP}}}}",
            ),
        ],
    },
    Case {
        at: "ScyllaCluster spec.alternator",
        says: "insecureEnableHTTP cannot be false while port is set, because port serves plain HTTP: remove port",
        created: &[
            "{alternator: {port: 8000, insecureEnableHTTP: false}}",
            "{alternator: {port: 1, insecureEnableHTTP: false, insecureDisableAuthorization: false}}",
        ],
        changed: &[
            ("{alternator: {port: 8000}}", "{alternator: {port: 8000, insecureEnableHTTP: false}}"),
            ("{alternator: {insecureEnableHTTP: false}}", "{alternator: {port: 8000, insecureEnableHTTP: false}}"),
        ],
    },
    Case {
        at: "EtcdOperatorTask spec",
        says: "spec is immutable: create another EtcdOperatorTask",
        created: &[],
        changed: &[
            ("{type: OnDemandSnapshot}", "{type: OffDemandSnapshot}"),
            // The reference, and its spelling.
            ("{type: T, etcdReference: {name: a}}", "{type: T, etcdReference: {name: b}}"),
            ("{type: T, etcdReference: {name: a}}", "{type: T, etcdReference: {name: a, namespace: b}}"),
            ("{type: T, etcdReference: {name: a}}", "{type: T, etcdRef: {name: a}}"),
            ("{type: T, etcdReference: {name: a}}", "{type: T}"),
            ("{type: T}", "{type: T, etcdReference: {name: a}}"),
            // Options as an object without a schema.
            ("{type: T, config: {snapshotType: full}}", "{type: T, config: {snapshotType: delta}}"),
            ("{type: T, config: {a: {b: [1, {c: 1}]}}}", "{type: T, config: {a: {b: [1, {c: 2}]}}}"),
            ("{type: T, config: {a: {b: [1, {c: 1}]}}}", "{type: T, config: {a: {b: [1, {c: 1, d: 1}]}}}"),
            ("{type: T, config: {a: [1, 2]}}", "{type: T, config: {a: [2, 1]}}"),
            ("{type: T, config: {a: null}}", "{type: T, config: {}}"),
            ("{type: T, config: {a: 1}}", "{type: T, config: {a: '1'}}"),
            // Options as a text.
            ("{type: T, config: '{\"a\":1}'}", "{type: T, config: '{\"a\":2}'}"),
            ("{type: T, config: '{\"a\":1}'}", "{type: T, config: '{\"a\": 1}'}"),
            ("{type: T, config: '{\"a\":1}'}", "{type: T, config: {a: 1}}"),
            ("{type: T}", "{type: T, config: {}}"),
            ("{type: T, config: {}}", "{type: T}"),
            ("{type: T, config: ''}", "{type: T}"),
            // The time to live.
            ("{type: T}", "{type: T, ttlSecondsAfterFinished: 0}"),
            ("{type: T, ttlSecondsAfterFinished: 0}", "{type: T}"),
            ("{type: T, ttlSecondsAfterFinished: 600}", "{type: T, ttlSecondsAfterFinished: 601}"),
        ],
    },
    Case {
        at: "EtcdOperatorTask spec",
        says: "etcdReference, etcdRef and ownerEtcdReference are aliases: set etcdReference only",
        created: &[
            "{type: T, etcdReference: {name: a}, etcdRef: {name: a}}",
            "{type: T, etcdReference: {name: a}, ownerEtcdReference: {name: a}}",
            "{type: T, etcdRef: {name: a}, ownerEtcdReference: {name: b}}",
            "{type: T, etcdReference: {name: a}, etcdRef: {name: a}, ownerEtcdReference: {name: a}}",
            "{type: T, etcdReference: {}, etcdRef: {}}",
        ],
        changed: &[],
    },
];

#[test]
fn every_validation_rule_has_a_case() {
    let mut rules = vec![];
    for definition in DEFINITIONS.iter() {
        each_field(definition, |path, schema| {
            for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
                let message = rule["message"].as_str().unwrap_or_else(|| panic!("no message: {rule}"));
                let field = rule["fieldPath"].as_str().unwrap_or_default().trim_start_matches('.');
                rules.push((format!("{} {path}", definition.spec.names.kind), format!("{field}: {message}")));
            }
        });
    }
    for (at, message) in &rules {
        let cases = CASES.iter().filter(|case| case.at == at && message.contains(case.says)).count();
        assert_eq!(cases, 1, "cases for the rule of {at} that says {message:?}");
    }
    assert_eq!(rules.len(), CASES.len(), "a case is for a rule that there is not; there are {rules:?}");
}

#[tokio::test]
async fn object_that_breaks_a_rule_is_refused_with_its_message() {
    in_a_namespace("rules", async |client, namespace| {
        let mut count = 0;
        for case in &CASES {
            let yaml = match case.at.split_once(' ') {
                Some(("ScyllaCluster", _)) => cluster,
                Some(("ScyllaDBDatacenter", _)) => datacenter,
                Some(("EtcdOperatorTask", _)) => task,
                _ => panic!("this test cannot write what {} is in", case.at),
            };
            assert!(case.created.len() + case.changed.len() > 0, "nothing breaks the rule of {}", case.at);
            for spec in case.created {
                refuses(client, namespace, &yaml("broken", spec), case.says).await;
            }
            for (before, after) in case.changed {
                count += 1;
                let name = format!("changed-{count}");
                accepts(client, namespace, &yaml(&name, before)).await;
                if case.at.starts_with("ScyllaDBDatacenter") {
                    // Without nodes, every field can be changed.
                    let status = datacenter(&name, &format!("{before}, status: {{nodes: 1}}"));
                    accepts_status(client, namespace, &status).await;
                }
                refuses_change(client, namespace, &yaml(&name, after), case.says).await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn object_at_the_limit_of_a_rule_is_accepted() {
    in_a_namespace("rules-kept", async |client, namespace| {
        for (number, alternator) in [
            "{}",
            "{port: 8000}",
            "{port: 8000, insecureEnableHTTP: true}",
            "{port: 0, insecureEnableHTTP: false}",
            "{insecureEnableHTTP: false}",
            "{port: 8000, insecureDisableAuthorization: false}",
        ]
        .iter()
        .enumerate()
        {
            let yaml = cluster(&format!("alternator-{number}"), &format!("{{alternator: {alternator}}}"));
            accepts(client, namespace, &yaml).await;
        }
        for (number, (before, after)) in [
            ("{ipFamilies: [IPv4]}", "{ipFamilies: [IPv4, IPv6]}"),
            ("{}", "{exposeOptions: {nodeService: {type: ClusterIP, labels: {a: b}}}}"),
            ("{exposeOptions: {nodeService: {type: Headless}}}", "{exposeOptions: {nodeService: {type: Headless}, cql: {}}}"),
            ("{}", "{exposeOptions: {broadcastOptions: {nodes: {type: ServiceClusterIP}, clients: {type: ServiceClusterIP}}}}"),
            ("{exposeOptions: {broadcastOptions: {}}}", "{exposeOptions: {broadcastOptions: {nodes: {type: PodIP}}}}"),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("datacenter-{number}");
            accepts(client, namespace, &datacenter(&name, before)).await;
            accepts_status(client, namespace, &datacenter(&name, &format!("{before}, status: {{nodes: 1}}"))).await;
            accepts_change(client, namespace, &datacenter(&name, after)).await;
        }
        // As long as there are no nodes, every field can be changed.
        accepts(client, namespace, &datacenter("corrected", "{clusterName: a, ipFamilies: [IPv5]}")).await;
        let corrected = "{clusterName: b, ipFamilies: [IPv6], exposeOptions: {nodeService: {type: Headless}}}";
        accepts_change(client, namespace, &datacenter("corrected", corrected)).await;
        for reference in ["etcdReference", "etcdRef", "ownerEtcdReference"] {
            let yaml = task(&reference.to_lowercase(), &format!("{{type: T, {reference}: {{name: a}}}}"));
            accepts(client, namespace, &yaml).await;
        }
    })
    .await;
}

#[tokio::test]
async fn task_is_mutable_except_its_spec() {
    in_a_namespace("rules-metadata", async |client, namespace| {
        let spec =
            "{type: OnDemandSnapshot, etcdReference: {name: a}, config: {a: {b: [1]}}, ttlSecondsAfterFinished: 1}";
        accepts(client, namespace, &task("task", spec)).await;
        let described = task(
            "task, labels: {a: b}, annotations: {c: d}, finalizers: [druid.gardener.cloud/etcd-operator-task]",
            spec,
        );
        let stored = accepts_change(client, namespace, &described).await;
        assert_eq!(stored["metadata"]["labels"]["a"], "b");
        assert_eq!(stored["metadata"]["generation"], 1, "the spec counts as changed");
        // The status subresource ignores the spec.
        for sent in [spec, "{type: Other}"] {
            let status = format!("{sent}, status: {{state: Pending, observedGeneration: 1}}");
            let stored = accepts_status(client, namespace, &task("task", &status)).await;
            assert_eq!(stored["status"]["state"], "Pending");
            assert_eq!(stored["spec"]["type"], "OnDemandSnapshot");
        }
        // Removes the finalizer, so that the namespace can be deleted.
        accepts_change(client, namespace, &task("task", spec)).await;
    })
    .await;
}
