//! The state of the ring, which a sidecar reports when the operator asks for it by an annotation on the Service.
//!
//! An answer repeats the question, and no question is asked twice. So the reported state is newer than the question,
//! regardless of clocks.

use std::collections::BTreeMap;

use messina_api::names::annotation::{RING_ANSWER, RING_QUESTION};
use serde::{Deserialize, Serialize};

use super::ring::View;

/// State of a node that is up and in the ring, as `nodetool status` prints it.
pub const UP: &str = "UN";
/// State of a node that is down and in the ring.
pub const DOWN: &str = "DN";

/// The state of the ring as one node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RingAnswer {
    /// The question.
    pub asked: String,
    /// Host ID of the node that answers.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// UID of its pod. Sidecars of earlier versions do not write it.
    #[serde(rename = "podUID", default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The nodes that are in the ring, joining or leaving: states as `nodetool status` prints them, by host ID. A node
    /// without a host ID is listed by its address.
    pub nodes: BTreeMap<String, String>,
}

impl RingAnswer {
    /// Returns the answer of a node with this view.
    pub fn new(asked: &str, host_id: &str, pod_uid: Option<&str>, view: &View) -> Self {
        let node = |address: &str| {
            let name = view.host_ids.get(address).map_or(address, String::as_str);
            (name.to_owned(), view.state(address))
        };
        Self {
            asked: asked.to_owned(),
            host_id: host_id.to_owned(),
            pod_uid: pod_uid.map(ToOwned::to_owned),
            nodes: view.addresses().into_iter().map(node).collect(),
        }
    }

    /// Parses the annotation of a Service; none if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the value of the annotation.
    pub fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

/// Returns the question in the annotations of a Service.
pub fn question(annotations: &BTreeMap<String, String>) -> Option<&str> {
    annotations.get(RING_QUESTION).map(String::as_str)
}

/// Returns how to change the annotation with the answer, if it has to change: to a new value, or to none when there is
/// no question any more. `answer` is none when the node cannot report the ring now; then the former answer stays.
pub fn change(annotations: &BTreeMap<String, String>, answer: Option<&RingAnswer>) -> Option<Option<String>> {
    let written = annotations.get(RING_ANSWER);
    match (question(annotations), answer) {
        (None, _) => written.map(|_| None),
        (Some(asked), Some(answer)) if answer.asked == asked => {
            let text = answer.text();
            (written != Some(&text)).then_some(Some(text))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        View {
            host_ids: [("10.0.0.1", "a"), ("10.0.0.2", "b")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
            live: ["10.0.0.1".to_owned(), "10.0.0.3".to_owned()].into(),
            down: ["10.0.0.2".to_owned()].into(),
            joining: ["10.0.0.3".to_owned()].into(),
            ..View::default()
        }
    }

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn answer_lists_all_nodes_including_joining_ones() {
        let answer = RingAnswer::new("7", "a", Some("pod"), &view());
        let expected = [("10.0.0.3", "UJ"), ("a", UP), ("b", DOWN)];
        assert_eq!(answer.nodes, annotations(&expected));
        assert_eq!(RingAnswer::parse(&answer.text()), Some(answer));
        assert_eq!(RingAnswer::parse("yes"), None);
    }

    /// Sidecars of earlier versions name no pod.
    #[test]
    fn answer_without_pod_is_parsed() {
        let answer = RingAnswer::new("7", "a", None, &View::default());
        assert_eq!(answer.text(), r#"{"asked":"7","hostID":"a","nodes":{}}"#);
        assert_eq!(RingAnswer::parse(&answer.text()), Some(answer));
    }

    #[test]
    fn answer_is_written_while_there_is_a_question() {
        let answer = RingAnswer::new("7", "a", Some("pod"), &view());
        let text = answer.text();
        let cases = [
            (annotations(&[]), Some(&answer), None, "there is no question"),
            (annotations(&[(RING_QUESTION, "7")]), Some(&answer), Some(Some(text.clone())), "it is new"),
            (annotations(&[(RING_QUESTION, "7"), (RING_ANSWER, &text)]), Some(&answer), None, "it is said"),
            (annotations(&[(RING_QUESTION, "8"), (RING_ANSWER, &text)]), Some(&answer), None, "another question"),
            (annotations(&[(RING_QUESTION, "7"), (RING_ANSWER, "x")]), None, None, "it cannot tell now"),
            (annotations(&[(RING_ANSWER, &text)]), None, Some(None), "there is no question any more"),
        ];
        for (annotations, answer, expected, why) in cases {
            assert_eq!(change(&annotations, answer), expected, "{why}");
        }
    }
}
