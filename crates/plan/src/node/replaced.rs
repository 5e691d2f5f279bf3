//! Start of a node that is being replaced.
//!
//! As soon as the operator has written that a node is replaced, its disk may be deleted. So the node does not start,
//! unless the replacement is cancelled: else it would accept writes and lose them, or block its replacement.

use std::collections::BTreeMap;

use messina_api::names::{annotation::REPLACING_CLAIM, label::REPLACING_NODE_HOST_ID};

/// Whether the node that is about to start is being replaced, according to its Service.
///
/// `on_disk` is the host ID on its disk, if that is known. If not, the UID of the pod decides: the pod that existed
/// when the replacement began belongs to the replaced node, any later one to the replacement.
pub fn is_being_replaced(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    on_disk: Option<&str>,
    pod_uid: Option<&str>,
) -> bool {
    let Some(replaced) = labels.get(REPLACING_NODE_HOST_ID).filter(|host_id| !host_id.is_empty()) else { return false };
    if let Some(on_disk) = on_disk {
        return on_disk == replaced;
    }
    let pod = annotations.get(REPLACING_CLAIM).and_then(|own| own.split_once('/')).map(|(_, pod)| pod);
    pod.is_some_and(|pod| !pod.is_empty() && Some(pod) == pod_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_node_does_not_start_and_its_replacement_does() {
        let label = |host_id: &str| BTreeMap::from([(REPLACING_NODE_HOST_ID.to_owned(), host_id.to_owned())]);
        let own = |own: &str| BTreeMap::from([(REPLACING_CLAIM.to_owned(), own.to_owned())]);
        let cases = [
            (label("lost"), own("claim/pod"), Some("lost"), Some("pod"), true, "it came back"),
            (label("lost"), own("claim/pod"), Some("lost"), Some("another"), true, "it came back in another pod"),
            (label("lost"), BTreeMap::new(), Some("lost"), None, true, "its disk tells"),
            (label("lost"), own("claim/pod"), None, Some("pod"), true, "its pod tells"),
            (label("lost"), own("claim/pod"), None, Some("another"), false, "an empty disk in another pod"),
            (label("lost"), own("claim/pod"), Some("new"), Some("another"), false, "the successor starts again"),
            (label("lost"), own("claim/"), None, None, false, "there was no pod"),
            (label("lost"), BTreeMap::new(), None, Some("pod"), false, "nothing is known of it"),
            (label(""), own("claim/pod"), None, Some("pod"), false, "the label is empty"),
            (BTreeMap::new(), own("claim/pod"), Some("lost"), Some("pod"), false, "it is withdrawn"),
        ];
        for (labels, annotations, on_disk, pod, expected, why) in cases {
            assert_eq!(is_being_replaced(&labels, &annotations, on_disk, pod), expected, "{why}");
        }
    }
}
