//! What a node does for a change of its version, as its Service asks.
//!
//! The operator writes which snapshots the node is to keep for which change of version; the node takes those that are
//! missing, removes those that are not to be kept, and says so. Request and answer name the host ID and the version, so
//! what was said by another node, or for another version, counts for nothing. The request says what is to be, not what is
//! to be done: whoever crashes, it is looked at again.

use std::collections::{BTreeMap, BTreeSet};

use messina_api::names::annotation::{UPGRADE_ANSWER, UPGRADE_REQUEST};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::Mode;

/// What the names of all snapshots begin with that are taken for upgrades.
pub const TAG_PREFIX: &str = "messina-upgrade-";

/// Which keyspaces a snapshot is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Snapshot {
    /// Those that each node has for itself, with the schema in them. Before it is taken, all nodes have to agree on that.
    System,
    /// All others.
    Data,
}

impl Snapshot {
    /// The name that it goes by on the node.
    pub fn tag(self, version: &str) -> String {
        let kind = match self {
            Self::System => "system",
            Self::Data => "data",
        };
        format!("{TAG_PREFIX}{version}-{kind}")
    }
}

/// Snapshots that are kept.
pub type Kept = BTreeSet<Snapshot>;

/// What is asked of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeRequest {
    /// Host ID of the node that is asked.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// The version that it ran when it was first asked.
    pub from: String,
    /// The version that it is to run.
    pub to: String,
    /// The snapshots that it is to keep.
    pub keep: Kept,
}

/// What a node says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeAnswer {
    /// Host ID of the node that answers.
    #[serde(rename = "hostID")]
    pub host_id: String,
    /// The version that was asked about.
    pub to: String,
    /// The snapshots that there are.
    pub kept: Kept,
    /// What was tried last and did not succeed, and why. It is tried again.
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

/// A step of a node for an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum UpgradeStep {
    /// All nodes agree on the schema.
    Schema,
    /// A snapshot of the system keyspaces is taken.
    SystemSnapshot,
    /// A snapshot of all other keyspaces is taken.
    DataSnapshot,
    /// Snapshots are removed.
    Clearing,
}

impl UpgradeRequest {
    /// What a Service with these annotations asks; what cannot be read asks nothing.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Self> {
        parsed(annotations, UPGRADE_REQUEST)
    }

    /// What to write on a Service.
    pub fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

impl UpgradeAnswer {
    /// What was written on a Service with these annotations.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Self> {
        parsed(annotations, UPGRADE_ANSWER)
    }

    /// What to write on a Service.
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

/// What the node has yet to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// What is asked.
    pub request: UpgradeRequest,
    /// What is known to be kept of that.
    pub kept: Kept,
}

impl Work {
    /// The snapshots to take, in order.
    pub fn to_take(&self) -> Vec<Snapshot> {
        self.request.keep.difference(&self.kept).copied().collect()
    }

    /// The names of those that stay, of all that are taken for upgrades.
    pub fn tags_to_keep(&self) -> Vec<String> {
        self.request.keep.intersection(&self.kept).map(|one| one.tag(&self.request.to)).collect()
    }
}

/// What the node with the host ID `own` has to do; none where nothing is asked, or it is done and said. A node that does not
/// serve does nothing.
pub fn work(annotations: &BTreeMap<String, String>, own: &str, mode: &Mode) -> Option<Work> {
    let request = UpgradeRequest::of(annotations).filter(|request| request.host_id == own)?;
    let answer = UpgradeAnswer::of(annotations).filter(|answer| answer.is_to(&request));
    let is_done = answer.as_ref().is_some_and(|answer| answer.kept == request.keep && answer.failed.is_none());
    let kept = answer.map(|answer| answer.kept).unwrap_or_default();
    (!is_done && *mode == Mode::Normal).then_some(Work { request, kept })
}

/// What to write in place of the answer that is there, if anything.
pub fn change(annotations: &BTreeMap<String, String>, answer: &UpgradeAnswer) -> Option<String> {
    let is_asked = UpgradeRequest::of(annotations).is_some_and(|request| answer.is_to(&request));
    let text = answer.text();
    (is_asked && annotations.get(UPGRADE_ANSWER) != Some(&text)).then_some(text)
}

/// What speaks against agreement on the schema, by the addresses of the nodes that have each version; none where all agree.
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
    fn a_node_does_what_is_not_said_to_be_done() {
        use Snapshot::{Data, System};
        let asked = || Some(request(&[System, Data]));
        let other = |answer: UpgradeAnswer| Some(UpgradeAnswer { to: "3".into(), ..answer });
        let stranger = |answer: UpgradeAnswer| Some(UpgradeAnswer { host_id: "other".into(), ..answer });
        let cases = [
            (service(None, None), None, "nobody asks"),
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
            (service(Some(request(&[])), Some(answer(&[System], None))), Some(vec![]), "one is to be removed"),
            (service(Some(request(&[])), Some(answer(&[], Some(UpgradeStep::Clearing)))), Some(vec![]), "that failed"),
        ];
        for (annotations, expected, why) in cases {
            assert_eq!(work(&annotations, "me", &Mode::Normal).map(|work| work.to_take()), expected, "{why}");
            assert_eq!(work(&annotations, "somebody else", &Mode::Normal), None, "{why}");
            assert_eq!(work(&annotations, "me", &Mode::Joining), None, "{why}");
        }
    }

    #[test]
    fn an_answer_is_written_once_and_only_to_its_request() {
        let done = answer(&[Snapshot::System], None);
        assert_eq!(change(&service(None, None), &done), None, "nobody asks any more");
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
    fn all_nodes_must_agree_on_the_schema() {
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
