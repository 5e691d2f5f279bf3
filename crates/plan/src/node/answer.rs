//! What a node says of the ring when it is asked on its Service.
//!
//! An answer repeats the question, and no question is asked twice. So it is certain that what is answered was seen after
//! the question was asked, whatever the clocks say.

use std::collections::BTreeMap;

use messina_api::names::annotation::{RING_ANSWER, RING_QUESTION};
use serde::{Deserialize, Serialize};

use super::ring::View;

/// State of a node that is alive and in the ring, in the words of `nodetool status`.
pub const UP: &str = "UN";
/// State of a node that is in the ring and not alive.
pub const DOWN: &str = "DN";

/// The ring as one node sees it.
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
    /// The nodes of the ring, and those on their way in or out: states as `nodetool status` prints them, by host ID. A
    /// node that has no host ID yet goes by its address.
    pub nodes: BTreeMap<String, String>,
}

impl RingAnswer {
    /// What a node that sees this answers from its pod.
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

    /// What was written on a Service; what cannot be read is no answer.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// What to write on a Service.
    pub fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

/// The question that a Service with these annotations asks.
pub fn question(annotations: &BTreeMap<String, String>) -> Option<&str> {
    annotations.get(RING_QUESTION).map(String::as_str)
}

/// What to write in place of the answer that is there, if anything: an answer, or none where nobody asks any more.
/// `answer` is none when the node cannot tell now; what it has told stays then.
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
    fn all_nodes_are_told_also_those_that_join() {
        let answer = RingAnswer::new("7", "a", Some("pod"), &view());
        let expected = [("10.0.0.3", "UJ"), ("a", UP), ("b", DOWN)];
        assert_eq!(answer.nodes, annotations(&expected));
        assert_eq!(RingAnswer::parse(&answer.text()), Some(answer));
        assert_eq!(RingAnswer::parse("yes"), None);
    }

    /// Sidecars of earlier versions name no pod.
    #[test]
    fn an_answer_without_a_pod_is_read() {
        let answer = RingAnswer::new("7", "a", None, &View::default());
        assert_eq!(answer.text(), r#"{"asked":"7","hostID":"a","nodes":{}}"#);
        assert_eq!(RingAnswer::parse(&answer.text()), Some(answer));
    }

    #[test]
    fn answers_are_written_as_long_as_somebody_asks() {
        let answer = RingAnswer::new("7", "a", Some("pod"), &view());
        let text = answer.text();
        let cases = [
            (annotations(&[]), Some(&answer), None, "nobody asks"),
            (annotations(&[(RING_QUESTION, "7")]), Some(&answer), Some(Some(text.clone())), "it is new"),
            (annotations(&[(RING_QUESTION, "7"), (RING_ANSWER, &text)]), Some(&answer), None, "it is said"),
            (annotations(&[(RING_QUESTION, "8"), (RING_ANSWER, &text)]), Some(&answer), None, "another question"),
            (annotations(&[(RING_QUESTION, "7"), (RING_ANSWER, "x")]), None, None, "it cannot tell now"),
            (annotations(&[(RING_ANSWER, &text)]), None, Some(None), "nobody asks any more"),
        ];
        for (annotations, answer, expected, why) in cases {
            assert_eq!(change(&annotations, answer), expected, "{why}");
        }
    }
}
