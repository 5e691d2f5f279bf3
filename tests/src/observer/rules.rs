//! The rules, and who broke them.
//!
//! 1. **Data**: nobody of ours deletes the claim, the pod or the Service of a node that owns tokens. A pod that its
//!    StatefulSet has a place for is made anew on the same disk; and a node that is down may be given up when the
//!    label `scylla/replace` asks for that.
//! 2. **Place**: no StatefulSet is made smaller than the last of its nodes that owns tokens, or deleted with its pods.
//! 3. **One change**: while a node joins, leaves or is replaced, no other one begins to.
//! 4. **Budget**: no node is taken down while as many are down as the PodDisruptionBudget allows.
//! 5. **Rows**: every row that a test has written has a replica (see [`super::rows`]). Whoever is to blame, a row without one
//!    is lost.
//!
//! Ours are the operator, the sidecars and Kubernetes' controllers. What a person does is no fault of theirs, and neither is what
//! StatefulSets do because a person made them smaller.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use messina_scylla_sim::data::{Copies, Owner, Ring};
use serde_json::Value;

use super::{
    log::Write,
    rows::{Holder, Rows},
};

/// Written out, and not taken from the operator's code.
const HOST_ID: &str = "internal.scylla-operator.scylladb.com/host-id";
const LEAVING: &str = "messina.scylladb.com/leaving-host-id";
const REPLACE: &str = "scylla/replace";
const REPLACING: &str = "internal.scylla-operator.scylladb.com/replacing-node-hostid";
const SET_CONTROLLER: &str = "system:serviceaccount:kube-system:statefulset-controller";

/// How far a node has come, by its own disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It is in no ring yet.
    #[default]
    Joining,
    /// It is in the ring.
    Joined,
    /// It has left.
    Left,
}

/// What is on a node's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// Who the node is; nobody on an empty disk.
    pub host: Option<String>,
    /// How far it has come.
    pub stage: Stage,
    /// Host IDs that it knows, and whether they own tokens.
    pub knows: BTreeMap<String, bool>,
    /// Its place in the ring.
    pub owner: Option<Owner>,
    /// The rows that it holds.
    pub copies: Arc<Copies>,
}

/// A node's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSeen {
    /// Which pod it is.
    pub uid: String,
    /// Whether it is ready, and stays.
    pub is_ready: bool,
}

/// One look at all nodes.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the look began.
    pub began: Timestamp,
    /// When it was over.
    pub ended: Timestamp,
    /// Disks, by the name of the claim.
    pub disks: BTreeMap<String, Disk>,
    /// Pods of nodes, by name.
    pub pods: BTreeMap<String, PodSeen>,
    /// How many nodes may be down.
    pub budget: Option<usize>,
}

impl Default for Sample {
    fn default() -> Self {
        let never = Timestamp::UNIX_EPOCH;
        Self { began: never, ended: never, disks: BTreeMap::new(), pods: BTreeMap::new(), budget: None }
    }
}

impl Sample {
    fn disk(&self, member: &str) -> Option<&Disk> {
        self.disks.get(&format!("data-{member}"))
    }

    /// Who owns tokens: those whom a member of the ring knows as owners, unless one of them knows that they have left. One
    /// voice is enough for that, since nobody comes back.
    fn owners(&self) -> BTreeSet<&str> {
        let voices = || self.disks.values().filter(|disk| disk.stage == Stage::Joined);
        let known =
            voices().flat_map(|disk| disk.knows.iter().filter(|(_, owns)| **owns).map(|(host, _)| host.as_str()));
        let own = voices().filter_map(|disk| disk.host.as_deref());
        let has_left = |host: &str| voices().any(|disk| disk.knows.get(host) == Some(&false));
        known.chain(own).filter(|host| !has_left(host)).collect()
    }

