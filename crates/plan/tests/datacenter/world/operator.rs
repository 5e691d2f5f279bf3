//! The operator, and the API server that it writes to.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{apps::v1::StatefulSet, batch::v1::Job, core::v1::Service},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use messina_api::names::label::REPLACING_NODE_HOST_ID;
use messina_plan::{
    datacenter::{ByName, Deletion, FieldPatch, ObjectKind, ObservedVersion},
    node::Mode,
};
use serde_json::Value;

use crate::{name_of, plan};

use super::{Map, World, Write, partition_of, patch, revision_of};

impl World {
    /// The operator reconciles, and queues its writes, which `write` carries out one by one.
    pub(crate) fn reconcile(&mut self) {
        if !self.writes.is_empty() || self.idle == Some(self.version) {
            return;
        }
        let plan = match (&self.seen_services, &self.seen_claims, &self.seen_pods) {
            (None, None, None) => plan(&self.stored),
            (services, claims, pods) => {
                let mut seen = self.stored.clone();
                seen.services = services.clone().unwrap_or(seen.services);
                seen.claims = claims.clone().unwrap_or(seen.claims);
                seen.pods = pods.clone().unwrap_or(seen.pods);
                plan(&seen)
            }
        };
        self.preconditions = plan.preconditions;
        for service in plan.objects.member_services {
            let name = service.metadata.name.clone().unwrap();
            let now = self.stored.services.get(&name).map(|service| &service.metadata);
            let has = |now: Option<&Map>, wanted: Option<&Map>| {
                wanted.into_iter().flatten().all(|(key, value)| now.is_some_and(|now| now.get(key) == Some(value)))
            };
            let is_same = now.is_some_and(|now| {
                has(now.labels.as_ref(), service.metadata.labels.as_ref())
                    && has(now.annotations.as_ref(), service.metadata.annotations.as_ref())
            });
            if !is_same {
                self.writes.push_back(Write::Service(Box::new(service)));
            }
        }
        for one in plan.objects.stateful_sets {
            if self
                .stored
                .stateful_sets
                .get(&name_of(&one))
                .is_none_or(|now| now.spec != one.spec || now.metadata.labels != one.metadata.labels)
            {
                self.writes.push_back(Write::StatefulSet(Box::new(one)));
            }
        }
        for name in self.stored.jobs.keys().filter(|name| plan.untouched.iter().all(|left| left.name != **name)) {
            self.writes.push_back(Write::JobDeletion(name.clone()));
        }
        self.writes.extend(plan.objects.cleanup_jobs.into_iter().map(|job| Write::Job(Box::new(job))));
        let token = plan.objects.agent_auth_token.into_iter();
        self.stored.secrets.extend(token);
        self.writes.extend(plan.changes.into_iter().map(Write::FieldPatch));
        self.writes.extend(plan.deletions.into_iter().map(Write::Deletion));
        self.idle = self.writes.is_empty().then_some(self.version);
        if self.idle.is_some() {
            self.down_when_decided.clear();
        }
        let down: Vec<String> = self.stored.pods.keys().filter(|pod| !self.is_reported_ready(pod)).cloned().collect();
        self.down_when_decided.extend(down);
    }

    pub(crate) fn crash_the_operator(&mut self) {
        self.writes.clear();
    }

    /// From now on, a watch of Services, claims or pods does not report changes. Some claims and pods may be missing, too.
    pub(crate) fn delay_watches(&mut self) {
        self.version += 1;
        match self.random_below(3) {
            0 => self.observe_outdated_services(),
            1 => {
                let claims = self.stored.claims.clone();
                self.seen_claims = Some(self.remove_some(claims));
            }
            _ => {
                let pods = self.stored.pods.clone();
                self.seen_pods = Some(self.remove_some(pods));
            }
        }
    }

    /// From now on, the operator does not observe changes of Services.
    pub(crate) fn observe_outdated_services(&mut self) {
        self.version += 1;
        self.seen_services = Some(self.stored.services.clone());
    }

    /// From now on, the operator observes no claims at all.
    pub(crate) fn observe_no_claims(&mut self) {
        self.version += 1;
        self.seen_claims = Some(ByName::default());
    }

    fn remove_some<T: Clone>(&mut self, mut all: ByName<T>) -> ByName<T> {
        let count = self.random_below(2 * all.len() + 1).min(all.len());
        let last: Vec<String> = all.keys().rev().take(count).cloned().collect();
        last.iter().for_each(|name| drop(all.remove(name)));
        all
    }

