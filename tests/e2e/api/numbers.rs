//! Numbers: what the API server stores has to fit into Messina's types, because the operator cannot reconcile an
//! unreadable object.

use messina_api::{druid::v1alpha1::EtcdOperatorTask, scylla::v1::ScyllaCluster};
use messina_e2e::{
    DEFINITIONS, accepts, accepts_change, accepts_status, in_a_namespace, objects, refuses, refuses_change,
    refuses_status,
};
use serde_json::{Value, json};

use super::{cluster, each_field, task};

fn read(stored: Value) -> ScyllaCluster {
    serde_json::from_value(stored.clone()).unwrap_or_else(|error| panic!("{error}: {stored}"))
}

#[test]
fn every_integer_has_a_format() {
    // The API server validates the range of an integer only if it has a format.
    for definition in DEFINITIONS.iter() {
        each_field(definition, |path, schema| {
            if schema["type"] == "integer" {
                let format = &schema["format"];
                assert!(*format == "int32" || *format == "int64", "{} {path}: {schema}", definition.spec.names.kind);
            }
        });
    }
}

#[tokio::test]
async fn integer_beyond_its_format_is_refused() {
    in_a_namespace("widths", async |client, namespace| {
        let most = cluster("most", "{minReadySeconds: 2147483647, repairs: [{parallel: 9223372036854775807}]}");
        let most = read(accepts(client, namespace, &most).await);
        assert_eq!(most.spec.min_ready_seconds, Some(i32::MAX));
        assert_eq!(most.spec.repairs.unwrap()[0].parallel, Some(i64::MAX));
        let least = read(accepts(client, namespace, &cluster("least", "{minReadySeconds: -2147483648}")).await);
        assert_eq!(least.spec.min_ready_seconds, Some(i32::MIN));

        let words = "must be of type integer with format int32 in spec.minReadySeconds";
        for beyond in ["5000000000", "2147483648", "-2147483649"] {
            let yaml = cluster("beyond", &format!("{{minReadySeconds: {beyond}}}"));
            refuses(client, namespace, &yaml, words).await;
            refuses_change(client, namespace, &cluster("most", &format!("{{minReadySeconds: {beyond}}}")), words).await;
        }
        let words = "must be of type integer with format int64 in spec.repairs[0].parallel";
        refuses(client, namespace, &cluster("beyond", "{repairs: [{parallel: 9223372036854775808}]}"), words).await;

        let status = |members: &str| cluster("most", &format!("{{}}, status: {{members: {members}}}"));
        accepts_status(client, namespace, &status("2147483647")).await;
        let words = "status: Invalid value: \"\": Checked value must be of type integer with format int32 in members";
        refuses_status(client, namespace, &status("2147483648"), words).await;
    })
    .await;
}

#[tokio::test]
async fn fraction_is_refused_as_integer_unless_it_is_whole() {
    in_a_namespace("fractions", async |client, namespace| {
        let words = r#"spec.minReadySeconds in body must be of type int32: "float64""#;
        refuses(client, namespace, &cluster("fraction", "{minReadySeconds: 3.5}"), words).await;

        let whole = cluster("whole", "{minReadySeconds: 3.0, repairs: [{parallel: 1e3}], alternator: {port: 8000.0}}");
        assert!(objects(&whole)[0]["spec"]["minReadySeconds"].is_f64(), "it is not sent as 3.0");
        let stored = accepts(client, namespace, &whole).await;
        assert_eq!(stored["spec"]["minReadySeconds"], json!(3), "it is not stored as 3");
        let whole = read(stored);
        assert_eq!(whole.spec.min_ready_seconds, Some(3));
        assert_eq!(whole.spec.repairs.unwrap()[0].parallel, Some(1000));
        assert_eq!(whole.spec.alternator.unwrap().port, Some(8000));

        // The field of the scale subresource is the exception.
        let words = ".spec.replicas accessor error: 3 is of the type float64, expected int64";
        refuses(client, namespace, &cluster("scale", "{replicas: 3.0}"), words).await;
    })
    .await;
}

#[tokio::test]
async fn numbers_of_a_task_are_stored_and_compared_exactly() {
    in_a_namespace("options", async |client, namespace| {
        let sent = "{type: T, ttlSecondsAfterFinished: 3.0, config: {a: 3.0, b: [1e2], c: 0.1, d: 9007199254740993}}";
        let stored = accepts(client, namespace, &task("task", sent)).await;
        let config = json!({"a": 3, "b": [100], "c": 0.1, "d": 9_007_199_254_740_993_i64});
        assert_eq!(stored["spec"]["config"], config);
        let read: EtcdOperatorTask = serde_json::from_value(stored).unwrap();
        assert_eq!(read.spec.ttl_seconds_after_finished, Some(3));
        assert_eq!(read.spec.config, Some(config));

        // What our type writes of it is the same task; a number that is the same only as a float is another one.
        let again = serde_json::to_value(&read.spec).unwrap().to_string();
        accepts_change(client, namespace, &task("task", &again)).await;
        let other = again.replace("9007199254740993", "9007199254740992");
        assert_ne!(other, again);
        refuses_change(client, namespace, &task("task", &other), "spec is immutable").await;
    })
    .await;
}