    /// The disks of nodes that own tokens.
    fn holders(&self) -> Vec<Holder<'_>> {
        let owners = self.owners();
        let disks = self.disks.iter().filter_map(|(claim, disk)| {
            let name = claim.strip_prefix("data-").unwrap_or(claim);
            Some(Holder { name, host: disk.host.as_deref()?, copies: &disk.copies })
        });
        disks.filter(|holder| owners.contains(holder.host)).collect()
    }

    /// Rows that have fewer live replicas than their keyspace asks for.
    pub fn under_replicated(&self, rows: &Rows) -> Vec<String> {
        let owners = self.owners();
        let members = self.disks.values().filter_map(|disk| disk.owner.clone());
        let ring = Ring::of(members.filter(|owner| owners.contains(owner.host.as_str())));
        let live: Vec<Holder<'_>> = self.holders().into_iter().filter(|holder| self.is_ready(holder.name)).collect();
        rows.under_replicated(&ring, &live)
    }

    fn is_ready(&self, member: &str) -> bool {
        self.pods.get(member).is_some_and(|pod| pod.is_ready)
    }

    /// The member whose disk is this node's.
    fn member_of(&self, host: &str) -> Option<&str> {
        let found = self.disks.iter().find(|(_, disk)| disk.host.as_deref() == Some(host));
        found.and_then(|(claim, _)| claim.strip_prefix("data-"))
    }
}

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are told above")]
pub enum Rule {
    Data,
    Place,
    OneChange,
    Budget,
    Rows,
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Who wrote.
    pub who: String,
    /// What was written.
    pub what: String,
    /// When.
    pub at: Timestamp,
    /// Why that is against the rule.
    pub why: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({}) breaks the rule {:?}: {}", self.at, self.what, self.who, self.rule, self.why)
    }
}

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Counts {
    pub writes: usize,
    pub pods_deleted: usize,
    pub claims_deleted: usize,
    pub joins: usize,
    pub departures: usize,
    pub replacements: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { writes, pods_deleted, claims_deleted, joins, departures, replacements } = self;
        write!(
            f,
            "{writes} writes, {joins} joins, {departures} departures, {replacements} replacements, {pods_deleted} pods \
             and {claims_deleted} claims deleted"
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Joins,
    Leaves(String),
    IsReplaced,
}

/// How many pods a StatefulSet has a place for, and who said so.
#[derive(Clone, Debug)]
struct Place {
    replicas: u64,
    by: String,
}

#[derive(Clone, Debug, Default)]
struct Service {
    version: u64,
    is_to_be_replaced: bool,
    replaces: bool,
    leaves: Option<String>,
}

/// Holds writes against the rules, one after another.
#[derive(Debug, Default)]
pub struct Judge {
    /// What was seen.
    pub counts: Counts,
    /// What tests have written.
    pub rows: Arc<Mutex<Rows>>,
    last_write: Option<Write>,
    places: BTreeMap<String, Place>,
    services: BTreeMap<String, Service>,
    /// Pods that were deleted, until another one is ready in their place.
    going: BTreeMap<String, String>,
    changes: BTreeMap<String, Change>,
    violations: Vec<Violation>,
}

/// What is known around a write.
struct Around<'a> {
    before: &'a Sample,
    after: &'a Sample,
    owners: BTreeSet<&'a str>,
}

impl<'a> Around<'a> {
    /// The node that had this place, if it owns tokens.
    fn owner(&self, member: &str) -> Option<&'a str> {
        let disk = self.before.disk(member).filter(|disk| disk.host.is_some()).or_else(|| self.after.disk(member));
        disk?.host.as_deref().filter(|host| self.owners.contains(host))
    }

    fn is_down(&self, member: &str) -> bool {
        !self.before.is_ready(member) && !self.after.is_ready(member)
    }
}

fn is_ours(user: &str) -> bool {
    user.starts_with("system:serviceaccount:")
}

/// StatefulSet and ordinal of a member.
fn position(member: &str) -> Option<(&str, u64)> {
    let (set, ordinal) = member.rsplit_once('-')?;
    Some((set, ordinal.parse().ok()?))
}

impl Judge {
    /// Takes in what was written between two looks, and answers which rules that breaks.
    pub fn judge(&mut self, before: &Sample, after: &Sample, writes: &[Write]) -> Vec<Violation> {
        let around = Around { before, after, owners: after.owners() };
        self.settle(&around);
        for write in writes.iter().filter(|write| write.is_done()) {
            self.counts.writes += 1;
            if write.resource != "events" {
                self.last_write = Some(write.clone());
            }
            match (write.resource.as_str(), write.verb.as_str()) {
                ("pods", "create") => self.pod_comes(write, &around),
                ("pods", "delete") | ("pods/eviction", "create") => self.pod_goes(write, &around),
                ("persistentvolumeclaims", "delete") => self.claim_goes(write, &around),
                ("services", "delete") => self.service_goes(write, &around),
                ("services", _) => self.service_changes(write, &around),
                ("statefulsets", "delete") => self.set_goes(write, &around),
                ("statefulsets" | "statefulsets/scale", _) => self.set_changes(write, &around),
                _ => {}
            }
        }
        self.rows_have_replicas(&around);
        std::mem::take(&mut self.violations)
    }