    /// All watches of the operator report the current state again.
    pub(crate) fn catch_up_watches(&mut self) {
        self.version += 1;
        self.seen_services = None;
        self.seen_claims = None;
        self.seen_pods = None;
    }

    /// Whether the preconditions of a write hold.
    fn preconditions_hold(&self, write: &Write) -> bool {
        let key = match write {
            Write::Service(service) => (ObjectKind::Service, service.metadata.name.clone().unwrap()),
            Write::StatefulSet(one) => (ObjectKind::StatefulSet, name_of(one)),
            Write::FieldPatch(change) => (change.kind, change.name.clone()),
            Write::Deletion(deletion) => (deletion.kind, deletion.name.clone()),
            Write::Job(_) | Write::JobDeletion(_) => return true,
        };
        let is_same = |seen: &ObservedVersion| {
            let now = match seen.kind {
                ObjectKind::PersistentVolumeClaim => self.stored.claims.get(&seen.name).map(|claim| &claim.metadata),
                ObjectKind::Pod => self.stored.pods.get(&seen.name).map(|pod| &pod.metadata),
                ObjectKind::Service => self.stored.services.get(&seen.name).map(|service| &service.metadata),
                ObjectKind::StatefulSet => panic!("{seen:?} is no precondition of any write"),
            };
            seen.version == now.and_then(|metadata| metadata.resource_version.clone())
        };
        self.preconditions.get(&key).is_none_or(|all| all.iter().all(is_same))
    }

    /// Carries out one write of the operator. Returns whether there was one.
    pub(crate) fn write(&mut self) -> bool {
        let Some(write) = self.writes.pop_front() else { return false };
        if !self.preconditions_hold(&write) {
            self.writes.clear();
            return true;
        }
        let is_done = match write {
            Write::Service(service) => self.apply_service(*service),
            Write::StatefulSet(one) => {
                self.check_restarts(&one);
                self.apply_stateful_set(*one)
            }
            Write::Job(job) => self.create_job(*job),
            Write::JobDeletion(name) => {
                self.version += 1;
                self.stored.jobs.remove(&name).is_some()
            }
            Write::FieldPatch(change) => self.apply_change(&change),
            Write::Deletion(deletion) => self.delete(&deletion),
        };
        if !is_done {
            self.writes.clear();
        }
        true
    }

    /// Checks that a write restarts at most one ready pod, and none while another one is known to be down.
    fn check_restarts(&self, wanted: &StatefulSet) {
        let name = name_of(wanted);
        let Some(now) = self.stored.stateful_sets.get(&name) else { return };
        let (before, after) = (self.outdated(&name, now), self.outdated(&name, wanted));
        let taken: Vec<&String> = after.difference(&before).filter(|pod| self.is_reported_ready(pod)).collect();
        assert!(taken.len() <= 1, "{taken:?} restart together");
        let known_down = self.stored.stateful_sets.values().any(|one| {
            let ready = one.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
            ready < one.spec.as_ref().unwrap().replicas.unwrap()
        });
        let is_down = |pod: &String| !taken.contains(&pod) && !self.is_reported_ready(pod);
        let down: Vec<&String> = self.stored.pods.keys().filter(|pod| is_down(pod)).collect();
        assert!(taken.is_empty() || (down.is_empty() && !known_down), "{taken:?} restart while {down:?} are down");
    }

    /// Returns the pods that Kubernetes would recreate for this StatefulSet.
    fn outdated(&self, name: &str, stateful_set: &StatefulSet) -> BTreeSet<String> {
        let spec = stateful_set.spec.as_ref().unwrap();
        let revision = revision_of(&spec.template);
        let ordinals = partition_of(stateful_set)..spec.replicas.unwrap();
        let pods = ordinals.map(|ordinal| format!("{name}-{ordinal}"));
        pods.filter(|pod| self.stored.pods.contains_key(pod) && !self.is_new(pod, &revision)).collect()
    }

