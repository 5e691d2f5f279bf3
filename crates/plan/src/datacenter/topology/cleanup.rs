//! Cleanup: Jobs that remove data from nodes for token ranges which they no longer own.
//!
//! When nodes join or leave, token ranges move, and nodes that lost ranges still store their data. Each node's sidecar
//! writes a hash of the token ring to the node's Service. The operator writes there for which ring the node was last
//! cleaned up. Where the two differ, a Job cleans up the node. The operator deletes the Job when it has written the
//! result.
//!
//! The spec of a Job is immutable. So a Job for another ring or another address is deleted and then recreated. Other
//! changes since it was created are ignored.

use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{Affinity, Container, PodSpec, PodTemplateSpec, SecretVolumeSource, Volume, VolumeMount},
};
use messina_api::{
    names::{
        self, annotation,
        label::{self, value},
    },
    scylla::v1alpha1::IpFamily,
};
use messina_text::Reason;

use crate::{
    datacenter::{
        layout::{PROGRAM, TOKEN_FILE},
        model::{
            component::Component,
            facts::{
                job::{CleanupJob, Progress},
                service::NodeService,
            },
            metadata::owned_with,
            observed::Observed,
            plan::{Note, Untouched},
            spec::{Datacenter, MAX_NODES, Rack},
        },
        reasons,
    },
    metadata::{map, template, with},
    node::address::{IpFamily as AddressFamily, PodAddresses, announced_address},
};

const CONTAINER: &str = "cleanup";

const TOKEN_VOLUME: &str = "scylla-manager-agent-token";

/// Path of the token with which the Job authenticates to the node's agent.
const TOKEN_PATH: &str = "/etc/scylla-cleanup-job/auth-token.yaml";

#[derive(Default)]
pub(crate) struct Cleanup {
    pub(crate) jobs: Vec<Job>,
    pub(crate) untouched: Vec<Untouched>,
    pub(crate) progressing: Vec<Note>,
    pub(crate) degraded: Vec<Note>,
    pub(crate) warnings: Vec<Note>,
}

/// Decides which nodes are cleaned up. No cleanup begins before all nodes are available and none joins or leaves:
/// `is_settled`.
pub(crate) fn cleanup(observed: &Observed, is_settled: bool) -> Cleanup {
    let datacenter = &observed.datacenter;
    let mut cleanup = Cleanup::default();
    if datacenter.racks.iter().all(|rack| rack.nodes == 0) {
        return cleanup;
    }
    if datacenter.agent_image.is_none() {
        cleanup.warnings.push(note(
            reasons::CLEANUP_NOT_AVAILABLE,
            "Nodes are not cleaned up after topology changes, because they have no ScyllaDB Manager agent. Set \
             spec.scyllaDBManagerAgent.image, or run `nodetool cleanup` on each node."
                .into(),
        ));
        return cleanup;
    }
    for (rack, member) in members(datacenter) {
        match ring_to_clean_up(observed, &member) {
            Err(unknown) => cleanup.progressing.push(unknown),
            Ok(None) => {}
            Ok(Some((service, ring))) => cleanup.reconcile_job(observed, rack, service, &member, ring, is_settled),
        }
    }
    cleanup
}

/// Whether a node has to be cleaned up.
pub(crate) fn is_cleanup_due(observed: &Observed) -> bool {
    let datacenter = &observed.datacenter;
    let is_failed = |member: &String| {
        let job = observed.jobs.get(&names::datacenter::cleanup_job(member));
        job.is_some_and(CleanupJob::has_failed)
    };
    datacenter.agent_image.is_some()
        && members(datacenter)
            .any(|(_, member)| matches!(ring_to_clean_up(observed, &member), Ok(Some(_))) && !is_failed(&member))
}

/// Returns the members that the specification contains, with their racks.
fn members(datacenter: &Datacenter) -> impl Iterator<Item = (&Rack, String)> {
    datacenter.racks.iter().flat_map(|rack| {
        let stateful_set = datacenter.stateful_set_name(rack);
        (0..rack.nodes.min(MAX_NODES)).map(move |ordinal| (rack, names::datacenter::member(&stateful_set, ordinal)))
    })
}

