//! Start of a node that has lost its disk.
//!
//! On an empty disk it would be a new node. Where no other node is up, it would even start a second ring, under the
//! name of the node that is in the first one.

use std::collections::BTreeMap;

use messina_api::names::{
    annotation::{HOST_ID, START_EMPTY},
    label::REPLACING_NODE_HOST_ID,
};

use super::facts::has_joined;

/// Returns the host ID of the node whose data are missing, if a node must not start on its empty disk. A new node may
/// start on an empty disk, a replacement, and a node whose host ID the user has annotated for that.
pub fn missing_disk_of<'a>(
    labels: &BTreeMap<String, String>,
    annotations: &'a BTreeMap<String, String>,
    is_empty: bool,
) -> Option<&'a str> {
    let replaces = labels.get(REPLACING_NODE_HOST_ID).is_some_and(|host_id| !host_id.is_empty());
    let host_id = annotations.get(HOST_ID).filter(|_| is_empty && has_joined(annotations) && !replaces)?;
    (annotations.get(START_EMPTY) != Some(host_id)).then_some(host_id)
}

#[cfg(test)]
mod tests {
    use messina_api::names::annotation::NODE_JOINED;

    use super::*;

    #[test]
    fn only_new_node_or_replacement_starts_on_empty_disk() {
        let service = |joined: &str| {
            BTreeMap::from([(HOST_ID.to_owned(), "a".to_owned()), (NODE_JOINED.to_owned(), joined.to_owned())])
        };
        let given_up = |host_id: &str| {
            let mut service = service("true");
            service.insert(START_EMPTY.to_owned(), host_id.to_owned());
            service
        };
        let replacing = BTreeMap::from([(REPLACING_NODE_HOST_ID.to_owned(), "a".to_owned())]);
        let none = BTreeMap::new();
        for (labels, annotations, is_empty, expected, why) in [
            (&none, service("true"), true, Some("a"), "it has lost its disk"),
            (&none, service("true"), false, None, "it comes back"),
            (&none, service("false"), true, None, "it had not joined"),
            (&none, BTreeMap::new(), true, None, "it is new"),
            (&none, given_up("a"), true, None, "it is given up"),
            (&none, given_up("b"), true, Some("a"), "another one is given up"),
            (&replacing, service("true"), true, None, "it takes the place of the one that had joined"),
        ] {
            assert_eq!(missing_disk_of(labels, &annotations, is_empty), expected, "{why}");
        }
    }
}
