//! From a plan to parts, in the order in which they are needed.

use std::{collections::BTreeMap, sync::Arc};

use messina_plan::datacenter::{self, Note, Objects, Observed, Plan};
use messina_runtime::{
    apply::{Part, Unwanted, Waiting, Wanted, no_longer_wanted},
    error::Error,
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

/// What leads to Services, or is noted on them.
const AFTER_SERVICES: &[&str] = &[datacenter::Part::Service.name()];

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
        ingresses,
        cleanup_jobs,
    } = &plan.objects;
    let configs = wanted([managed_config, managed_agent_config].into_iter().chain(snitch_configs))?;
    let (ingresses, jobs) = (wanted(ingresses)?, wanted(cleanup_jobs)?);
    let unwanted_configs = unwanted(&observed.config_maps, &configs, plan);
    let unwanted_ingresses = unwanted(&observed.ingresses, &ingresses, plan);
    let unwanted_jobs = unwanted(&observed.jobs, &jobs, plan);
    let part = |part: datacenter::Part, objects| Part {
        name: part.name(),
        objects,
        waits_for: waiting(part, &plan.waiting),
        fault: fault(part, &plan.wrong),
        ..Part::default()
    };
    Ok(vec![
        part(datacenter::Part::ServiceAccount, wanted([service_account])?),
        part(datacenter::Part::RoleBinding, wanted([role_binding])?),
        part(datacenter::Part::AgentToken, wanted(agent_auth_token)?),
        Part { unwanted: unwanted_configs, ..part(datacenter::Part::Config, configs) },
        part(datacenter::Part::Service, wanted([identity_service].into_iter().chain(member_services))?),
        part(datacenter::Part::PodDisruptionBudget, wanted([pod_disruption_budget])?),
        Part { needs: BEFORE_NODES, ..part(datacenter::Part::StatefulSet, wanted(stateful_sets)?) },
        Part { needs: AFTER_SERVICES, unwanted: unwanted_ingresses, ..part(datacenter::Part::Ingress, ingresses) },
        Part { needs: AFTER_SERVICES, unwanted: unwanted_jobs, ..part(datacenter::Part::Job, jobs) },
    ])
}

/// What the datacenter has of a kind, and the plan neither wants nor leaves alone.
fn unwanted<K: Kind>(owned: &BTreeMap<String, K>, wanted: &[Wanted], plan: &Plan) -> Vec<Unwanted> {
    let kind = K::kind(&());
    let is_left_alone = |name: &str| plan.left_alone.iter().any(|left| left.kind == kind && left.name == name);
    let owned: Vec<Arc<K>> = owned.values().cloned().map(Arc::new).collect();
    let mut unwanted = no_longer_wanted(&owned, wanted);
    unwanted.retain(|object| !is_left_alone(&object.key().name));
    unwanted
}

fn wanted<'a, K: Kind>(objects: impl IntoIterator<Item = &'a K>) -> Result<Vec<Wanted>, Error> {
    objects.into_iter().map(Wanted::new).collect()
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use messina_api::names::annotation;
    use messina_plan::datacenter::{plan, validate};
    use serde_json::{Value, json};

    use super::*;

    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    /// A datacenter of one node whose ring has changed, with these Jobs and Ingresses.
    fn observed(jobs: &[&str], ingresses: &[&str]) -> Observed {
        let object = json!({
            "metadata": {"name": "orders", "namespace": "shop", "uid": "the-uid", "generation": 1},
            "spec": {
                "clusterName": "orders", "datacenterName": "dc", "dnsDomains": ["example.com"],
                "scyllaDB": {"image": "scylladb/scylla:2026.2.4"}, "scyllaDBManagerAgent": {"image": "agent:3.12.0"},
                "exposeOptions": {"cql": {"ingress": {}}},
                "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
            },
        });
        let mut observed = Observed::new(validate(&of(object)).unwrap(), "messina:test");
        let mut service = plan(&observed).objects.member_services.remove(0);
        let annotations = service.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::CURRENT_TOKEN_RING_HASH.into(), "new".into());
        observed.services.insert("orders-dc-a-0".into(), service);
        let owned = |name: &str| json!({"metadata": {"name": name, "namespace": "shop", "uid": name}});
        observed.jobs = jobs.iter().map(|name| ((*name).to_owned(), of(owned(name)))).collect();
        observed.ingresses = ingresses.iter().map(|name| ((*name).to_owned(), of(owned(name)))).collect();
        observed
    }

    fn unwanted(observed: &Observed, name: &str) -> Vec<String> {
        let parts = parts(observed, &plan(observed)).unwrap();
        let part = parts.iter().find(|part| part.name == name).unwrap();
        part.unwanted.iter().map(|object| object.key().name.clone()).collect()
    }

    #[test]
    fn what_the_plan_leaves_alone_stays_and_the_rest_goes() {
        // The rack is not there yet, so its Job waits; the node's host ID is not known, so its Ingress does.
        let observed = observed(
            &["cleanup-orders-dc-a-0", "cleanup-orders-dc-gone-0"],
            &["orders-dc-a-0-cql", "orders-dc-gone-0-cql"],
        );
        assert_eq!(unwanted(&observed, "JobController"), ["cleanup-orders-dc-gone-0"]);
        assert_eq!(unwanted(&observed, "IngressController"), ["orders-dc-gone-0-cql"]);
    }

    #[test]
    fn every_part_of_a_plan_is_applied() {
        let observed = observed(&[], &[]);
        let parts = parts(&observed, &plan(&observed)).unwrap();
        let mut applied: Vec<&str> = parts.iter().map(|part| part.name).collect();
        let mut all = datacenter::Part::ALL.map(datacenter::Part::name).to_vec();
        applied.sort_unstable();
        all.sort_unstable();
        assert_eq!(applied, all, "a part that is not applied has no conditions");
    }
}