/// Returns the hash of the ring for which a node has to be cleaned up, with its Service; none where that is done.
fn ring_to_clean_up<'a>(observed: &'a Observed, member: &str) -> Result<Option<(&'a NodeService, &'a str)>, Note> {
    let reference = format!("Service {}/{member}", observed.datacenter.namespace);
    let Some(service) = observed.services.get(member) else {
        let message =
            format!("{reference} does not exist yet. The operator cannot decide whether its node needs a cleanup.");
        return Err(note(reasons::WAITING_FOR_SERVICE, message));
    };
    let current = service.ring_hash.as_deref().ok_or_else(|| {
        note(
            reasons::WAITING_FOR_SERVICE_STATE,
            format!(
                "{reference} has no hash of the token ring. The node's sidecar writes it when the node has joined."
            ),
        )
    })?;
    if current.is_empty() {
        let message = format!(
            "{reference} has an empty hash of the token ring. Waiting for the node's sidecar to write it again."
        );
        return Err(note(reasons::UNEXPECTED_SERVICE_STATE, message));
    }
    let cleaned_up = service.cleaned_up_ring_hash.as_deref().ok_or_else(|| {
        let message =
            format!("{reference} does not contain the ring of the node's last cleanup. The operator writes it now.");
        note(reasons::WAITING_FOR_SERVICE_STATE, message)
    })?;
    Ok((current != cleaned_up).then_some((service, current)))
}

impl Cleanup {
    fn reconcile_job(
        &mut self,
        observed: &Observed,
        rack: &Rack,
        service: &NodeService,
        member: &str,
        ring: &str,
        is_settled: bool,
    ) {
        let name = names::datacenter::cleanup_job(member);
        let existing = observed.jobs.get(&name);
        let reference = format!("Job {}/{name}", observed.datacenter.namespace);
        if !is_settled {
            // A Job that failed while nodes were down is recreated when they are up.
            if existing.is_some_and(|job| !job.has_failed()) {
                self.leave_untouched(name);
            }
            let message = format!(
                "Node {member} needs a cleanup by {reference}. Waiting until all nodes are available and no node \
                 joins or leaves."
            );
            return self.progressing.push(note(reasons::WAITING_FOR_NODES, message));
        }
        let address = match address(observed, service, member) {
            Ok(address) => address,
            Err(reason) => {
                self.leave_untouched(name);
                let message =
                    format!("Node {member} needs a cleanup by {reference}. Waiting for its address: {reason}.");
                return self.progressing.push(note(reasons::WAITING_FOR_ADDRESS, message));
            }
        };
        let job = job(observed, rack, member, ring, &address);
        match existing.map(|existing| (existing, &existing.progress)) {
            None if !all_see_same_ring(observed) => {
                let message = format!(
                    "Node {member} needs a cleanup by {reference}. Waiting until the sidecars of all nodes report the \
                     same token ring."
                );
                self.progressing.push(note(reasons::WAITING_FOR_TOKEN_RING, message));
            }
            None => {
                let message = format!(
                    "Creating {reference}, which removes data from node {member} that the node no longer owns."
                );
                self.progressing.push(note(reasons::CLEANING_UP, message));
                self.jobs.push(job);
            }
            Some((existing, _)) if !has_same_purpose(existing, &job) => {
                let message = format!(
                    "{reference} is for an earlier token ring or address of its node. The operator deletes and then \
                     recreates it."
                );
                self.progressing.push(note(reasons::REPLACING_JOB, message));
            }
            Some((_, Progress::Failed(message))) => {
                self.degraded.push(note(
                    reasons::CLEANUP_FAILED,
                    format!(
                        "{reference} failed to clean up node {member}: {message}. Check the logs of its pods. To try \
                         again, delete the Job."
                    ),
                ));
                self.leave_untouched(name);
            }
            Some((_, Progress::Running)) => {
                let message = format!("{reference} is removing data from node {member} that the node no longer owns.");
                self.progressing.push(note(reasons::WAITING_FOR_JOB_COMPLETION, message));
                self.leave_untouched(name);
            }
            Some((_, Progress::Complete)) => {
                let message = format!(
                    "{reference} has cleaned up node {member}. The operator writes that to the node's Service."
                );
                self.progressing.push(note(reasons::CLEANED_UP, message));
                self.leave_untouched(name);
            }
        }
    }

    fn leave_untouched(&mut self, name: String) {
        self.untouched.push(Untouched { kind: "Job", name });
    }
}

