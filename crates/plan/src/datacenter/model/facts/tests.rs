#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use messina_api::{
    names::{annotation, label},
    scylla::v1alpha1::NodeStatus,
};
use serde_json::{Value, json};

use super::{claim::Claim, pod::*, *};
use crate::{
    datacenter::cached::{trim_claim, trim_class, trim_pod},
    node::address::PodAddresses,
};

/// A complete pod. Each property has a value that no other field has.
fn whole_pod() -> Value {
    json!({
        "metadata": {
            "name": "orders-dc-a-0", "namespace": "shop", "uid": "uid-of-pod", "resourceVersion": "7",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "creationTimestamp": "2025-01-01T00:00:00Z",
            "labels": {"controller-revision-hash": "revision", (label::SCYLLA_VERSION): "2026.2.4", "app": "scylla"},
            "annotations": {
                (annotation::INPUTS_HASH): "hash",
                "kubectl.kubernetes.io/restartedAt": "yesterday",
                (annotation::NODE_STATUS_REPORT):
                    json!({"observedNodes": [{"hostID": "a", "status": "UP"}], "error": "none of them"}).to_string(),
            },
            "managedFields": [{"manager": "kubelet", "operation": "Update"}],
        },
        "spec": {
            "nodeName": "node-1",
            "initContainers": [{"name": "scylladb-bootstrap-barrier", "image": "barrier:1"}],
            "containers": [
                {"name": "agent", "image": "agent:3.12.0"},
                {"name": "scylla", "image": "scylladb/scylla:2026.2.5", "args": ["--smp=1"]},
            ],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-orders-dc-a-0"}}],
        },
        "status": {
            "phase": "Pending", "hostIP": "192.0.2.1", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "conditions": [
                {"type": "Initialized", "status": "False", "message": "x"},
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"},
            ],
            "initContainerStatuses": [
                {"name": "sidecar-injection", "ready": true, "restartCount": 0, "image": "", "imageID": "",
                    "state": {"terminated": {"exitCode": 0}}},
                {"name": "scylladb-bootstrap-barrier", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                    "state": {"running": {"startedAt": "2025-01-01T00:00:00Z"}}},
            ],
            "containerStatuses": [
                {"name": "agent", "ready": false, "restartCount": 0, "image": "", "imageID": "",
                    "state": {"waiting": {"reason": "PodInitializing"}}},
                {"name": "scylla", "ready": false, "restartCount": 9, "image": "", "imageID": "",
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "x"}}},
            ],
        },
    })
}

fn trimmed<K: Clone>(object: &K, trim: fn(&mut K)) -> K {
    let mut trimmed = object.clone();
    trim(&mut trimmed);
    trimmed
}

fn pod(object: Value) -> NodePod {
    let pod: Pod = serde_json::from_value(object).unwrap();
    let facts = NodePod::of(&pod);
    assert_eq!(
        NodePod::of(&trimmed(&pod, trim_pod)),
        facts,
        "a property is read from a field that caches trim: {pod:?}"
    );
    facts
}

#[test]
fn properties_of_a_pod_survive_trimming() {
    let whole = whole_pod();
    let facts = pod(whole.clone());
    let report = facts.status_report.clone().unwrap();
    assert_eq!((report.status("a"), report.error.as_deref()), (Some(&NodeStatus::Up), Some("none of them")));
    let text = |text: &str| Some(text.to_owned());
    let expected = NodePod {
        reference: ObjectReference { name: "orders-dc-a-0".into(), uid: text("uid-of-pod"), version: text("7") },
        is_being_deleted: true,
        ready: Some(true),
        is_unschedulable: true,
        is_at_barrier: true,
        waiting: text("CrashLoopBackOff"),
        revision: text("revision"),
        version: text("2026.2.4"),
        image: text("scylladb/scylla:2026.2.5"),
        addresses: PodAddresses { ip: text("10.0.0.1"), ips: vec!["10.0.0.1".into(), "fd00::1".into()] },
        inputs_hash: text("hash"),
        restarted_at: text("yesterday"),
        status_report: Some(report),
    };
    assert_eq!(facts, expected);
}