    fn apply_service(&mut self, wanted: Service) -> bool {
        let name = wanted.metadata.name.clone().unwrap();
        let version = |service: Option<&Service>| service.and_then(|one| one.metadata.resource_version.clone());
        // The write carries the resource version that was observed.
        if let Some(seen) = &self.seen_services
            && version(seen.get(&name)) != version(self.stored.services.get(&name))
        {
            return false;
        }
        if let Some(now) = self.stored.services.get_mut(&name) {
            now.metadata.labels.get_or_insert_default().extend(wanted.metadata.labels.unwrap_or_default());
            now.metadata.annotations.get_or_insert_default().extend(wanted.metadata.annotations.unwrap_or_default());
            self.version += 1;
            now.metadata.resource_version = Some(self.version.to_string());
        } else {
            let fresh = self.metadata(&name);
            let metadata = ObjectMeta {
                uid: fresh.uid,
                resource_version: fresh.resource_version,
                creation_timestamp: fresh.creation_timestamp,
                ..wanted.metadata
            };
            let mut service = Service { metadata, ..wanted };
            service.spec.get_or_insert_default().cluster_ip = Some("10.0.0.1".into());
            self.stored.services.insert(service);
        }
        true
    }

    fn create_job(&mut self, job: Job) -> bool {
        let leaving: Vec<&String> =
            self.nodes.iter().filter(|(_, node)| node.mode == Mode::Leaving).map(|(name, _)| name).collect();
        assert!(leaving.is_empty(), "{:?} is created while {leaving:?} is being decommissioned", job.metadata.name);
        self.version += 1;
        let is_new = !self.stored.jobs.contains_key(job.metadata.name.as_ref().unwrap());
        self.stored.jobs.insert(job);
        is_new
    }

    fn apply_stateful_set(&mut self, wanted: StatefulSet) -> bool {
        let name = name_of(&wanted);
        let replicas = wanted.spec.as_ref().unwrap().replicas.unwrap();
        if let Some(now) = self.stored.stateful_sets.get(&name) {
            let before = now.spec.as_ref().unwrap().replicas.unwrap();
            assert!(replicas >= before || self.has_left(&name, replicas..before), "{name} is applied with fewer nodes");
            self.version += 1;
            let now = self.stored.stateful_sets.get_mut(&name).unwrap();
            now.spec = wanted.spec;
            now.metadata.labels = wanted.metadata.labels;
            now.metadata.generation = now.metadata.generation.map(|generation| generation + 1);
            now.metadata.resource_version = Some(self.version.to_string());
        } else {
            let fresh = self.metadata(&name);
            let metadata = ObjectMeta {
                uid: fresh.uid,
                resource_version: fresh.resource_version,
                generation: Some(1),
                ..wanted.metadata
            };
            let revision = revision_of(&wanted.spec.as_ref().unwrap().template);
            self.current.insert(name.clone(), revision);
            let has_all = self.has_left(&name, replicas..8);
            assert!(!self.orphaned.remove(&name) || has_all, "{name} is recreated with fewer nodes than it has");
            self.stored.stateful_sets.insert(StatefulSet { metadata, ..wanted });
        }
        true
    }

    /// Whether no node of these ordinals is in the ring.
    fn has_left(&self, stateful_set: &str, mut ordinals: std::ops::Range<i32>) -> bool {
        ordinals.all(|ordinal| {
            let host_id = self.host_id_of(&format!("{stateful_set}-{ordinal}"));
            host_id.is_none_or(|host_id| !self.ring.contains(&host_id))
        })
    }

    fn apply_change(&mut self, change: &FieldPatch) -> bool {
        let metadata = match change.kind {
            ObjectKind::Service => self.stored.services.get(&change.name).map(|one| &one.metadata),
            ObjectKind::StatefulSet => self.stored.stateful_sets.get(&change.name).map(|one| &one.metadata),
            ObjectKind::PersistentVolumeClaim => self.stored.claims.get(&change.name).map(|one| &one.metadata),
            ObjectKind::Pod => None,
        };
        let is_seen = metadata.is_some_and(|metadata| {
            metadata.uid.as_ref() == Some(&change.uid) && metadata.resource_version.as_ref() == Some(&change.version)
        });
        if !is_seen {
            return false;
        }
        let version = self.next_version();
        match change.kind {
            ObjectKind::Service => {
                self.patch_service(&change.name, &change.patch);
            }
            ObjectKind::StatefulSet => {
                let replicas = change.patch["spec"]["replicas"].as_i64().unwrap() as i32;
                let before = self.stored.stateful_sets[&change.name].spec.as_ref().unwrap().replicas.unwrap();
                assert!(before - replicas <= 1, "{} nodes are removed at once", before - replicas);
                assert!(
                    replicas >= before || self.has_left(&change.name, replicas..before),
                    "{} loses a node of the ring",
                    change.name
                );
                let now = self.stored.stateful_sets.get_mut(&change.name).unwrap();
                now.spec.as_mut().unwrap().replicas = Some(replicas);
                now.metadata.generation = now.metadata.generation.map(|generation| generation + 1);
                now.metadata.resource_version = Some(version);
            }
            ObjectKind::PersistentVolumeClaim => {
                let claim = self.stored.claims.get_mut(&change.name).unwrap();
                patch(claim.metadata.annotations.get_or_insert_default(), &change.patch["metadata"]["annotations"]);
                claim.metadata.resource_version = Some(version);
                if let Some(size) = change.patch["spec"]["resources"]["requests"]["storage"].as_str() {
                    let resources = claim.spec.as_mut().unwrap().resources.as_mut().unwrap();
                    resources.requests = Some([("storage".to_owned(), Quantity(size.into()))].into());
                }
            }
            ObjectKind::Pod => {}
        }
        true
    }

