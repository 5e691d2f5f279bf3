//! What pods get of what the specification asks for.

use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use messina_plan::datacenter::validate;
use serde_json::{Value, json};

use crate::{datacenter, observed, plan};

const SYSCTLS: &str = "internal.scylla-operator.scylladb.com/sysctls";

fn object(annotations: Value, spec: Value) -> Value {
    let mut object = json!({
        "metadata": {"name": "orders", "namespace": "shop", "uid": "the-uid", "generation": 1, "annotations": annotations},
        "spec": {
            "clusterName": "orders", "scyllaDB": {"image": "scylladb/scylla:2026.2.4"},
            "scyllaDBManagerAgent": {"image": "agent:3.12.0"},
            "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
        },
    });
    crate::compare::merge(&mut object["spec"], &spec);
    object
}

fn pod(annotations: Value, spec: Value) -> Value {
    let plan = plan(&observed(datacenter(object(annotations, spec))));
    assert_eq!(plan.ignored, [], "nothing is left out");
    json!(plan.objects.stateful_sets[0].spec.as_ref().unwrap().template.spec)
}

#[test]
fn kernel_settings_are_set_before_scylladb_starts() {
    let settings = json!(["fs.aio-max-nr=30000000", "net.core.somaxconn=4096"]).to_string();
    let pod = pod(json!({SYSCTLS: settings}), json!({}));
    let names: Vec<&str> =
        pod["initContainers"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["sidecar-injection", "sysctl-buddy"]);
    let container = &pod["initContainers"][1];
    let command = json!(["/usr/bin/messina", "sysctl", "--", "fs.aio-max-nr=30000000", "net.core.somaxconn=4096"]);
    assert_eq!((&container["command"], &container["securityContext"]), (&command, &json!({"privileged": true})));
}

#[test]
fn what_is_no_kernel_setting_is_a_fault() {
    for (text, is_fault) in [
        (r#"["a.b=1"]"#, false),
        (r#"["net.ipv4.tcp_rmem=4096 87380 16777216"]"#, false),
        (r#"["a.b"]"#, true),
        (r#"["../../etc/passwd=x"]"#, true),
        (r#"["/etc/passwd=x"]"#, true),
        (r#"["a b=1"]"#, true),
        ("a.b=1", true),
    ] {
        let object: ScyllaDBDatacenter = serde_json::from_value(object(json!({SYSCTLS: text}), json!({}))).unwrap();
        let fields: Vec<String> = validate(&object).err().into_iter().flatten().map(|fault| fault.field).collect();
        let expected: &[String] = if is_fault { &[format!("metadata.annotations[{SYSCTLS}]")] } else { &[] };
        assert_eq!(fields, expected, "{text}");
    }
}

#[test]
fn a_node_that_is_stopped_has_the_time_that_it_is_given() {
    let argument = |pod: &Value| {
        let words = pod["containers"][0]["command"].as_array().unwrap().clone();
        let mut words = words.into_iter().filter_map(|word| word.as_str().map(str::to_owned));
        words.find(|word| word.starts_with("--serve-seconds-before-stop"))
    };
    let usual = pod(json!({}), json!({}));
    assert_eq!((argument(&usual), &usual["terminationGracePeriodSeconds"]), (None, &json!(900)));
    let longer = pod(json!({}), json!({"minTerminationGracePeriodSeconds": 60}));
    assert_eq!(argument(&longer).as_deref(), Some("--serve-seconds-before-stop=60"));
    assert_eq!(longer["terminationGracePeriodSeconds"], 960, "draining still has as long as before");
}

#[test]
fn nodes_with_headless_services_announce_the_address_of_their_pods() {
    let types = |spec: Value| -> Vec<String> {
        let pod = pod(json!({}), spec);
        let words = pod["containers"][0]["command"].as_array().unwrap().clone();
        let words = words.iter().filter_map(|word| word.as_str()?.split_once("-broadcast-address-type="));
        words.map(|(_, address)| address.to_owned()).collect()
    };
    assert_eq!(types(json!({})), ["ServiceClusterIP"; 2]);
    assert_eq!(types(json!({"exposeOptions": {"nodeService": {"type": "Headless"}}})), ["PodIP"; 2]);
    assert_eq!(types(json!({"exposeOptions": {"nodeService": {"type": "LoadBalancer"}}})), ["ServiceClusterIP"; 2]);
}
