//! Decommission of a node, as its sidecar carries it out.
//!
//! The sidecar decommissions the node only if the request has its host ID: a label that is left over, or that a user
//! has set, is not a request. Before it begins, it writes so on the Service, in a write that fails if the operator has
//! withdrawn the request meanwhile. So either the request is withdrawn or the decommission begins, and both sides know
//! which.

use std::collections::BTreeMap;

use messina_api::names::{
    annotation::{LEAVING_BEGAN, LEAVING_HOST_ID, LEAVING_REFUSED},
    label::{DECOMMISSIONED, value::FALSE},
};
use serde::{Deserialize, Serialize};

use super::Mode;

/// The next step of the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecommissionStep {
    /// There is no request, or the decommission is complete and confirmed.
    Nothing,
    /// Write on the Service that the decommission begins.
    Announce,
    /// Start the decommission.
    Start,
    /// Wait: the decommission cannot start yet, or is in progress.
    Wait,
    /// Confirm on the Service that the node has left the ring.
    Confirm,
    /// Restart ScyllaDB, because a drained node cannot be decommissioned.
    Restart,
}

/// The decommission request on the Service of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecommissionRequest<'a> {
    /// The label [`DECOMMISSIONED`].
    pub label: Option<&'a str>,
    /// The host ID of the node to decommission.
    pub leaving: Option<&'a str>,
    /// The host ID of the node whose decommission has begun.
    pub began: Option<&'a str>,
}

impl<'a> DecommissionRequest<'a> {
    /// Reads the labels and annotations of a Service.
    pub fn of(labels: &'a BTreeMap<String, String>, annotations: &'a BTreeMap<String, String>) -> Self {
        Self {
            label: labels.get(DECOMMISSIONED).map(String::as_str),
            leaving: annotations.get(LEAVING_HOST_ID).map(String::as_str),
            began: annotations.get(LEAVING_BEGAN).map(String::as_str),
        }
    }

    /// Whether the request is for the node with this host ID, and is not confirmed yet.
    pub fn names(&self, host_id: &str) -> bool {
        self.label == Some(FALSE) && self.leaving == Some(host_id)
    }
}

/// How many characters of ScyllaDB's message are reported.
const MAX_MESSAGE: usize = 1000;

/// ScyllaDB refused to decommission a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Host ID of the node.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// ScyllaDB's message.
    pub why: String,
    /// Whether the operator may request it again, because the sidecar's back-off is over.
    #[serde(default)]
    pub retry: bool,
}

impl Refusal {
    /// Returns a refusal with ScyllaDB's message, truncated.
    pub fn new(host_id: &str, why: &str) -> Self {
        Self { host_id: host_id.to_owned(), why: why.chars().take(MAX_MESSAGE).collect(), retry: false }
    }

    /// Parses the annotation; none if it is malformed.
    pub fn of(annotation: &str) -> Option<Self> {
        serde_json::from_str(annotation).ok()
    }

    /// Returns the value of the annotation.
    pub fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Returns the refusal of the node `own` with `retry` set, if the operator has withdrawn its request.
    pub fn with_retry(annotations: &BTreeMap<String, String>, own: &str, is_asked: bool) -> Option<Self> {
        let refusal = annotations.get(LEAVING_REFUSED).and_then(|annotation| Self::of(annotation))?;
        (!is_asked && !refusal.retry && refusal.host_id == own).then_some(Self { retry: true, ..refusal })
    }
}

/// Whether ScyllaDB's message says that the decommission it was asked for is already in progress.
pub fn is_under_way(words: &str) -> bool {
    words.contains("decommission is in progress")
}

/// Whether the annotation with the refusal is outdated: it is of another node, or the node has been leaving for long.
pub fn is_refusal_over(annotations: &BTreeMap<String, String>, own: &str, leaves_for_long: bool) -> bool {
    let annotation = annotations.get(LEAVING_REFUSED);
    annotation.is_some_and(|annotation| {
        leaves_for_long || Refusal::of(annotation).is_none_or(|refusal| refusal.host_id != own)
    })
}

