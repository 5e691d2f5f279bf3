//! Kubernetes' controllers of Jobs, StatefulSets, pods and volumes.

use k8s_openapi::{
    api::{
        apps::v1::StatefulSetStatus,
        batch::v1::JobStatus,
        core::v1::{Container, PersistentVolumeClaim, Pod, PodSpec},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
    jiff::Timestamp,
};
use messina_api::names::label::{NODE_MAINTENANCE, SCYLLA_VERSION};
use messina_plan::{
    datacenter::cached::{trim_claim, trim_pod},
    node::{Mode, upgrade::Snapshot},
};

use super::{Disk, REVISION, World, partition_of, readiness, revision_of};

impl World {
    /// Returns the names of running Jobs.
    pub(super) fn running_jobs(&self) -> Vec<String> {
        self.stored.jobs.iter().filter(|(_, job)| job.status.is_none()).map(|(name, _)| name.clone()).collect()
    }

    /// Completes a Job, if all nodes are up and none joins or leaves. Returns whether one was completed.
    pub(crate) fn finish_cleanup_job(&mut self) -> bool {
        let jobs = self.running_jobs();
        let Some(name) = self.pick_random(&jobs) else { return false };
        if !self.down().is_empty() || self.nodes_in_transition("") > 0 {
            return false;
        }
        let done = JobStatus { completion_time: Some(Time(Timestamp::UNIX_EPOCH)), ..JobStatus::default() };
        self.stored.jobs.get_mut(&name).unwrap().status = Some(done);
        self.version += 1;
        self.cleaned_up += 1;
        true
    }

    pub(super) fn members(&self) -> Vec<String> {
        self.stored.services.keys().filter(|name| !name.ends_with("-client")).cloned().collect()
    }

    pub(super) fn disk(&self, member: &str) -> Option<&Disk> {
        self.disks.get(self.stored.claims.get(&format!("data-{member}"))?.metadata.uid.as_ref()?)
    }

    /// Returns the host ID of the node on the member's disk.
    pub(crate) fn host_id_of(&self, member: &str) -> Option<String> {
        self.disk(member)?.host_id.clone()
    }

    pub(crate) fn remove_pod(&mut self, name: &str) {
        self.version += 1;
        self.stored.pods.remove(name);
        self.nodes.remove(name);
        self.delete_released_claim(name);
    }

    pub(super) fn delete_released_claim(&mut self, member: &str) {
        let name = format!("data-{member}");
        let is_being_deleted =
            self.stored.claims.get(&name).is_some_and(|claim| claim.metadata.deletion_timestamp.is_some());
        if is_being_deleted && !self.stored.pods.contains_key(member) {
            self.version += 1;
            self.stored.claims.remove(&name);
        }
    }

    pub(super) fn is_ready(&self, pod: &str) -> bool {
        // A node under maintenance is not ready.
        self.label(pod, NODE_MAINTENANCE).is_none()
            && self
                .nodes
                .get(pod)
                .is_some_and(|node| node.mode == Mode::Normal && node.serves && self.ring.contains(&node.host_id))
    }

    /// Runs the StatefulSet controller for one step. Returns whether anything changed.
    pub(crate) fn run_kubernetes(&mut self) -> bool {
        let mut has_done = self.report_readiness();
        let back: Vec<String> = self.restarting.iter().filter(|pod| self.is_ready(pod)).cloned().collect();
        self.restarting.retain(|pod| !back.contains(pod) && self.stored.claims.contains_key(&format!("data-{pod}")));
        for name in self.stored.stateful_sets.keys().cloned().collect::<Vec<_>>() {
            has_done |= self.scale(&name);
            has_done |= self.report_status(&name);
        }
        let is_orphan = |pod: &&String| {
            let name = pod.rsplit_once('-').unwrap().0;
            !self.stored.stateful_sets.contains_key(name) && !self.orphaned.contains(name)
        };
        let orphans = self.stored.pods.keys().filter(is_orphan);
        for pod in orphans.cloned().collect::<Vec<_>>() {
            self.remove_pod(&pod);
            has_done = true;
        }
        has_done | self.expand_volume()
    }

    /// Expands the volume of a claim that requests more.
    fn expand_volume(&mut self) -> bool {
        let version = self.version + 1;
        let is_small = |claim: &&mut PersistentVolumeClaim| {
            let requested = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
            claim.status.as_ref().and_then(|status| status.capacity.as_ref()) != requested
        };
        let Some(claim) = self.stored.claims.values_mut().find(is_small) else { return false };
        let requested = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.clone());
        claim.status.get_or_insert_default().capacity = requested;
        claim.metadata.resource_version = Some(version.to_string());
        self.version = version;
        true
    }

    fn scale(&mut self, name: &str) -> bool {
        let replicas = self.stored.stateful_sets[name].spec.as_ref().unwrap().replicas.unwrap();
        let surplus = self.stored.pods.keys().rev().find(|pod| {
            let (prefix, ordinal) = pod.rsplit_once('-').unwrap();
            prefix == name && ordinal.parse::<i32>().unwrap() >= replicas
        });
        if let Some(pod) = surplus.cloned() {
            self.remove_pod(&pod);
            return true;
        }
        let spec = self.stored.stateful_sets[name].spec.as_ref().unwrap();
        let is_parallel = spec.pod_management_policy.as_deref() == Some("Parallel");
        for ordinal in 0..replicas {
            let pod = format!("{name}-{ordinal}");
            if self.stored.pods.contains_key(&pod) {
                if !is_parallel && !self.is_ready(&pod) {
                    return false;
                }
                continue;
            }
            let is_old = ordinal < partition_of(&self.stored.stateful_sets[name]);
            let revision = if is_old { self.current[name].clone() } else { self.revision(name) };
            return self.create_pod(&pod, &revision);
        }
        self.update(name, replicas)
    }

    /// Returns the update revision of the StatefulSet.
    fn revision(&self, name: &str) -> String {
        revision_of(&self.stored.stateful_sets[name].spec.as_ref().unwrap().template)
    }

    pub(super) fn is_new(&self, pod: &str, revision: &str) -> bool {
        self.stored.pods[pod].metadata.labels.as_ref().is_some_and(|labels| labels[REVISION] == revision)
    }

    /// Recreates the last outdated pod that is not below the partition, if the pods after it are ready.
    fn update(&mut self, name: &str, replicas: i32) -> bool {
        let revision = self.revision(name);
        let partition = partition_of(&self.stored.stateful_sets[name]);
        for ordinal in (partition..replicas).rev() {
            let pod = format!("{name}-{ordinal}");
            if !self.is_new(&pod, &revision) {
                self.check_restart(&pod, &revision);
                self.restarting.insert(pod.clone());
                self.restarted += 1;
                let last = self.disk(&pod).and_then(|disk| disk.version.clone());
                self.upgraded += usize::from(last.is_some_and(|last| !revision.starts_with(&format!("{last}_"))));
                self.remove_pod(&pod);
                return true;
            }
            if !self.is_ready(&pod) {
                return false;
            }
        }
        false
    }

    /// Checks the restart of a pod because of a write of the operator.
    fn check_restart(&self, pod: &str, revision: &str) {
        let serves = self.is_ready(pod) && !self.down_when_decided.contains(pod);
        let others: Vec<&String> = self.restarting.iter().filter(|other| *other != pod && serves).collect();
        assert!(others.is_empty(), "{pod} is restarted while {others:?} are restarting");
        self.check_version(pod, revision.split_once('_').unwrap().0);
    }

    /// Checks that a node starts with its own version, its former one, or one that it is prepared for.
    fn check_version(&self, pod: &str, version: &str) {
        // A node that has not joined may start with any version.
        let has_joined = |disk: &&Disk| disk.host_id.as_ref().is_some_and(|host_id| self.ring.contains(host_id));
        let is_another = |disk: &&Disk| disk.version.as_deref().is_some_and(|last| last != version);
        let Some(disk) = self.disk(pod).filter(has_joined).filter(is_another) else { return };
        // A node that is down may be corrected although it was prepared for another version, and start before that is done.
        let has = |kind: Snapshot, version: &str| disk.snapshots.contains(&(version.to_owned(), kind));
        let is_prepared = has(Snapshot::System, version) && has(Snapshot::Data, version)
            || disk.snapshots.iter().any(|(to, kind)| to != version && *kind == Snapshot::Data);
        let returns = disk.prepared_from.as_deref() == Some(version);
        assert!(is_prepared || returns, "{pod} restarts unprepared with version {version}: {disk:?}");
    }

    /// Whether the status of the pod says that it is ready.
    pub(super) fn is_reported_ready(&self, pod: &str) -> bool {
        let conditions = self.stored.pods[pod].status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    }

    fn create_pod(&mut self, pod: &str, revision: &str) -> bool {
        let claim = format!("data-{pod}");
        if self.stored.claims.get(&claim).is_some_and(|claim| claim.metadata.deletion_timestamp.is_some()) {
            return false;
        }
        if !self.stored.claims.contains_key(&claim) {
            let metadata = self.metadata(&claim);
            self.disks.insert(metadata.uid.clone().unwrap(), Disk::default());
            let stateful_set = &self.stored.stateful_sets[pod.rsplit_once('-').unwrap().0];
            let templates = stateful_set.spec.as_ref().unwrap().volume_claim_templates.as_ref().unwrap();
            let mut created = PersistentVolumeClaim { metadata, ..templates[0].clone() };
            created.spec.as_mut().unwrap().storage_class_name = Some("local".into());
            created.status.get_or_insert_default().phase = Some("Bound".into());
            trim_claim(&mut created);
            self.stored.claims.insert(created);
        }
        let disk = self.disk(pod).unwrap();
        assert!(!disk.is_decommissioned, "{pod} gets the disk of {:?}, which has left", disk.host_id);
        let version = revision.split_once('_').unwrap().0;
        self.check_version(pod, version);
        let labels = [(SCYLLA_VERSION, version), (REVISION, revision)].map(|(key, value)| (key.into(), value.into()));
        let metadata = ObjectMeta { labels: Some(labels.into()), ..self.metadata(pod) };
        let container = Container {
            name: "scylla".into(),
            image: Some(format!("scylladb/scylla:{version}")),
            ..Container::default()
        };
        let spec = Some(PodSpec { containers: vec![container], ..PodSpec::default() });
        let mut created = Pod { metadata, spec, status: Some(readiness(false)) };
        trim_pod(&mut created);
        self.stored.pods.insert(created);
        true
    }

    /// The kubelets update the readiness of pods.
    fn report_readiness(&mut self) -> bool {
        let pods: Vec<String> = self.stored.pods.keys().cloned().collect();
        let changed: Vec<String> =
            pods.into_iter().filter(|pod| self.is_ready(pod) != self.is_reported_ready(pod)).collect();
        for pod in &changed {
            let (version, status) = (self.next_version(), readiness(self.is_ready(pod)));
            let stored = self.stored.pods.get_mut(pod).unwrap();
            stored.status = Some(status);
            stored.metadata.resource_version = Some(version);
        }
        !changed.is_empty()
    }

    fn report_status(&mut self, name: &str) -> bool {
        let pods: Vec<String> =
            self.stored.pods.keys().filter(|pod| pod.rsplit_once('-').unwrap().0 == name).cloned().collect();
        let ready = pods.iter().filter(|pod| self.is_ready(pod)).count() as i32;
        let count = pods.len() as i32;
        let revision = self.revision(name);
        let updated = pods.iter().filter(|pod| self.is_new(pod, &revision)).count() as i32;
        let replicas = self.replicas(name);
        if updated == replicas && ready == replicas {
            self.current.insert(name.to_owned(), revision.clone());
        }
        let current = self.current.get(name).cloned();
        let now = self.stored.stateful_sets.get_mut(name).unwrap();
        let status = StatefulSetStatus {
            observed_generation: now.metadata.generation,
            replicas: count,
            current_replicas: Some(count),
            ready_replicas: Some(ready),
            available_replicas: Some(ready),
            updated_replicas: Some(updated),
            update_revision: Some(revision),
            current_revision: current,
            ..StatefulSetStatus::default()
        };
        let is_new = now.status.as_ref() != Some(&status);
        if is_new {
            now.status = Some(status);
            self.version += 1;
            now.metadata.resource_version = Some(self.version.to_string());
        }
        is_new
    }
}
