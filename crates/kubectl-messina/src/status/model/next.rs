//! What the user can do about a cluster that is not healthy.

use messina_text::is_uuid;
use serde::Serialize;

use super::{Cluster, Node, Rack};
use crate::status::pods::is_container;

/// A step that the user can take.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NextStep {
    /// The step in a sentence.
    pub text: String,
    /// The command for it, if there is one.
    pub command: Option<String>,
}

pub(super) fn next_steps(cluster: &Cluster) -> Vec<NextStep> {
    let mut next = Vec::new();
    let step = |text: String| NextStep { text, command: None };
    if cluster.refused {
        next.push(step("Correct the specification: the operator refuses it, and changes nothing until then.".into()));
    }
    if !cluster.observed {
        next.push(step(
            "The operator has not observed the latest change yet: check that it runs, and read its log.".into(),
        ));
    }
    let nodes: Vec<&Node> = cluster.racks.iter().flat_map(|rack: &Rack| &rack.nodes).collect();
    next.extend(nodes.iter().filter_map(|node| for_node(&cluster.namespace, node)));
    if nodes.iter().any(|node| !node.other_views().is_empty()) {
        let text = "Nodes that disagree usually agree within a minute. If they do not, check the network between them.";
        next.push(step(text.into()));
    }
    next
}

fn for_node(namespace: &str, node: &Node) -> Option<NextStep> {
    let (Some(pod), Some(kubernetes)) = (&node.pod, &node.kubernetes) else {
        let host_id = node.host_id.as_ref().filter(|host_id| node.is_down() && is_uuid(host_id))?;
        let text = format!(
            "{} is in the ring, is down and has no pod. If it never comes back, and only then, run on another node:",
            node.name()
        );
        return Some(NextStep { text, command: Some(format!("nodetool removenode {host_id}")) });
    };
    let container = kubernetes.container.as_deref().filter(|name| is_container(name)).unwrap_or("scylla");
    let (text, command) = if kubernetes.is_stuck() && kubernetes.restarts == 0 {
        (format!("See why {pod} does not start:"), format!("describe pod {pod}"))
    } else if !kubernetes.ready && kubernetes.restarts > 0 {
        (format!("See why {pod} restarts:"), format!("logs {pod} -c {container} --previous"))
    } else if node.is_down() && kubernetes.ready {
        (format!("{pod} is ready, but other nodes see it as down. Read its log:"), format!("logs {pod} -c scylla"))
    } else if node.is_down() {
        (format!("Read the log of {pod}:"), format!("logs {pod} -c scylla"))
    } else {
        return None;
    };
    Some(NextStep { text, command: Some(format!("kubectl -n {namespace} {command}")) })
}
