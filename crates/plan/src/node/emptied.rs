//! A node that comes back without its disk.
//!
//! Started like that it would be a new node. Where no other node is up, it would even found a second ring, and take the place
//! of the one that is in the first.

use std::collections::BTreeMap;

use messina_api::names::{
    annotation::{HOST_ID, NODE_JOINED},
    label::{REPLACING_NODE_HOST_ID, value::TRUE},
};

/// Host ID of the node whose disk it should be, where a node is about to start on an empty one. A new node may, and one that
/// takes the place of another.
pub fn lacks_disk_of<'a>(
    labels: &BTreeMap<String, String>,
    annotations: &'a BTreeMap<String, String>,
    is_empty: bool,
) -> Option<&'a str> {
    let has_joined = annotations.get(NODE_JOINED).is_some_and(|joined| joined == TRUE);
    let replaces = labels.get(REPLACING_NODE_HOST_ID).is_some_and(|host_id| !host_id.is_empty());
    let host_id = annotations.get(HOST_ID).filter(|_| is_empty && has_joined && !replaces)?;
    Some(host_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_new_node_or_a_replacement_starts_on_an_empty_disk() {
        let service = |joined: &str| {
            BTreeMap::from([(HOST_ID.to_owned(), "a".to_owned()), (NODE_JOINED.to_owned(), joined.to_owned())])
        };
        let replacing = BTreeMap::from([(REPLACING_NODE_HOST_ID.to_owned(), "a".to_owned())]);
        let none = BTreeMap::new();
        for (labels, annotations, is_empty, expected, why) in [
            (&none, service("true"), true, Some("a"), "it has lost its disk"),
            (&none, service("true"), false, None, "it comes back"),
            (&none, service("false"), true, None, "it had not joined"),
            (&none, BTreeMap::new(), true, None, "it is new"),
            (&replacing, service("true"), true, None, "it takes the place of the one that had joined"),
        ] {
            assert_eq!(lacks_disk_of(labels, &annotations, is_empty), expected, "{why}");
        }
    }
}
