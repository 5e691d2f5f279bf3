//! The rules, and their violations.
//!
//! 1. **Data**: no controller deletes the claim, the pod or the Service of a node that owns tokens. Exceptions: the
//!    StatefulSet recreates the pod on the same claim, or the node is down and the label `scylla/replace` asks for its
//!    replacement.
//! 2. **Replicas**: no StatefulSet is scaled below the last of its nodes that owns tokens, or deleted with its pods.
//! 3. **One change**: while a node joins, leaves or is replaced, no other node begins to.
//! 4. **Budget**: no node is stopped while as many are down as the PodDisruptionBudget allows.
//! 5. **Rows**: every row that a test has written has a replica (see [`super::rows`]), whichever user caused the loss.
//!
//! Controllers are the operator, the sidecars and those of Kubernetes. Changes of users are no violations, and neither
//! is what StatefulSets do because a user scaled them in.

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

/// Literals, so that the rules do not depend on the operator's code.
const HOST_ID: &str = "internal.scylla-operator.scylladb.com/host-id";
const LEAVING: &str = "messina.scylladb.com/leaving-host-id";
const REPLACE: &str = "scylla/replace";
const REPLACING: &str = "internal.scylla-operator.scylladb.com/replacing-node-hostid";
const SET_CONTROLLER: &str = "system:serviceaccount:kube-system:statefulset-controller";

/// The stage of a node, by its own disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// It is not in the ring yet.
    #[default]
    Joining,
    /// It is in the ring.
    Joined,
    /// It has left.
    Left,
}

/// The content of a node's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// The host ID of the node; none on an empty disk.
    pub host: Option<String>,
    /// The stage of the node.
    pub stage: Stage,
    /// Host IDs that it knows, and whether they own tokens.
    pub knows: BTreeMap<String, bool>,
    /// Its tokens.
    pub owner: Option<Owner>,
    /// The rows that it holds.
    pub copies: Arc<Copies>,
}

/// A node's pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSeen {
    /// The UID of the pod.
    pub uid: String,
    /// Whether it is ready and not being deleted.
    pub is_ready: bool,
}

/// The state of all nodes at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When the sample began.
    pub began: Timestamp,
    /// When it ended.
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

    /// The host IDs that own tokens: those that a member of the ring knows as owners, unless a member knows that they
    /// have left. One member is enough for that, because a node that left never comes back.
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
#[expect(missing_docs, reason = "the module describes them")]
pub enum Rule {
    Data,
    Replicas,
    OneChange,
    Budget,
    Rows,
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The user who wrote.
    pub who: String,
    /// The write.
    pub what: String,
    /// When the write was done.
    pub at: Timestamp,
    /// Why it violates the rule.
    pub why: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({}) violates the rule {:?}: {}", self.at, self.what, self.who, self.rule, self.why)
    }
}

/// The numbers of observed changes.
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

/// The replicas of a StatefulSet, and the user who set them.
#[derive(Clone, Debug)]
struct Replicas {
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

/// Checks writes against the rules, one after another.
#[derive(Debug, Default)]
pub struct RuleChecker {
    /// The numbers of observed changes.
    pub counts: Counts,
    /// The rows that tests have written.
    pub rows: Arc<Mutex<Rows>>,
    last_write: Option<Write>,
    stateful_sets: BTreeMap<String, Replicas>,
    services: BTreeMap<String, Service>,
    /// Pods that were deleted, until a new pod of the same name is ready.
    going: BTreeMap<String, String>,
    changes: BTreeMap<String, Change>,
    violations: Vec<Violation>,
}

/// The samples before and after a write.
struct WriteContext<'a> {
    before: &'a Sample,
    after: &'a Sample,
    owners: BTreeSet<&'a str>,
}

