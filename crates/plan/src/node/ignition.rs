//! Whether ScyllaDB may start in its container.

use k8s_openapi::api::core::v1::{Pod, Service};
use messina_api::{
    names::{
        annotation::FORCE_IGNITION_VALUE,
        label::value::{FALSE, TRUE},
    },
    scylla::v1alpha1::BroadcastAddressType,
};

use super::address::broadcast_address;
use crate::metadata;

/// The container that ScyllaDB runs in.
pub const SCYLLA_CONTAINER: &str = "scylla";

/// Whether ScyllaDB may start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ignition {
    /// It may start, in the container of this ID. The ID is empty if the annotation forces the start before the
    /// container has one.
    Start {
        /// ID of the container, as the container runtime gave it.
        container_id: String,
    },
    /// It must wait, for this reason.
    Wait(String),
}

/// Returns whether ScyllaDB may start, for a node whose broadcast addresses are of these types.
pub fn ignition(
    pod: Option<&Pod>,
    service: Option<&Service>,
    nodes: &BroadcastAddressType,
    clients: &BroadcastAddressType,
) -> Ignition {
    let Some(service) = service else {
        return Ignition::Wait("the Service of this node does not exist yet".to_owned());
    };
    let Some(pod) = pod else { return Ignition::Wait("the Pod of this node does not exist".to_owned()) };
    let container_id = container_id(pod);
    match metadata::annotation(service, FORCE_IGNITION_VALUE) {
        Some(TRUE) => return Ignition::Start { container_id: container_id.unwrap_or_default() },
        Some(FALSE) => {
            return Ignition::Wait(format!("the annotation {FORCE_IGNITION_VALUE} of the Service is \"false\""));
        }
        // Other values are ignored.
        _ => {}
    }
    if pod.status.as_ref().and_then(|status| status.pod_ip.as_deref()).unwrap_or_default().is_empty() {
        return Ignition::Wait("the Pod has no IP address yet".to_owned());
    }
    for address_type in [nodes, clients] {
        if let Err(error) = broadcast_address(address_type, service, pod, None) {
            return Ignition::Wait(error.to_string());
        }
    }
    match container_id {
        Some(container_id) => Ignition::Start { container_id },
        None => Ignition::Wait(format!("the container {SCYLLA_CONTAINER:?} has no ID yet")),
    }
}

fn container_id(pod: &Pod) -> Option<String> {
    let containers = pod.status.as_ref()?.container_statuses.as_deref()?;
    let scylla = containers.iter().find(|container| container.name == SCYLLA_CONTAINER)?;
    scylla.container_id.clone().filter(|id| !id.is_empty())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn answer(pod: &Value, service: &Value, nodes: &BroadcastAddressType) -> Ignition {
        let pod: Pod = serde_json::from_value(pod.clone()).unwrap();
        let service: Service = serde_json::from_value(service.clone()).unwrap();
        ignition(Some(&pod), Some(&service), nodes, &BroadcastAddressType::PodIP)
    }

    fn waits_for(answer: &Ignition, words: &str) -> bool {
        matches!(answer, Ignition::Wait(reason) if reason.contains(words))
    }

    #[test]
    fn ignition_waits_for_everything_that_is_missing() {
        use BroadcastAddressType::{PodIP, ServiceLoadBalancerIngress};
        let mut pod = json!({"metadata": {"name": "n"}});
        let mut service = json!({"metadata": {"name": "n"}});
        assert!(waits_for(&ignition(None, None, &PodIP, &PodIP), "Service"));
        assert!(waits_for(&answer(&pod, &service, &PodIP), "IP address"));
        pod["status"] = json!({"podIP": "10.0.0.1", "containerStatuses": [
            {"name": "other", "containerID": "cri://1", "image": "", "imageID": "", "ready": true, "restartCount": 0},
            {"name": "scylla", "image": "", "imageID": "", "ready": false, "restartCount": 0},
        ]});
        assert!(waits_for(&answer(&pod, &service, &PodIP), "container"));
        pod["status"]["containerStatuses"][1]["containerID"] = json!("cri://2");
        let started = Ignition::Start { container_id: "cri://2".to_owned() };
        assert_eq!(answer(&pod, &service, &PodIP), started);
        assert!(waits_for(&answer(&pod, &service, &ServiceLoadBalancerIngress), "load balancer"));
        service["status"] = json!({"loadBalancer": {"ingress": [{"hostname": "node.example.org"}]}});
        assert_eq!(answer(&pod, &service, &ServiceLoadBalancerIngress), started);
    }

    #[test]
    fn annotation_forces_or_prevents_the_start() {
        let forced = |value: &str| json!({"metadata": {"name": "n", "annotations": {FORCE_IGNITION_VALUE: value}}});
        let bare = json!({"metadata": {"name": "n"}});
        let pod_ip = &BroadcastAddressType::PodIP;
        assert_eq!(answer(&bare, &forced("true"), pod_ip), Ignition::Start { container_id: String::new() });
        assert!(waits_for(&answer(&bare, &forced("false"), pod_ip), FORCE_IGNITION_VALUE));
        assert!(waits_for(&answer(&bare, &forced("perhaps"), pod_ip), "IP address"));
    }
}