    /// A row that neither look finds has no replica: while it moves from one disk to another, one look may miss it on both. No
    /// row comes back by itself, so that a look finds what is lost long before it, too.
    fn rows_have_replicas(&mut self, around: &Around<'_>) {
        let rows = Arc::clone(&self.rows);
        let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, after) = (around.before.holders(), around.after.holders());
        let lost: Vec<_> = rows
            .without_replica(&after, around.before.began)
            .intersection(&rows.without_replica(&before, around.before.began))
            .cloned()
            .collect();
        rows.remember(&after);
        for lost in lost.iter().filter_map(|id| rows.lose(id)) {
            match self.last_write.clone() {
                Some(write) => self.broken(Rule::Rows, &write, lost.to_string()),
                None => self.violations.push(Violation {
                    rule: Rule::Rows,
                    who: "no user".into(),
                    what: "no write".into(),
                    at: around.after.ended,
                    why: lost.to_string(),
                }),
            }
        }
    }

    /// What is over by the later look.
    fn settle(&mut self, around: &Around<'_>) {
        let Around { before, after, owners } = around;
        self.going.retain(|member, uid| {
            let now = after.pods.get(member);
            !now.is_some_and(|pod| pod.is_ready && pod.uid != *uid)
        });
        let departures = &mut self.counts.departures;
        self.changes.retain(|member, change| match change {
            Change::Joins => {
                let disk = after.disk(member);
                let has_joined = disk.and_then(|disk| disk.host.as_deref()).is_some_and(|host| owners.contains(host));
                let is_gone = !before.pods.contains_key(member) && !after.pods.contains_key(member);
                !(has_joined || is_gone || disk.is_some_and(|disk| disk.stage == Stage::Left))
            }
            Change::Leaves(host) => {
                let stays = owners.contains(host.as_str());
                *departures += usize::from(!stays);
                stays
            }
            Change::IsReplaced => true,
        });
    }

    fn broken(&mut self, rule: Rule, write: &Write, why: String) {
        let what = format!("{} {} {}/{}", write.verb, write.resource, write.namespace, write.name);
        self.violations.push(Violation { rule, who: write.user.clone(), what, at: write.answered, why });
    }

    fn begins(&mut self, write: &Write, change: Change) {
        let member = write.name.as_str();
        // A node that is replaced joins, too.
        if matches!(self.changes.get(member), Some(Change::IsReplaced)) || self.changes.get(member) == Some(&change) {
            return;
        }
        match change {
            Change::Joins => self.counts.joins += 1,
            // Who is asked to leave may refuse, and be asked again: it counts when it has left.
            Change::Leaves(_) => {}
            Change::IsReplaced => self.counts.replacements += 1,
        }
        let others: Vec<String> =
            self.changes.iter().filter(|(other, _)| *other != member).map(|one| format!("{one:?}")).collect();
        if !others.is_empty() && is_ours(&write.user) {
            self.broken(Rule::OneChange, write, format!("{change:?}, while {}", others.join(", ")));
        }
        self.changes.insert(member.to_owned(), change);
    }

    fn pod_comes(&mut self, write: &Write, around: &Around<'_>) {
        let member = write.name.as_str();
        if write.user != SET_CONTROLLER || position(member).is_none() {
            return;
        }
        let is_new = |sample: &Sample| sample.disk(member).is_none_or(|disk| disk.stage == Stage::Joining);
        if is_new(around.before) && around.owner(member).is_none() {
            self.begins(write, Change::Joins);
        }
    }

    fn pod_goes(&mut self, write: &Write, around: &Around<'_>) {
        let member = write.name.as_str();
        let known = around.before.pods.get(member).or_else(|| around.after.pods.get(member));
        let Some((set, ordinal)) = position(member).filter(|_| known.is_some()) else { return };
        let uid = known.map(|pod| pod.uid.clone()).unwrap_or_default();
        let was_up = around.before.is_ready(member) && !self.going.contains_key(member);
        let is_first = self.going.insert(member.to_owned(), uid).is_none();
        self.counts.pods_deleted += usize::from(is_first);
        let Some(host) = around.owner(member).filter(|_| is_ours(&write.user)) else { return };
        let place = self.places.get(set);
        let has_place = place.is_some_and(|place| ordinal < place.replicas);
        if !has_place && place.is_some_and(|place| !is_ours(&place.by)) {
            return;
        }
        if !has_place && !self.may_be_given_up(member, around) {
            self.broken(Rule::Data, write, format!("its node {host} owns tokens"));
        }
        if was_up {
            self.keeps_to_budget(write, host, around);
        }
    }

    fn may_be_given_up(&self, member: &str, around: &Around<'_>) -> bool {
        let is_asked_for = self.services.get(member).is_some_and(|service| service.is_to_be_replaced);
        is_asked_for && (around.is_down(member) || self.going.contains_key(member))
    }

    fn keeps_to_budget(&mut self, write: &Write, host: &str, around: &Around<'_>) {
        let is_down = |other: &&&str| match around.before.member_of(other).or_else(|| around.after.member_of(other)) {
            Some(member) => around.is_down(member) || self.going.contains_key(member),
            // Its disk is gone.
            None => true,
        };
        let down: Vec<&str> = around.owners.iter().filter(|other| **other != host).filter(is_down).copied().collect();
        let allowed = around.after.budget.unwrap_or(1);
        if down.len() + 1 > allowed {
            let names: Vec<&str> =
                down.iter().map(|host| around.after.member_of(host).unwrap_or("one without a disk")).collect();
            let why = format!("{allowed} may be down, and {} is already", names.join(", "));
            self.broken(Rule::Budget, write, why);
        }
    }

    fn claim_goes(&mut self, write: &Write, around: &Around<'_>) {
        let Some(member) = write.name.strip_prefix("data-") else { return };
        self.counts.claims_deleted += 1;
        let Some(host) = around.owner(member).filter(|_| is_ours(&write.user)) else { return };
        if !self.may_be_given_up(member, around) {
            self.broken(Rule::Data, write, format!("it is the disk of node {host}, which owns tokens"));
        }
    }

    fn service_goes(&mut self, write: &Write, around: &Around<'_>) {
        self.services.remove(&write.name);
        self.changes.retain(|member, change| *member != write.name || *change == Change::Joins);
        if let Some(host) = around.owner(&write.name).filter(|_| is_ours(&write.user)) {
            self.broken(Rule::Data, write, format!("it is the Service of node {host}, which owns tokens"));
        }
    }

    fn service_changes(&mut self, write: &Write, around: &Around<'_>) {
        let metadata = &write.result["metadata"];
        let version = metadata["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or(0);
        let service = self.services.entry(write.name.clone()).or_default();
        // Answers may be logged in another order than that in which they were given.
        if version < service.version {
            return;
        }
        let text = |map: &str, key: &str| metadata[map][key].as_str();
        *service = Service {
            version,
            is_to_be_replaced: text("labels", REPLACE).is_some(),
            replaces: text("labels", REPLACING).is_some(),
            leaves: text("annotations", LEAVING)
                .filter(|host| text("annotations", HOST_ID) == Some(host))
                .map(Into::into),
        };
        let Service { replaces, leaves, .. } = service.clone();
        match (self.changes.get(&write.name), replaces, leaves) {
            (Some(Change::IsReplaced), false, _) | (Some(Change::Leaves(_)), _, None) => {
                self.changes.remove(&write.name);
            }
            (_, true, _) => self.begins(write, Change::IsReplaced),
            (_, _, Some(host)) if around.owners.contains(host.as_str()) => self.begins(write, Change::Leaves(host)),
            _ => {}
        }
    }

    fn set_changes(&mut self, write: &Write, around: &Around<'_>) {
        let Some(replicas) = write.result["spec"]["replicas"].as_u64() else { return };
        let before = self.places.get(&write.name).cloned();
        let by = match &before {
            Some(place) if place.replicas == replicas => place.by.clone(),
            _ => write.user.clone(),
        };
        self.places.insert(write.name.clone(), Place { replicas, by });
        self.loses_places(write, replicas..before.map_or(0, |place| place.replicas), around);
    }

    fn set_goes(&mut self, write: &Write, around: &Around<'_>) {
        let policy: &Value = &write.body["propagationPolicy"];
        if policy.as_str() == Some("Orphan") {
            return;
        }
        let gone = Place { replicas: 0, by: write.user.clone() };
        let before = self.places.insert(write.name.clone(), gone).map_or(0, |place| place.replicas);
        self.loses_places(write, 0..before, around);
    }

    fn loses_places(&mut self, write: &Write, ordinals: std::ops::Range<u64>, around: &Around<'_>) {
        for ordinal in ordinals.filter(|_| is_ours(&write.user)) {
            let member = format!("{}-{ordinal}", write.name);
            if let Some(host) = around.owner(&member) {
                self.broken(Rule::Place, write, format!("{member} ({host}) owns tokens, and has no place any more"));
            }
        }
    }
}