/// Whether the sidecars of all nodes report the same token ring. Nodes learn of a change one after the other, and a
/// node that is cleaned up for an outdated ring has to be cleaned up again.
fn all_see_same_ring(observed: &Observed) -> bool {
    let mut rings =
        members(&observed.datacenter).map(|(_, member)| observed.services.get(&member)?.ring_hash.as_deref());
    let first = rings.next().flatten();
    rings.all(|ring| ring == first)
}

fn note(reason: Reason, message: String) -> Note {
    Note { component: Component::Job, reason, message }
}

/// Returns the address of the node's agent, which is the one that the node announces to clients.
fn address(observed: &Observed, service: &NodeService, member: &str) -> Result<String, String> {
    let family = match observed.datacenter.ip_families.first() {
        Some(IpFamily::IPv4) => Some(AddressFamily::V4),
        Some(IpFamily::IPv6) => Some(AddressFamily::V6),
        Some(IpFamily::Other(_)) | None => None,
    };
    let none = PodAddresses::default();
    let pod = observed.pods.get(member).map_or(&none, |pod| &pod.addresses);
    let address_type = &observed.datacenter.clients_broadcast;
    announced_address(address_type, (member, &service.addresses), (member, pod), family)
        .map_err(|error| error.to_string())
}

/// Whether a Job is for the same ring and address as the desired one.
fn has_same_purpose(existing: &CleanupJob, wanted: &Job) -> bool {
    let wanted = CleanupJob::of(wanted);
    existing.ring_hash == wanted.ring_hash && existing.arguments == wanted.arguments
}

fn job(observed: &Observed, rack: &Rack, member: &str, ring: &str, address: &str) -> Job {
    let datacenter = &observed.datacenter;
    let own = map([
        (label::CLUSTER, datacenter.name.as_str()),
        (label::NODE_JOB, member),
        (label::NODE_JOB_TYPE, value::CLEANUP),
    ]);
    let labels = with(datacenter.labels.clone(), own);
    let annotations = with(datacenter.annotations.clone(), map([(annotation::CLEANUP_TOKEN_RING_HASH, ring)]));
    let pod_labels = with(labels.clone(), map([(label::POD_TYPE, value::CLEANUP_JOB)]));
    // By this one the operator finds its Jobs.
    let labels = with(labels, map([(label::MANAGED_BY, value::OPERATOR)]));
    Job {
        metadata: owned_with(datacenter, names::datacenter::cleanup_job(member), labels, annotations.clone()),
        spec: Some(JobSpec {
            manual_selector: Some(false),
            template: PodTemplateSpec {
                metadata: Some(template(pod_labels, annotations)),
                spec: Some(pod_spec(observed, rack, address)),
            },
            ..JobSpec::default()
        }),
        ..Job::default()
    }
}

fn pod_spec(observed: &Observed, rack: &Rack, address: &str) -> PodSpec {
    let Datacenter { image_pull_secrets, name, .. } = &observed.datacenter;
    let placement = &rack.placement;
    let affinity = Affinity {
        node_affinity: placement.node_affinity.clone(),
        pod_affinity: placement.pod_affinity.clone(),
        pod_anti_affinity: placement.pod_anti_affinity.clone(),
    };
    PodSpec {
        affinity: (affinity != Affinity::default()).then_some(affinity),
        tolerations: placement.tolerations.clone().filter(|list| !list.is_empty()),
        image_pull_secrets: (!image_pull_secrets.is_empty()).then(|| image_pull_secrets.clone()),
        // Each attempt has a pod of its own, which stays with its log.
        restart_policy: Some("Never".into()),
        containers: vec![Container {
            name: CONTAINER.into(),
            image: Some(observed.operator_image.clone()),
            image_pull_policy: Some("IfNotPresent".into()),
            command: Some(vec![PROGRAM.into()]),
            args: Some(vec![
                "cleanup-job".into(),
                format!("--manager-auth-config-path={TOKEN_PATH}"),
                format!("--node-address={address}"),
            ]),
            volume_mounts: Some(vec![VolumeMount {
                name: TOKEN_VOLUME.into(),
                mount_path: TOKEN_PATH.into(),
                sub_path: Some(TOKEN_FILE.into()),
                read_only: Some(true),
                ..VolumeMount::default()
            }]),
            ..Container::default()
        }],
        volumes: Some(vec![Volume {
            name: TOKEN_VOLUME.into(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(names::datacenter::agent_auth_token(name)),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        }]),
        ..PodSpec::default()
    }
}
