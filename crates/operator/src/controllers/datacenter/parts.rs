//! From a plan to parts, in the order in which they are needed.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim};
use messina_plan::datacenter::{self, Kind as Changed, Note, Objects, Observed, Plan};
use messina_runtime::{
    apply::{Amendment, Part, Unwanted, Waiting, Wanted, no_longer_wanted},
    error::Error,
    events,
    store::Kind,
};

/// What the pods of a rack need when they start.
const BEFORE_NODES: &[&str] = &[
    datacenter::Part::ServiceAccount.name(),
    datacenter::Part::RoleBinding.name(),
    datacenter::Part::AgentToken.name(),
    datacenter::Part::Config.name(),
    datacenter::Part::Service.name(),
    datacenter::Part::PodDisruptionBudget.name(),
];

pub(super) fn parts(observed: &Observed, plan: &Plan) -> Result<Vec<Part>, Error> {
    // Named one by one, so that none is forgotten.
    let Objects {
        service_account,
        role_binding,
        agent_auth_token,
        managed_config,
        managed_agent_config,
        snitch_configs,
        pod_disruption_budget,
        identity_service,
        member_services,
        stateful_sets,
    } = &plan.objects;
    let configs = wanted([managed_config, managed_agent_config].into_iter().chain(snitch_configs))?;
    let owned: Vec<Arc<ConfigMap>> = observed.config_maps.values().cloned().map(Arc::new).collect();
    let is_left_alone = |name: &str| plan.left_alone.iter().any(|left| left.kind == "ConfigMap" && left.name == name);
    let mut unwanted = no_longer_wanted(&owned, &configs);
    unwanted.retain(|object| !is_left_alone(&object.key().name));
    let part = |part: datacenter::Part, objects| Part {
        name: part.name(),
        objects,
        changes: changes(part, observed, plan),
        unwanted: deletions(part, observed, plan),
        waits_for: waiting(part, &plan.waiting),
        fault: fault(part, &plan.wrong),
        ..Part::default()
    };
    Ok(vec![
        part(datacenter::Part::ServiceAccount, wanted([service_account])?),
        part(datacenter::Part::RoleBinding, wanted([role_binding])?),
        part(datacenter::Part::AgentToken, wanted(agent_auth_token)?),
        Part { unwanted, ..part(datacenter::Part::Config, configs) },
        part(datacenter::Part::Service, wanted([identity_service].into_iter().chain(member_services))?),
        part(datacenter::Part::PodDisruptionBudget, wanted([pod_disruption_budget])?),
        Part { needs: BEFORE_NODES, ..part(datacenter::Part::StatefulSet, wanted(stateful_sets)?) },
    ])
}

fn wanted<'a, K: Kind>(objects: impl IntoIterator<Item = &'a K>) -> Result<Vec<Wanted>, Error> {
    objects.into_iter().map(Wanted::new).collect()
}

/// The part that changes and deletions of a kind belong to: StatefulSets get fewer nodes when all else is in place.
fn part_of(kind: Changed) -> datacenter::Part {
    match kind {
        Changed::StatefulSet => datacenter::Part::StatefulSet,
        Changed::Service | Changed::Pod | Changed::PersistentVolumeClaim => datacenter::Part::Service,
    }
}

fn event(event: Option<&(&'static str, String)>) -> Option<events::Note> {
    event.map(|(reason, message)| events::Note::normal(*reason, message))
}

fn claim(observed: &Observed, name: &str) -> Option<PersistentVolumeClaim> {
    let metadata = observed.claims.get(name)?.clone();
    Some(PersistentVolumeClaim { metadata, ..PersistentVolumeClaim::default() })
}

/// What was observed is what is changed, so an object that was not is none of these.
fn changes(part: datacenter::Part, observed: &Observed, plan: &Plan) -> Vec<Amendment> {
    let of_part = plan.changes.iter().filter(|change| part_of(change.kind) == part);
    let amendment = |change: &datacenter::Change| {
        let (name, patch, event) = (&change.name, change.patch.clone(), event(change.event.as_ref()));
        match change.kind {
            Changed::Service => Some(Amendment::new(observed.services.get(name)?, patch, event)),
            Changed::StatefulSet => Some(Amendment::new(observed.stateful_sets.get(name)?, patch, event)),
            Changed::Pod => Some(Amendment::new(observed.pods.get(name)?, patch, event)),
            Changed::PersistentVolumeClaim => Some(Amendment::new(&claim(observed, name)?, patch, event)),
        }
    };
    of_part.filter_map(amendment).collect()
}

fn deletions(part: datacenter::Part, observed: &Observed, plan: &Plan) -> Vec<Unwanted> {
    let of_part = plan.deletions.iter().filter(|deletion| part_of(deletion.kind) == part);
    let unwanted = |deletion: &datacenter::Deletion| {
        let name = &deletion.name;
        let unwanted = match deletion.kind {
            Changed::Service => Unwanted::new(observed.services.get(name)?),
            Changed::StatefulSet => Unwanted::new(observed.stateful_sets.get(name)?),
            Changed::Pod => Unwanted::new(observed.pods.get(name)?),
            Changed::PersistentVolumeClaim => Unwanted::new(&claim(observed, name)?),
        };
        Some(unwanted.telling(event(deletion.event.as_ref())))
    };
    of_part.filter_map(unwanted).collect()
}

fn of_part(part: datacenter::Part, notes: &[Note]) -> Option<(&'static str, String)> {
    let notes: Vec<&Note> = notes.iter().filter(|note| note.part == part).collect();
    let messages: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
    notes.first().map(|first| (first.reason, messages.join("\n")))
}

fn waiting(part: datacenter::Part, notes: &[Note]) -> Option<Waiting> {
    of_part(part, notes).map(|(reason, message)| Waiting { reason, message })
}

fn fault(part: datacenter::Part, notes: &[Note]) -> Option<Error> {
    of_part(part, notes).map(|(reason, message)| Error::Invalid { reason, message })
}