impl<'a> WriteContext<'a> {
    /// The host ID of this member, if it owns tokens.
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

impl RuleChecker {
    /// Checks the writes between two samples, and returns the violations.
    pub fn check(&mut self, before: &Sample, after: &Sample, writes: &[Write]) -> Vec<Violation> {
        let context = WriteContext { before, after, owners: after.owners() };
        self.end_changes(&context);
        for write in writes.iter().filter(|write| write.is_done()) {
            self.counts.writes += 1;
            if write.resource != "events" {
                self.last_write = Some(write.clone());
            }
            match (write.resource.as_str(), write.verb.as_str()) {
                ("pods", "create") => self.pod_created(write, &context),
                ("pods", "delete") | ("pods/eviction", "create") => self.pod_deleted(write, &context),
                ("persistentvolumeclaims", "delete") => self.claim_deleted(write, &context),
                ("services", "delete") => self.service_deleted(write, &context),
                ("services", _) => self.service_changed(write, &context),
                ("statefulsets", "delete") => self.set_deleted(write, &context),
                ("statefulsets" | "statefulsets/scale", _) => self.set_changed(write, &context),
                _ => {}
            }
        }
        self.check_rows(&context);
        std::mem::take(&mut self.violations)
    }

    /// Reports rows that neither sample finds: while a row moves from one disk to another, one sample may miss it on
    /// both. A lost row never comes back, so later samples find the loss, too.
    fn check_rows(&mut self, context: &WriteContext<'_>) {
        let rows = Arc::clone(&self.rows);
        let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, after) = (context.before.holders(), context.after.holders());
        let lost: Vec<_> = rows
            .without_replica(&after, context.before.began)
            .intersection(&rows.without_replica(&before, context.before.began))
            .cloned()
            .collect();
        rows.remember(&after);
        for lost in lost.iter().filter_map(|id| rows.lose(id)) {
            match self.last_write.clone() {
                Some(write) => self.report_violation(Rule::Rows, &write, lost.to_string()),
                None => self.violations.push(Violation {
                    rule: Rule::Rows,
                    who: "no user".into(),
                    what: "no write".into(),
                    at: context.after.ended,
                    why: lost.to_string(),
                }),
            }
        }
    }