    pub(super) fn patch_service(&mut self, name: &str, change: &Value) {
        let version = self.next_version();
        if let Some(service) = self.stored.services.get_mut(name) {
            patch(service.metadata.labels.get_or_insert_default(), &change["metadata"]["labels"]);
            patch(service.metadata.annotations.get_or_insert_default(), &change["metadata"]["annotations"]);
            service.metadata.resource_version = Some(version);
        }
    }

    /// Whether the claim and pod of a member may be deleted: if its node is not in the ring, or is down and being replaced.
    fn may_lose(&self, member: &str) -> bool {
        let Some(host_id) = self.host_id_of(member).filter(|host_id| self.ring.contains(host_id)) else { return true };
        let replaced = self.stored.services.get(member).and_then(|service| service.metadata.labels.as_ref());
        let is_replaced = replaced.and_then(|labels| labels.get(REPLACING_NODE_HOST_ID)) == Some(&host_id);
        is_replaced && !self.nodes.values().any(|node| node.host_id == host_id)
    }

    fn delete(&mut self, deletion: &Deletion) -> bool {
        let name = &deletion.name;
        let is_same = |metadata: &ObjectMeta| metadata.uid.as_ref() == Some(&deletion.uid);
        match deletion.kind {
            ObjectKind::PersistentVolumeClaim => {
                let member = name.strip_prefix("data-").unwrap().to_owned();
                if self.stored.claims.get(name).is_some_and(|claim| is_same(&claim.metadata)) {
                    assert!(self.may_lose(&member), "claim {name} is deleted, whose node is in the ring");
                    self.version += 1;
                    let (version, now) = (self.version.to_string(), self.now());
                    let metadata = &mut self.stored.claims.get_mut(name).unwrap().metadata;
                    (metadata.resource_version, metadata.deletion_timestamp) = (Some(version), Some(now));
                    self.delete_released_claim(&member);
                }
            }
            ObjectKind::Pod => {
                if let Some(pod) = self.stored.pods.get(name).filter(|pod| is_same(&pod.metadata)) {
                    if deletion.version.is_some() && deletion.version != pod.metadata.resource_version {
                        return false;
                    }
                    // An outdated pod that is down is recreated with its disk.
                    let is_stuck = !self.is_ready(name) || !self.is_reported_ready(name);
                    assert!(is_stuck || self.may_lose(name), "pod {name} is deleted, whose node is in the ring");
                    self.remove_pod(&name.clone());
                }
            }
            ObjectKind::Service => {
                if self.stored.services.get(name).is_some_and(|one| is_same(&one.metadata)) {
                    let host_id = self.host_id_of(name);
                    assert!(host_id.is_none_or(|id| !self.ring.contains(&id)), "Service {name} is deleted too early");
                    self.version += 1;
                    self.stored.services.remove(name);
                }
            }
            ObjectKind::StatefulSet => {
                let Some(one) = self.stored.stateful_sets.get(name).filter(|one| is_same(&one.metadata)) else {
                    return true;
                };
                if deletion.orphans {
                    if deletion.version != one.metadata.resource_version {
                        return false;
                    }
                    assert!(self.orphaned.is_empty(), "{name} is deleted while another StatefulSet does not exist");
                    self.version += 1;
                    self.stored.stateful_sets.remove(name);
                    self.orphaned.insert(name.clone());
                } else {
                    let replicas = one.spec.as_ref().unwrap().replicas.unwrap();
                    assert!(self.has_left(name, 0..replicas.max(8)), "rack {name} is deleted too early");
                    self.version += 1;
                    self.stored.stateful_sets.remove(name);
                }
            }
        }
        true
    }
}
