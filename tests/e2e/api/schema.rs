//! Schema validation: errors name the field.

use messina_e2e::{DEFINITIONS, accepts, accepts_status, in_a_namespace, refuses, refuses_change, refuses_status};

use super::{cluster, each_field, other, task};

/// How a test writes an object with an unknown enum value.
enum Through {
    Creation(fn(&str) -> String),
    Status(fn(&str) -> String),
}

/// All fields with an enum, except the status of conditions, and how to write them.
const ENUMS: [(&str, &str, Through); 4] = [
    (
        "ScyllaCluster spec.alternator.servingCertificate.type",
        "spec.alternator.servingCertificate.type",
        Through::Creation(|text| cluster("enum", &format!("{{alternator: {{servingCertificate: {{type: {text}}}}}}}"))),
    ),
    (
        "ScyllaDBDatacenter spec.ipFamilyPolicy",
        "spec.ipFamilyPolicy",
        Through::Creation(|text| other("ScyllaDBDatacenter", "enum", &format!("spec: {{ipFamilyPolicy: {text}}}"))),
    ),
    (
        "ScyllaDBStatusReport datacenters[].nodes[].observedNodes[].status",
        "datacenters[0].nodes[0].observedNodes[0].status",
        Through::Creation(|text| {
            let datacenters = format!("datacenters: [{{nodes: [{{observedNodes: [{{status: {text}}}]}}]}}]");
            other("ScyllaDBStatusReport", "enum", &datacenters)
        }),
    ),
    (
        "EtcdOperatorTask status.state",
        "status.state",
        Through::Status(|text| task("enum", &format!("{{type: T}}, status: {{state: {text}}}"))),
    ),
];