/// A missing field is missing in both.
#[test]
fn properties_of_a_pod_with_missing_fields_survive_trimming() {
    let mut paths = Vec::new();
    collect_paths(&whole_pod(), String::new(), &mut paths);
    for path in &paths {
        let mut lacking = whole_pod();
        let (parent, key) = path.rsplit_once('/').unwrap();
        match lacking.pointer_mut(parent).unwrap() {
            Value::Object(object) => _ = object.remove(&key.replace("~1", "/")),
            Value::Array(list) => _ = list.remove(key.parse().unwrap()),
            _ => {}
        }
        // Required fields cannot be missing.
        if serde_json::from_value::<Pod>(lacking.clone()).is_ok() {
            pod(lacking);
        }
    }
    assert!(paths.len() > 50, "{}", paths.len());
}

fn collect_paths(value: &Value, path: String, paths: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(object) => object.iter().map(|(key, child)| (key.replace('/', "~1"), child)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(index, child)| (index.to_string(), child)).collect(),
        _ => Vec::new(),
    };
    for (key, child) in children {
        let path = format!("{path}/{key}");
        paths.push(path.clone());
        collect_paths(child, path, paths);
    }
}

#[test]
fn version_of_a_pod_without_label_is_that_of_its_image() {
    let mut whole = whole_pod();
    whole["metadata"]["labels"].as_object_mut().unwrap().remove(label::SCYLLA_VERSION);
    assert_eq!(pod(whole).version.as_deref(), Some("2026.2.5"));
}

#[test]
fn properties_of_a_claim_survive_trimming() {
    let whole = |condition: &str| -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {
                "name": "data-orders-dc-a-0", "uid": "uid-of-claim", "resourceVersion": "8",
                "deletionTimestamp": "2026-01-01T00:00:00Z", "creationTimestamp": "2025-01-01T00:00:00Z",
                "annotations": {
                    (annotation::LEFT_HOST_ID): "left",
                    (annotation::JOINED_HOST_ID): "joined",
                    (annotation::LAST_IMAGE): "image",
                },
            },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "selector": {}, "storageClassName": "local", "volumeName": "disk",
                "dataSource": {"kind": "VolumeSnapshot", "name": "x"}, "resources": {"requests": {"storage": "2Gi"}},
            },
            "status": {
                "phase": "Bound", "capacity": {"storage": "1Gi"},
                "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
                "conditions": [
                    {"type": "Resizing", "status": "True", "message": "x"},
                    {"type": condition, "status": "True", "message": "why"},
                    {"type": "FileSystemResizePending", "status": "True", "message": "wait"},
                ],
            },
        }))
        .unwrap()
    };
    let text = |text: &str| Some(text.to_owned());
    let quantity = |text: &str| Some(k8s_openapi::apimachinery::pkg::api::resource::Quantity(text.into()));
    for condition in ["ControllerResizeError", "NodeResizeError"] {
        let claim = whole(condition);
        let facts = Claim::of(&claim);
        assert_eq!(Claim::of(&trimmed(&claim, trim_claim)), facts, "a property is read from a field that caches trim");
        let expected = Claim {
            reference: ObjectReference {
                name: "data-orders-dc-a-0".into(),
                uid: text("uid-of-claim"),
                version: text("8"),
            },
            is_being_deleted: true,
            created: Some("2025-01-01T00:00:00Z".parse().unwrap()),
            left_host_id: text("left"),
            joined_host_id: text("joined"),
            last_image: text("image"),
            class: text("local"),
            volume: text("disk"),
            phase: text("Bound"),
            requested: quantity("2Gi"),
            capacity: quantity("1Gi"),
            is_infeasible: true,
            resize_error: text("why"),
            file_system_resize_pending: text("wait"),
        };
        assert_eq!(facts, expected);
    }
}

#[test]
fn properties_of_a_storage_class_survive_trimming() {
    for allows_expansion in [true, false] {
        let class: StorageClass = serde_json::from_value(json!({
            "metadata": {"name": "local"}, "provisioner": "x", "parameters": {"type": "ssd"}, "mountOptions": ["noatime"],
            "allowVolumeExpansion": allows_expansion,
        }))
        .unwrap();
        assert_eq!(Class::of(&class), Class { allows_expansion });
        assert_eq!(Class::of(&trimmed(&class, trim_class)), Class { allows_expansion });
    }
}