    /// Ends the changes that are complete in the later sample.
    fn end_changes(&mut self, context: &WriteContext<'_>) {
        let WriteContext { before, after, owners } = context;
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

    fn report_violation(&mut self, rule: Rule, write: &Write, why: String) {
        let what = format!("{} {} {}/{}", write.verb, write.resource, write.namespace, write.name);
        self.violations.push(Violation { rule, who: write.user.clone(), what, at: write.answered, why });
    }

    fn begin_change(&mut self, write: &Write, change: Change) {
        let member = write.name.as_str();
        // A node that is replaced joins, too.
        if matches!(self.changes.get(member), Some(Change::IsReplaced)) || self.changes.get(member) == Some(&change) {
            return;
        }
        match change {
            Change::Joins => self.counts.joins += 1,
            // A node may refuse to leave, and be asked again: it counts when it has left.
            Change::Leaves(_) => {}
            Change::IsReplaced => self.counts.replacements += 1,
        }
        let others: Vec<String> =
            self.changes.iter().filter(|(other, _)| *other != member).map(|one| format!("{one:?}")).collect();
        if !others.is_empty() && is_ours(&write.user) {
            self.report_violation(Rule::OneChange, write, format!("{change:?}, while {}", others.join(", ")));
        }
        self.changes.insert(member.to_owned(), change);
    }

    fn pod_created(&mut self, write: &Write, context: &WriteContext<'_>) {
        let member = write.name.as_str();
        if write.user != SET_CONTROLLER || position(member).is_none() {
            return;
        }
        let is_new = |sample: &Sample| sample.disk(member).is_none_or(|disk| disk.stage == Stage::Joining);
        if is_new(context.before) && context.owner(member).is_none() {
            self.begin_change(write, Change::Joins);
        }
    }

    fn pod_deleted(&mut self, write: &Write, context: &WriteContext<'_>) {
        let member = write.name.as_str();
        let known = context.before.pods.get(member).or_else(|| context.after.pods.get(member));
        let Some((set, ordinal)) = position(member).filter(|_| known.is_some()) else { return };
        let uid = known.map(|pod| pod.uid.clone()).unwrap_or_default();
        let was_up = context.before.is_ready(member) && !self.going.contains_key(member);
        let is_first = self.going.insert(member.to_owned(), uid).is_none();
        self.counts.pods_deleted += usize::from(is_first);
        let Some(host) = context.owner(member).filter(|_| is_ours(&write.user)) else { return };
        let known = self.stateful_sets.get(set);
        let has_place = known.is_some_and(|known| ordinal < known.replicas);
        if !has_place && known.is_some_and(|known| !is_ours(&known.by)) {
            return;
        }
        if !has_place && !self.may_be_discarded(member, context) {
            self.report_violation(Rule::Data, write, format!("its node {host} owns tokens"));
        }
        if was_up {
            self.check_budget(write, host, context);
        }
    }

    fn may_be_discarded(&self, member: &str, context: &WriteContext<'_>) -> bool {
        let is_asked_for = self.services.get(member).is_some_and(|service| service.is_to_be_replaced);
        is_asked_for && (context.is_down(member) || self.going.contains_key(member))
    }

    fn check_budget(&mut self, write: &Write, host: &str, context: &WriteContext<'_>) {
        let is_down = |other: &&&str| match context.before.member_of(other).or_else(|| context.after.member_of(other)) {
            Some(member) => context.is_down(member) || self.going.contains_key(member),
            // Its disk is gone.
            None => true,
        };
        let down: Vec<&str> = context.owners.iter().filter(|other| **other != host).filter(is_down).copied().collect();
        let allowed = context.after.budget.unwrap_or(1);
        if down.len() + 1 > allowed {
            let names: Vec<&str> =
                down.iter().map(|host| context.after.member_of(host).unwrap_or("a node without a disk")).collect();
            let why = format!("{allowed} may be down, and {} is already", names.join(", "));
            self.report_violation(Rule::Budget, write, why);
        }
    }

    fn claim_deleted(&mut self, write: &Write, context: &WriteContext<'_>) {
        let Some(member) = write.name.strip_prefix("data-") else { return };
        self.counts.claims_deleted += 1;
        let Some(host) = context.owner(member).filter(|_| is_ours(&write.user)) else { return };
        if !self.may_be_discarded(member, context) {
            self.report_violation(Rule::Data, write, format!("it is the disk of node {host}, which owns tokens"));
        }
    }

    fn service_deleted(&mut self, write: &Write, context: &WriteContext<'_>) {
        self.services.remove(&write.name);
        self.changes.retain(|member, change| *member != write.name || *change == Change::Joins);
        if let Some(host) = context.owner(&write.name).filter(|_| is_ours(&write.user)) {
            self.report_violation(Rule::Data, write, format!("it is the Service of node {host}, which owns tokens"));
        }
    }

    fn service_changed(&mut self, write: &Write, context: &WriteContext<'_>) {
        let metadata = &write.result["metadata"];
        let version = metadata["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or(0);
        let service = self.services.entry(write.name.clone()).or_default();
        // Responses may be logged in another order than that of the writes.
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
            (_, true, _) => self.begin_change(write, Change::IsReplaced),
            (_, _, Some(host)) if context.owners.contains(host.as_str()) => {
                self.begin_change(write, Change::Leaves(host))
            }
            _ => {}
        }
    }

    fn set_changed(&mut self, write: &Write, context: &WriteContext<'_>) {
        let Some(replicas) = write.result["spec"]["replicas"].as_u64() else { return };
        let before = self.stateful_sets.get(&write.name).cloned();
        let by = match &before {
            Some(known) if known.replicas == replicas => known.by.clone(),
            _ => write.user.clone(),
        };
        self.stateful_sets.insert(write.name.clone(), Replicas { replicas, by });
        self.lose_replicas(write, replicas..before.map_or(0, |known| known.replicas), context);
    }

    fn set_deleted(&mut self, write: &Write, context: &WriteContext<'_>) {
        let policy: &Value = &write.body["propagationPolicy"];
        if policy.as_str() == Some("Orphan") {
            return;
        }
        let gone = Replicas { replicas: 0, by: write.user.clone() };
        let before = self.stateful_sets.insert(write.name.clone(), gone).map_or(0, |known| known.replicas);
        self.lose_replicas(write, 0..before, context);
    }

    fn lose_replicas(&mut self, write: &Write, ordinals: std::ops::Range<u64>, context: &WriteContext<'_>) {
        for ordinal in ordinals.filter(|_| is_ours(&write.user)) {
            let member = format!("{}-{ordinal}", write.name);
            if let Some(host) = context.owner(&member) {
                self.report_violation(
                    Rule::Replicas,
                    write,
                    format!("{member} ({host}) owns tokens, and the StatefulSet has no replica for it any more"),
                );
            }
        }
    }
}
