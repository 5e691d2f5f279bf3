//! Snapshots of a node for an upgrade, as its sidecar takes them.
//!
//! The operator writes on the Service which snapshots the node should have for which upgrade; the sidecar takes those
//! that are missing, clears those that are not requested, and confirms. Request and answer have the host ID and the
//! version, so those of another node or another version do not count. The request is a desired state: after a crash of
//! either side, it is reconciled again.

use std::collections::{BTreeMap, BTreeSet};

use messina_api::names::annotation::{UPGRADE_ANSWER, UPGRADE_REQUEST};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::Mode;

/// The prefix of the tags of all snapshots for upgrades.
pub const TAG_PREFIX: &str = "messina-upgrade-";

/// A snapshot, by its keyspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Snapshot {
    /// The system keyspaces, which are local to each node and have the schema. All nodes must agree on the schema
    /// before.
    System,
    /// All other keyspaces.
    Data,
}

impl Snapshot {
    /// Returns its tag.
    pub fn tag(self, version: &str) -> String {
        let kind = match self {
            Self::System => "system",
            Self::Data => "data",
        };
        format!("{TAG_PREFIX}{version}-{kind}")
    }
}

/// A set of snapshots.
pub type Kept = BTreeSet<Snapshot>;

/// The operator's request to a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeRequest {
    /// Host ID of the node.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// The version that it ran at the first request.
    pub from: String,
    /// The version of the upgrade.
    pub to: String,
    /// The snapshots that it should have.
    pub keep: Kept,
}

/// The sidecar's answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeAnswer {
    /// Host ID of the node that answers.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// The version of the request.
    pub to: String,
    /// The snapshots that exist.
    pub kept: Kept,
    /// The last step, if it has failed. The sidecar tries it again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<Failure>,
}

/// A step that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The step.
    pub step: UpgradeStep,
    /// Why.
    pub why: String,
}

/// A step of the sidecar for an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UpgradeStep {
    /// Check that all nodes agree on the schema.
    Schema,
    /// Take a snapshot of the system keyspaces.
    SystemSnapshot,
    /// Take a snapshot of all other keyspaces.
    DataSnapshot,
    /// Clear snapshots.
    Clearing,
}

impl UpgradeRequest {
    /// Parses the annotation of a Service; none if it is malformed.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Self> {
        parsed(annotations, UPGRADE_REQUEST)
    }

    /// Returns the value of the annotation.
    pub fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

impl UpgradeAnswer {
    /// Parses the annotation of a Service; none if it is malformed.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Self> {
        parsed(annotations, UPGRADE_ANSWER)
    }

    /// Returns the value of the annotation.
    pub fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    fn is_to(&self, request: &UpgradeRequest) -> bool {
        self.host_id == request.host_id && self.to == request.to
    }
}

fn parsed<T: DeserializeOwned>(annotations: &BTreeMap<String, String>, key: &str) -> Option<T> {
    serde_json::from_str(annotations.get(key)?).ok()
}

/// What the sidecar has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The request.
    pub request: UpgradeRequest,
    /// The snapshots that are known to exist.
    pub kept: Kept,
}

impl Work {
    /// Returns the snapshots to take, in order.
    pub fn to_take(&self) -> Vec<Snapshot> {
        self.request.keep.difference(&self.kept).copied().collect()
    }

    /// Returns the tags of the snapshots to keep; others that were taken for upgrades are cleared.
    pub fn tags_to_keep(&self) -> Vec<String> {
        self.request.keep.intersection(&self.kept).map(|one| one.tag(&self.request.to)).collect()
    }
}

/// Returns what the sidecar of the node with the host ID `own` has to do; none if there is no request, or it is done
/// and confirmed. It does nothing while the node is not in mode NORMAL.
pub fn work(annotations: &BTreeMap<String, String>, own: &str, mode: &Mode) -> Option<Work> {
    let request = UpgradeRequest::of(annotations).filter(|request| request.host_id == own)?;
    let answer = UpgradeAnswer::of(annotations).filter(|answer| answer.is_to(&request));
    let is_done = answer.as_ref().is_some_and(|answer| answer.kept == request.keep && answer.failed.is_none());
    let kept = answer.map(|answer| answer.kept).unwrap_or_default();
    (!is_done && *mode == Mode::Normal).then_some(Work { request, kept })
}

/// Returns the new value of the annotation with the answer, if it has to change.
pub fn change(annotations: &BTreeMap<String, String>, answer: &UpgradeAnswer) -> Option<String> {
    let is_asked = UpgradeRequest::of(annotations).is_some_and(|request| answer.is_to(&request));
    let text = answer.text();
    (is_asked && annotations.get(UPGRADE_ANSWER) != Some(&text)).then_some(text)
}