#[tokio::test]
async fn unknown_enum_value_is_refused() {
    let mut fields = vec![];
    for definition in DEFINITIONS.iter() {
        each_field(definition, |path, schema| {
            if schema["enum"].is_array() && path != "status.conditions[].status" {
                fields.push(format!("{} {path}", definition.spec.names.kind));
            }
        });
    }
    for field in &fields {
        assert!(ENUMS.iter().any(|(known, ..)| known == field), "this test does not know the enum of {field}");
    }
    assert_eq!(fields.len(), ENUMS.len(), "this test knows more enums than there are: {fields:?}");

    in_a_namespace("enums", async |client, namespace| {
        for (_, path, through) in &ENUMS {
            let words = format!("{path}: Unsupported value: \"Unheard\"");
            match through {
                Through::Creation(yaml) => refuses(client, namespace, &yaml("Unheard"), &words).await,
                Through::Status(yaml) => {
                    accepts(client, namespace, &yaml("Pending")).await;
                    refuses_status(client, namespace, &yaml("Unheard"), &words).await;
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn conditions_have_the_schema_of_kubernetes() {
    in_a_namespace("conditions", async |client, namespace| {
        let mut kinds = 0;
        for definition in DEFINITIONS.iter() {
            let mut has_conditions = false;
            each_field(definition, |path, _| has_conditions |= path == "status.conditions");
            if !has_conditions {
                continue;
            }
            kinds += 1;
            let (group, version, kind) =
                (&definition.spec.group, &definition.spec.versions[0].name, &definition.spec.names.kind);
            let object = |condition: &str| {
                format!(
                    "{{apiVersion: {group}/{version}, kind: {kind}, metadata: {{name: conditions}}, \
                     status: {{conditions: [{{type: Available, lastTransitionTime: '2026-01-01T00:00:00Z', \
                     message: '', {condition}}}]}}}}"
                )
            };
            let known = object("status: Unknown, reason: AsExpected");
            accepts(client, namespace, &known).await;
            accepts_status(client, namespace, &known).await;
            for (condition, words) in [
                ("status: Perhaps, reason: A", "status.conditions[0].status: Unsupported value: \"Perhaps\""),
                ("status: 'True', reason: no word", "status.conditions[0].reason: Invalid value: \"no word\""),
                ("status: 'True'", "status.conditions[0].reason: Required value"),
            ] {
                refuses_status(client, namespace, &object(condition), words).await;
            }
        }
        assert!(kinds > 0, "no kind has conditions");
    })
    .await;
}

#[tokio::test]
async fn value_of_the_wrong_type_is_refused() {
    in_a_namespace("types", async |client, namespace| {
        for (spec, words) in [
            ("{replicas: '3'}", r#"spec.replicas in body must be of type integer: "string""#),
            ("{developerMode: 'yes'}", r#"spec.developerMode in body must be of type boolean: "string""#),
            // A version that YAML parses as a number.
            ("{version: 2026.2}", r#"spec.version in body must be of type string: "number""#),
            ("{version: 2026}", r#"spec.version in body must be of type string: "integer""#),
            ("{datacenter: {racks: {}}}", r#"spec.datacenter.racks in body must be of type array: "object""#),
            ("{alternator: true}", r#"spec.alternator in body must be of type object: "boolean""#),
            (
                "{podMetadata: {labels: {a: 1}}}",
                r#"spec.podMetadata.labels.a in body must be of type string: "integer""#,
            ),
            ("{exposeOptions: {nodeService: {}}}", "spec.exposeOptions.nodeService.type: Required value"),
            (
                "{datacenter: {racks: [{resources: {claims: [{request: a}]}}]}}",
                "spec.datacenter.racks[0].resources.claims[0].name: Required value",
            ),
        ] {
            refuses(client, namespace, &cluster("types", spec), words).await;
        }
        for (spec, words) in [
            (
                "{type: Backup, backup: {startDate: tomorrow}}",
                "spec.backup.startDate in body must be of type date-time",
            ),
            ("{type: Repair, repair: {intensity: '1'}}", r#"spec.repair.intensity in body must be of type integer"#),
        ] {
            let yaml = other("ScyllaDBManagerTask", "types", &format!("spec: {spec}"));
            refuses(client, namespace, &yaml, words).await;
        }
    })
    .await;
}

#[tokio::test]
async fn malformed_quantity_is_refused() {
    in_a_namespace("quantities", async |client, namespace| {
        let limits = |cpu: &str| {
            let name = cpu.trim_matches('\'').replace(['.', '+'], "-").to_lowercase();
            cluster(
                &format!("cpu-{name}"),
                &format!("{{datacenter: {{racks: [{{resources: {{limits: {{cpu: {cpu}}}}}}}]}}}}"),
            )
        };
        for cpu in ["1", "'2'", "100m", "'0.5'", "1e3", "1Ki"].map(limits) {
            accepts(client, namespace, &cpu).await;
        }
        for cpu in ["lots", "1KiB", "'1 Ki'", "''"] {
            let words = "spec.datacenter.racks[0].resources.limits.cpu in body should match";
            refuses(client, namespace, &limits(cpu), words).await;
        }
        // A fraction has to be a string, as in scylla-operator; Kubernetes' own kinds accept a number, too.
        let words = "spec.datacenter.racks[0].resources.limits.cpu in body must be of type integer,string";
        refuses(client, namespace, &limits("0.5"), words).await;

        let threshold = other("ScyllaDBManagerTask", "threshold", "spec: {repair: {smallTableThreshold: 1GiB}}");
        refuses(client, namespace, &threshold, "spec.repair.smallTableThreshold in body should match").await;
    })
    .await;
}

#[tokio::test]
async fn task_beyond_its_limits_is_refused() {
    in_a_namespace("limits", async |client, namespace| {
        for (spec, words) in [
            (
                "{type: T, ttlSecondsAfterFinished: -1}",
                "spec.ttlSecondsAfterFinished in body should be greater than or equal to 0",
            ),
            ("{type: ''}", "spec.type in body should be at least 1 chars long"),
            ("{}", "spec.type: Required value"),
        ] {
            refuses(client, namespace, &task("limits", spec), words).await;
        }
        let without_spec =
            "{apiVersion: druid.gardener.cloud/v1alpha1, kind: EtcdOperatorTask, metadata: {name: limits}}";
        refuses(client, namespace, without_spec, "spec: Required value").await;

        let with_errors = |count: usize| {
            let error = "{code: ERR_A, description: a, observedAt: '2026-01-01T00:00:00Z'}";
            task("limits", &format!("{{type: T}}, status: {{lastErrors: [{}]}}", vec![error; count].join(", ")))
        };
        accepts(client, namespace, &task("limits", "{type: T}")).await;
        refuses_change(client, namespace, without_spec, "spec: Required value").await;
        accepts_status(client, namespace, &with_errors(10)).await;
        let words = "status.lastErrors: Too many: 11: must have at most 10 items";
        refuses_status(client, namespace, &with_errors(11), words).await;
    })
    .await;
}
