//! What to do when something is wrong.

use messina_text::is_uuid;
use serde::Serialize;

use super::{Cluster, Node, Rack};
use crate::status::pods::is_container;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Next {
    /// In a sentence.
    pub text: String,
    /// The command for it, if there is one.
    pub command: Option<String>,
}

pub(super) fn next(cluster: &Cluster) -> Vec<Next> {
    let mut next = Vec::new();
    let say = |text: String| Next { text, command: None };
    if cluster.refused {
        next.push(say("Correct the specification: the operator refuses it, and changes nothing before.".into()));
    }
    if !cluster.observed {
        next.push(say("The operator has not seen the latest change yet: see that it runs, and read its log.".into()));
    }
    let nodes: Vec<&Node> = cluster.racks.iter().flat_map(|rack: &Rack| &rack.nodes).collect();
    next.extend(nodes.iter().filter_map(|node| for_node(&cluster.namespace, node)));
    if nodes.iter().any(|node| !node.dissent().is_empty()) {
        let text =
            "Nodes that disagree usually agree within a minute. If they do not, look at the network between them.";
        next.push(say(text.into()));
    }
    next
}

fn for_node(namespace: &str, node: &Node) -> Option<Next> {
    let (Some(pod), Some(kubernetes)) = (&node.pod, &node.kubernetes) else {
        let host_id = node.host_id.as_ref().filter(|host_id| node.is_down() && is_uuid(host_id))?;
        let text = format!(
            "{} is in the ring, is down and has no pod. Only if it never comes back, remove it on another node:",
            node.name()
        );
        return Some(Next { text, command: Some(format!("nodetool removenode {host_id}")) });
    };
    let container = kubernetes.container.as_deref().filter(|name| is_container(name)).unwrap_or("scylla");
    let (text, command) = if kubernetes.is_stuck() && kubernetes.restarts == 0 {
        (format!("See what keeps {pod} from starting:"), format!("describe pod {pod}"))
    } else if !kubernetes.ready && kubernetes.restarts > 0 {
        (format!("See why {pod} does not keep running:"), format!("logs {pod} -c {container} --previous"))
    } else if node.is_down() && kubernetes.ready {
        (format!("{pod} is ready, and yet others see it down. Read what it says:"), format!("logs {pod} -c scylla"))
    } else if node.is_down() {
        (format!("See what {pod} does:"), format!("logs {pod} -c scylla"))
    } else {
        return None;
    };
    Some(Next { text, command: Some(format!("kubectl -n {namespace} {command}")) })
}