/// Returns the next step for the node with the host ID `own`.
pub fn step(asked: DecommissionRequest<'_>, own: &str, mode: &Mode, has_native_transport: bool) -> DecommissionStep {
    if !asked.names(own) {
        return DecommissionStep::Nothing;
    }
    match mode {
        Mode::Normal if has_native_transport && asked.began == Some(own) => DecommissionStep::Start,
        Mode::Normal if has_native_transport => DecommissionStep::Announce,
        Mode::Decommissioned => DecommissionStep::Confirm,
        Mode::Drained => DecommissionStep::Restart,
        _ => DecommissionStep::Wait,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const REQUEST: DecommissionRequest<'_> =
        DecommissionRequest { label: Some("false"), leaving: Some("me"), began: None };
    const BEGUN: DecommissionRequest<'_> = DecommissionRequest { began: Some("me"), ..REQUEST };

    #[test]
    fn decommission_follows_its_steps() {
        let cases = [
            (DecommissionRequest::default(), Mode::Normal, true, DecommissionStep::Nothing, "there is no request"),
            (
                DecommissionRequest { label: Some("true"), ..BEGUN },
                Mode::Decommissioned,
                false,
                DecommissionStep::Nothing,
                "it is said already",
            ),
            (
                DecommissionRequest { label: Some(""), ..REQUEST },
                Mode::Normal,
                true,
                DecommissionStep::Nothing,
                "this is no request",
            ),
            (
                DecommissionRequest { leaving: None, ..REQUEST },
                Mode::Normal,
                true,
                DecommissionStep::Nothing,
                "a label alone is no request",
            ),
            (
                DecommissionRequest { leaving: Some("other"), ..REQUEST },
                Mode::Normal,
                true,
                DecommissionStep::Nothing,
                "another node is meant",
            ),
            (
                DecommissionRequest { label: None, ..REQUEST },
                Mode::Normal,
                true,
                DecommissionStep::Nothing,
                "the label was taken away",
            ),
            (REQUEST, Mode::Normal, true, DecommissionStep::Announce, "it serves"),
            (
                DecommissionRequest { began: Some("other"), ..REQUEST },
                Mode::Normal,
                true,
                DecommissionStep::Announce,
                "another one had begun",
            ),
            (BEGUN, Mode::Normal, true, DecommissionStep::Start, "it has said so"),
            (BEGUN, Mode::Normal, false, DecommissionStep::Wait, "it does not serve clients yet"),
            (REQUEST, Mode::Joining, true, DecommissionStep::Wait, "it is not in the ring yet"),
            (BEGUN, Mode::Leaving, true, DecommissionStep::Wait, "it has begun"),
            (REQUEST, Mode::Draining, false, DecommissionStep::Wait, "it will be drained"),
            (REQUEST, Mode::Drained, false, DecommissionStep::Restart, "a drained node cannot leave"),
            (BEGUN, Mode::Decommissioned, false, DecommissionStep::Confirm, "it has left"),
            (BEGUN, Mode::Other("NEW".to_owned()), true, DecommissionStep::Wait, "what is not known is waited out"),
        ];
        for (asked, mode, transport, expected, why) in cases {
            assert_eq!(step(asked, "me", &mode, transport), expected, "{why}");
        }
    }

    #[test]
    fn refusal_is_outdated_when_the_node_leaves_or_is_another_one() {
        let annotation = |text: &str| BTreeMap::from([(LEAVING_REFUSED.to_owned(), text.to_owned())]);
        let refusal = Refusal::new("me", &"too few nodes ".repeat(1000));
        assert_eq!(refusal.why.chars().count(), MAX_MESSAGE);
        assert_eq!(Refusal::of(&refusal.text()), Some(refusal.clone()));
        assert!(!is_refusal_over(&annotation(&refusal.text()), "me", false));
        assert!(is_refusal_over(&annotation(&refusal.text()), "me", true));
        assert!(is_refusal_over(&annotation(&refusal.text()), "another", false));
        assert!(is_refusal_over(&annotation("nonsense"), "me", false));
        assert!(!is_refusal_over(&BTreeMap::new(), "me", true));

        let retried = Refusal::with_retry(&annotation(&refusal.text()), "me", false).unwrap();
        assert_eq!((retried.retry, &retried.why), (true, &refusal.why));
        assert_eq!(Refusal::with_retry(&annotation(&retried.text()), "me", false), None, "it is said once");
        assert_eq!(Refusal::with_retry(&annotation(&refusal.text()), "me", true), None, "it is being asked");
        assert_eq!(Refusal::with_retry(&annotation(&refusal.text()), "another", false), None);
        assert!(is_under_way("Operation decommission is in progress, try again"));
        assert!(!is_under_way(&refusal.why));
    }
}
