//! The pods of a specification.

use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use messina_plan::{
    datacenter::{validate, validate_allowing},
    node::sysctl::Allowed,
};
use serde_json::{Value, json};

use crate::{cached, datacenter, plan};

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
    let plan = plan(&cached(datacenter(object(annotations, spec))));
    assert_eq!(plan.warnings, [], "nothing is left out");
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
        (r#"["fs.aio-max-nr=1"]"#, false),
        (r#"["net.ipv4.tcp_rmem=4096 87380 16777216"]"#, false),
        (r#"["net.core.somaxconn"]"#, true),
        (r#"["kernel.core_pattern=|/bin/evil"]"#, true),
        (r#"["net/../kernel/core_pattern=|/bin/evil"]"#, true),
        (r#"["net.//.kernel.core_pattern=|/bin/evil"]"#, true),
        (r#"["../../etc/passwd=x"]"#, true),
        (r#"["/etc/passwd=x"]"#, true),
        (r#"["net.a b=1"]"#, true),
        ("fs.aio-max-nr=1", true),
    ] {
        let object: ScyllaDBDatacenter = serde_json::from_value(object(json!({SYSCTLS: text}), json!({}))).unwrap();
        let fields: Vec<String> = validate(&object).err().into_iter().flatten().map(|fault| fault.field).collect();
        let expected: &[String] = if is_fault { &[format!("metadata.annotations[{SYSCTLS}]")] } else { &[] };
        assert_eq!(fields, expected, "{text}");
    }
}

/// Both are checked: here, and in the privileged container.
#[test]
fn kernel_settings_that_the_operator_allows_are_allowed_in_the_container() {
    let command = |settings: Value, allowed: &[&str]| {
        let object = serde_json::from_value(object(json!({SYSCTLS: settings.to_string()}), json!({}))).unwrap();
        let allowed = Allowed::with(allowed.iter().map(|pattern| pattern.parse().unwrap()));
        let datacenter = validate_allowing(&object, &allowed).map_err(|faults| faults[0].message.clone())?;
        let pod = plan(&cached(datacenter)).objects.stateful_sets[0].spec.clone().unwrap().template.spec.unwrap();
        Ok(pod.init_containers.unwrap()[1].command.clone().unwrap()[2..].to_vec())
    };
    let numa = json!(["kernel.numa_balancing=0", "fs.aio-max-nr=1"]);
    let refused: Result<Vec<String>, String> = command(numa.clone(), &["kernel.numa"]);
    assert_eq!(
        refused.unwrap_err(),
        "\"kernel.numa_balancing=0\" is not allowed, because it affects all pods of a Kubernetes node: remove it, or allow \
         it with the operator's flag --allowed-sysctls. Allowed settings: fs.aio-max-nr, net.*, vm.*, kernel.numa"
    );
    let both = ["fs.*", "kernel.numa_balancing"];
    let expected = ["--allow=kernel.numa_balancing", "--", "kernel.numa_balancing=0", "fs.aio-max-nr=1"];
    assert_eq!(command(numa, &both).unwrap(), expected);
    // A change of the allowed settings restarts no node that uses none of them.
    assert_eq!(command(json!(["fs.aio-max-nr=1"]), &both).unwrap(), ["--", "fs.aio-max-nr=1"]);
}

#[test]
fn node_has_the_specified_time_to_stop() {
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
