//! Decisions for a ScyllaDBDatacenter: which objects it needs, in which order its racks change, and its status.
//!
//! A node is removed only by `topology`, when the other nodes confirm that it has left the ring. Nothing else reduces
//! the replicas of a StatefulSet, or deletes a StatefulSet, a Service, a pod or a claim of a node for good.

pub mod certificates;
mod layout;
mod model;
mod objects;
mod racks;
pub mod reasons;
mod rollout;
mod state;
mod status;
mod topology;
mod validate;

pub(crate) use self::validate::options::may_start_together;
pub use self::{
    layout::NODE_EXPORTER_IMAGE,
    model::{
        by_name::ByName,
        cached,
        component::Component,
        facts::{job::CleanupJob, volume::is_without_kubernetes_node},
        observed::{Cached, Observed, Turn, UserObjects},
        optional_kind::OptionalKind,
        plan::{
            CertificateChain, Deletion, DesiredObject, FieldPatch, Note, ObjectKind, Objects, ObservedVersion, Plan,
            Preconditions, RolloutState, Untouched,
        },
        settings::{Gates, ProbePeriod},
        spec::{Alternator, Datacenter, InvalidField, Rack, Storage, USUAL_AGENT_SECRET, USUAL_CONFIG_MAP},
    },
    rollout::notes::{OTHER_CHANGES, USER_OBJECTS},
    state::{stateful_set::is_rolled_out, takeover},
    status::{
        Report, State,
        operations::{Ending, NodeState, Operation, finished_cleanup, finished_operation, node_states},
        refusal, report,
    },
    validate::{
        identity::{cannot_adopt, change_of_identity},
        validate, validate_allowing,
    },
};
use self::{
    objects::{access, config, ingresses, services, token},
    rollout::storage,
    state::{preconditions, user_objects},
    status::permissions,
    topology::{cleanup, recovery, steps::Topology},
};
use crate::datacenter::state::Current;
pub use crate::outcome::Explanation;

/// Returns a hash for each rack of the settings of the user that its nodes read, to tell versions of them apart.
pub fn version_of_settings(observed: &Observed) -> Vec<String> {
    observed.datacenter.racks.iter().map(|rack| config::inputs(observed, rack).all).collect()
}

/// Returns the progress of a rolling update.
pub fn rollout_state(observed: &Observed) -> RolloutState {
    racks::racks(&Current::new(observed)).rollout_state()
}

/// Decides the desired state, and what the operator does next to reach it.
pub fn plan(observed: &Observed) -> Plan {
    let current = &Current::new(observed);
    let datacenter = &observed.datacenter;
    let token = token::token(observed);
    let racks = racks::racks(current);
    let (mut host_ids, are_nodes_named) = recovery::annotate_services(current);
    let topology = Topology { are_nodes_named, ..topology::topology(current, &racks) };
    host_ids.retain(|one| topology.changes.iter().all(|other| other.name != one.name));
    let services = services::services(current, &topology.services_to_delete);
    let certificates = certificates::certificates(current);
    let mut rollout = rollout::rollout(current, racks, &topology);
    if certificates.are_incomplete {
        rollout.postpone(observed, reasons::WAITING_FOR_CERTIFICATES, "the serving certificates of its nodes");
    }
    let missing = user_objects::missing(observed);
    if !missing.is_empty() {
        rollout.postpone(observed, reasons::WAITING_FOR_SETTINGS, USER_OBJECTS);
    }
    let mut expansion = storage::expand_storage(current, &topology, &rollout);
    let mut recovery = recovery::recovery(current);
    if !token.degraded.is_empty() {
        // A StatefulSet that is deleted would not be recreated.
        expansion.deletions.clear();
    }
    if !token.degraded.is_empty() || certificates.are_incomplete || !missing.is_empty() {
        recovery = recovery::Recovery::default();
    }
    if !recovery.deletions.is_empty() {
        expansion.deletions.clear();
    }
    let claim_annotations = recovery::annotate_claims(current, &topology.changes);
    expansion.changes.retain(|one| claim_annotations.iter().all(|other| other.name != one.name));
    let ingresses = ingresses::ingresses(observed);
    // ScyllaDB refuses to clean up while nodes join or leave. A wrong label does not block cleanup, and neither does a
    // rack that is removed: its last node may refuse to leave, and is requested again only when the others are cleaned
    // up.
    let is_of_nodes =
        |note: &Note| note.component == Component::StatefulSet && note.reason != reasons::DECOMMISSION_REFUSED;
    let is_settled = !topology.is_leaving
        && topology.progressing.is_empty()
        && !topology.degraded.iter().any(is_of_nodes)
        && rollout.progressing.iter().all(|note| note.reason == reasons::REMOVING_RACK)
        && rollout.degraded.is_empty();
    let cleanup = cleanup::cleanup(observed, is_settled);
    let mut preconditions = topology.preconditions;
    for (deleted, seen) in recovery.preconditions {
        preconditions.entry(deleted).or_default().extend(seen);
    }
    for (written, seen) in preconditions::for_stateful_sets(observed, &rollout.stateful_sets, &rollout.restarting) {
        preconditions.entry(written).or_default().extend(seen);
    }
    Plan {
        objects: Objects {
            service_account: access::service_account(datacenter),
            role_binding: access::role_binding(datacenter),
            agent_auth_token: token.secret,
            managed_config: config::managed_config(datacenter, observed.gates),
            managed_agent_config: config::managed_agent_config(datacenter),
            snitch_configs: datacenter.racks.iter().map(|rack| config::snitch_config(datacenter, rack)).collect(),
            pod_disruption_budget: access::pod_disruption_budget(datacenter),
            identity_service: services.identity,
            member_services: services.members,
            certificates: certificates.chains,
            cql_connection_configs: certificates.connection_configs,
            stateful_sets: rollout.stateful_sets,
            ingresses: ingresses.ingresses,
            cleanup_jobs: cleanup.jobs,
        },
        changes: [topology.changes, host_ids, claim_annotations, expansion.changes].concat(),
        deletions: [topology.deletions, expansion.deletions, rollout.deletions, recovery.deletions].concat(),
        preconditions,
        untouched: [
            rollout.untouched,
            services.untouched,
            config::untouched(observed),
            certificates.untouched,
            ingresses.untouched,
            cleanup.untouched,
        ]
        .concat(),
        progressing: [
            token.progressing,
            missing,
            certificates.progressing,
            topology.progressing,
            rollout.progressing,
            recovery.progressing,
            expansion.progressing,
            ingresses.progressing,
            cleanup.progressing,
        ]
        .concat(),
        degraded: [
            token.degraded,
            certificates.degraded,
            topology.degraded,
            rollout.degraded,
            recovery.degraded,
            expansion.degraded,
            cleanup.degraded,
        ]
        .concat(),
        warnings: [permissions::warnings(&observed.unreadable_kinds), cleanup.warnings].concat(),
        requeue_at: certificates.requeue_at,
    }
}