/// Returns the schema versions with the addresses of their nodes, if nodes disagree; none if all agree.
pub fn disagreement(versions: &BTreeMap<String, Vec<String>>) -> Option<String> {
    if versions.len() == 1 && !versions.contains_key("UNREACHABLE") {
        return None;
    }
    let sides: Vec<String> = versions
        .iter()
        .map(|(version, nodes)| {
            let mut nodes = nodes.clone();
            nodes.sort();
            format!("{version} at {}", nodes.join(", "))
        })
        .collect();
    Some(if sides.is_empty() { "no version is known".into() } else { sides.join("; ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(keep: &[Snapshot]) -> UpgradeRequest {
        UpgradeRequest { host_id: "me".into(), from: "1".into(), to: "2".into(), keep: keep.iter().copied().collect() }
    }

    fn answer(kept: &[Snapshot], failed: Option<UpgradeStep>) -> UpgradeAnswer {
        UpgradeAnswer {
            host_id: "me".into(),
            to: "2".into(),
            kept: kept.iter().copied().collect(),
            failed: failed.map(|step| Failure { step, why: "no".into() }),
        }
    }

    fn service(request: Option<UpgradeRequest>, answer: Option<UpgradeAnswer>) -> BTreeMap<String, String> {
        let request = request.map(|request| (UPGRADE_REQUEST.to_owned(), request.text()));
        request.into_iter().chain(answer.map(|answer| (UPGRADE_ANSWER.to_owned(), answer.text()))).collect()
    }

    #[test]
    fn work_is_what_is_requested_and_not_confirmed() {
        use Snapshot::{Data, System};
        let asked = || Some(request(&[System, Data]));
        let other = |answer: UpgradeAnswer| Some(UpgradeAnswer { to: "3".into(), ..answer });
        let stranger = |answer: UpgradeAnswer| Some(UpgradeAnswer { host_id: "other".into(), ..answer });
        let cases = [
            (service(None, None), None, "there is no request"),
            (service(asked(), None), Some(vec![System, Data]), "nothing is done"),
            (service(asked(), Some(answer(&[System], None))), Some(vec![Data]), "one is taken"),
            (service(asked(), Some(answer(&[System, Data], None))), None, "all is done"),
            (service(asked(), other(answer(&[System, Data], None))), Some(vec![System, Data]), "of another version"),
            (service(asked(), stranger(answer(&[System, Data], None))), Some(vec![System, Data]), "of another node"),
            (
                service(asked(), Some(answer(&[System], Some(UpgradeStep::DataSnapshot)))),
                Some(vec![Data]),
                "it is tried again",
            ),
            (service(Some(request(&[])), Some(answer(&[System], None))), Some(vec![]), "one has to be cleared"),
            (service(Some(request(&[])), Some(answer(&[], Some(UpgradeStep::Clearing)))), Some(vec![]), "that failed"),
        ];
        for (annotations, expected, why) in cases {
            assert_eq!(work(&annotations, "me", &Mode::Normal).map(|work| work.to_take()), expected, "{why}");
            assert_eq!(work(&annotations, "another", &Mode::Normal), None, "{why}");
            assert_eq!(work(&annotations, "me", &Mode::Joining), None, "{why}");
        }
    }

    #[test]
    fn answer_is_written_once_and_only_to_its_request() {
        let done = answer(&[Snapshot::System], None);
        assert_eq!(change(&service(None, None), &done), None, "there is no request any more");
        let asked = service(Some(request(&[Snapshot::System])), None);
        assert_eq!(change(&asked, &done), Some(done.text()));
        let said = service(Some(request(&[Snapshot::System])), Some(done.clone()));
        assert_eq!(change(&said, &done), None, "it is said");
        assert_eq!(
            change(&asked, &UpgradeAnswer { to: "3".into(), ..done }),
            None,
            "it was asked about another version"
        );
    }

    #[test]
    fn disagreement_on_the_schema_is_reported_by_version() {
        let versions = |pairs: &[(&str, &[&str])]| {
            pairs
                .iter()
                .map(|(key, list)| ((*key).to_owned(), list.iter().map(|one| (*one).to_owned()).collect()))
                .collect()
        };
        assert_eq!(disagreement(&versions(&[("v1", &["10.0.0.1", "10.0.0.2"])])), None);
        let two = disagreement(&versions(&[("v1", &["10.0.0.2", "10.0.0.1"]), ("v2", &["10.0.0.3"])]));
        assert_eq!(two.as_deref(), Some("v1 at 10.0.0.1, 10.0.0.2; v2 at 10.0.0.3"));
        let silent = disagreement(&versions(&[("v1", &["10.0.0.1"]), ("UNREACHABLE", &["10.0.0.3"])]));
        assert_eq!(silent.as_deref(), Some("UNREACHABLE at 10.0.0.3; v1 at 10.0.0.1"));
        assert!(disagreement(&versions(&[("UNREACHABLE", &["10.0.0.3"])])).is_some());
        assert!(disagreement(&BTreeMap::new()).is_some());
    }
}
