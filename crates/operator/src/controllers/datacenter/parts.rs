//! From a plan to parts, in the order in which they are needed.

use std::sync::Arc;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Pod, Secret, Service},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use messina_plan::datacenter::{
    self, ByName, CertificateChain, CleanupJob, Kind as Changed, Objects, Observed, Plan, Seen, State, Told,
};
use messina_runtime::{
    apply::{Amendment, AsSeen, Part, Unwanted, Waiting, Wanted, no_longer_wanted},
    error::Error,
    events,
    queue::ObjectKey,
    store::Kind,
};

/// What the pods of a rack need when they start.
const BEFORE_NODES: &[&str] = &[
    datacenter::Part::ServiceAccount.name(),
    datacenter::Part::RoleBinding.name(),
    datacenter::Part::AgentToken.name(),
    datacenter::Part::Certificates.name(),
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
        certificates,
        cql_connection_configs,
        stateful_sets,
        ingresses,
        cleanup_jobs,
    } = &plan.objects;
    let configs = wanted([managed_config, managed_agent_config].into_iter().chain(snitch_configs))?;
    let certificates = certificate_objects(certificates, cql_connection_configs.as_ref())?;
    let (ingresses, jobs) = (wanted(ingresses)?, wanted(cleanup_jobs)?);
    let stateful_sets = wanted(stateful_sets)?.into_iter().map(|one| {
        let rests_on = rests_on(observed, plan, Changed::StatefulSet, &one.key().name);
        one.resting_on(rests_on).as_seen()
    });
    let stateful_sets = stateful_sets.collect();
    // The authorities that are trusted are ConfigMaps, too.
    let unwanted_configs = unwanted(observed.config_maps(), &[configs.as_slice(), &certificates].concat(), plan);
    let unwanted_ingresses = unwanted(observed.ingresses(), &ingresses, plan);
    let unwanted_jobs = unwanted_jobs(observed, &jobs, plan);
    let part = |part: datacenter::Part, objects| {
        let State { waiting: waits, wrong, remark } = plan.state(part);
        Part {
            name: part.name(),
            objects,
            changes: changes(part, observed, plan),
            unwanted: deletions(part, observed, plan),
            waits_for: waits.map(waiting),
            fault: wrong.map(fault),
            remark: remark.map(waiting),
            ..Part::default()
        }
    };
    Ok(vec![
        part(datacenter::Part::ServiceAccount, wanted([service_account])?),
        part(datacenter::Part::RoleBinding, wanted([role_binding])?),
        part(datacenter::Part::AgentToken, wanted(agent_auth_token)?),
        part(datacenter::Part::Certificates, certificates),
        Part { unwanted: unwanted_configs, ..part(datacenter::Part::Config, configs) },
        part(datacenter::Part::Service, wanted([identity_service].into_iter().chain(member_services))?),
        part(datacenter::Part::PodDisruptionBudget, wanted([pod_disruption_budget])?),
        Part { needs: BEFORE_NODES, ..part(datacenter::Part::StatefulSet, stateful_sets) },
        part(datacenter::Part::Storage, Vec::new()),
        Part { needs: AFTER_SERVICES, unwanted: unwanted_ingresses, ..part(datacenter::Part::Ingress, ingresses) },
        Part { needs: AFTER_SERVICES, unwanted: unwanted_jobs, ..part(datacenter::Part::Job, jobs) },
    ])
}

/// What the datacenter has of a kind, and the plan neither wants nor leaves alone.
fn unwanted<K: Kind>(owned: &ByName<K>, wanted: &[Wanted], plan: &Plan) -> Vec<Unwanted> {
    let kind = K::kind(&());
    let is_left_alone = |name: &str| plan.left_alone.iter().any(|left| left.kind == kind && left.name == name);
    let owned: Vec<Arc<K>> = owned.shared().cloned().collect();
    let mut unwanted = no_longer_wanted(&owned, wanted);
    unwanted.retain(|object| !is_left_alone(&object.key().name));
    unwanted
}

/// The same for Jobs.
fn unwanted_jobs(observed: &Observed, wanted: &[Wanted], plan: &Plan) -> Vec<Unwanted> {
    let is_left_alone = |name: &str| plan.left_alone.iter().any(|left| left.kind == "Job" && left.name == name);
    let is_wanted = |name: &str| wanted.iter().any(|wanted| wanted.key().name == name);
    let is_unwanted =
        |job: &&CleanupJob| !job.is_being_deleted() && !is_wanted(job.name()) && !is_left_alone(job.name());
    let jobs = observed.jobs().filter(is_unwanted);
    jobs.map(|job| Unwanted::new(&known::<Job>(observed, job.name(), job.uid(), None))).collect()
}

/// Each authority before what it signs, and all of them before the files that tell clients of them.
fn certificate_objects(chains: &[CertificateChain], configs: Option<&Secret>) -> Result<Vec<Wanted>, Error> {
    let mut objects = Vec::new();
    for CertificateChain { authority, bundle, former_bundle, certificate } in chains {
        objects.extend(wanted(authority)?);
        objects.extend(wanted(bundle)?);
        objects.extend(wanted(former_bundle)?);
        objects.extend(wanted(certificate)?);
    }
    objects.extend(wanted(configs)?);
    Ok(objects)
}

fn wanted<'a, K: Kind>(objects: impl IntoIterator<Item = &'a K>) -> Result<Vec<Wanted>, Error> {
    objects.into_iter().map(Wanted::new).collect()
}

fn event(event: Option<&(&'static str, String)>) -> Option<events::Note> {
    event.map(|(reason, message)| events::Note::normal(*reason, message))
}

/// What has to be as it was observed when this is written.
fn rests_on(observed: &Observed, plan: &Plan, kind: Changed, name: &str) -> Vec<AsSeen> {
    let as_seen = |seen: &Seen| {
        let namespace = Some(observed.datacenter().namespace.clone());
        let (key, version) = (ObjectKey { namespace, name: seen.name.clone() }, seen.version.clone());
        match seen.kind {
            Changed::Service => AsSeen::new::<Service>(key, version),
            Changed::StatefulSet => AsSeen::new::<StatefulSet>(key, version),
            Changed::Pod => AsSeen::new::<Pod>(key, version),
            Changed::PersistentVolumeClaim => AsSeen::new::<PersistentVolumeClaim>(key, version),
        }
    };
    plan.rests_on.get(&(kind, name.to_owned())).into_iter().flatten().map(as_seen).collect()
}

/// An object of which no more is known than which one it is, and at which version.
fn known<K: Kind + Default>(observed: &Observed, name: &str, uid: &str, version: Option<&str>) -> K {
    let mut object = K::default();
    *object.meta_mut() = ObjectMeta {
        namespace: Some(observed.datacenter().namespace.clone()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        resource_version: version.map(ToOwned::to_owned),
        ..ObjectMeta::default()
    };
    object
}

fn changes(part: datacenter::Part, observed: &Observed, plan: &Plan) -> Vec<Amendment> {
    let of_part = plan.changes.iter().filter(|change| change.part == part);
    let amendment = |change: &datacenter::Change| {
        fn amendment<K: Kind + Default>(observed: &Observed, change: &datacenter::Change) -> Amendment {
            let object: K = known(observed, &change.name, &change.uid, Some(&change.version));
            Amendment::new(&object, change.patch.clone(), event(change.event.as_ref()))
        }
        let amendment = match change.kind {
            Changed::Service => amendment::<Service>(observed, change),
            Changed::StatefulSet => amendment::<StatefulSet>(observed, change),
            Changed::Pod => amendment::<Pod>(observed, change),
            Changed::PersistentVolumeClaim => amendment::<PersistentVolumeClaim>(observed, change),
        };
        amendment.resting_on(rests_on(observed, plan, change.kind, &change.name))
    };
    of_part.map(amendment).collect()
}

fn deletions(part: datacenter::Part, observed: &Observed, plan: &Plan) -> Vec<Unwanted> {
    let of_part = plan.deletions.iter().filter(|deletion| deletion.part == part);
    let unwanted = |deletion: &datacenter::Deletion| {
        let (name, uid) = (&deletion.name, &deletion.uid);
        let unwanted = match deletion.kind {
            Changed::Service => Unwanted::new(&known::<Service>(observed, name, uid, None)),
            Changed::StatefulSet => Unwanted::new(&known::<StatefulSet>(observed, name, uid, None)),
            Changed::Pod => Unwanted::new(&known::<Pod>(observed, name, uid, None)),
            Changed::PersistentVolumeClaim => Unwanted::new(&known::<PersistentVolumeClaim>(observed, name, uid, None)),
        };
        let unwanted = unwanted.of_version(deletion.version.clone()).orphaning(deletion.orphans);
        let unwanted = unwanted.resting_on(rests_on(observed, plan, deletion.kind, name));
        unwanted.telling(event(deletion.event.as_ref()))
    };
    of_part.map(unwanted).collect()
}

fn waiting(Told { reason, message }: Told) -> Waiting {
    Waiting { reason, message }
}

fn fault(Told { reason, message }: Told) -> Error {
    Error::Invalid { reason, message }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use messina_api::names::annotation;
    use messina_plan::datacenter::{Cached, plan, validate};
    use serde_json::{Value, json};

    use super::*;
    use crate::certificates::{
        KeyKind,
        tests::{cached, observe, settle},
    };

    fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    /// A datacenter of one node whose ring has changed, with these Jobs and Ingresses.
    fn with_jobs(jobs: &[&str], ingresses: &[&str]) -> Observed {
        let object = json!({
            "metadata": {"name": "orders", "namespace": "shop", "uid": "the-uid", "generation": 1},
            "spec": {
                "clusterName": "orders", "datacenterName": "dc", "dnsDomains": ["example.com"],
                "scyllaDB": {"image": "scylladb/scylla:2026.2.4"}, "scyllaDBManagerAgent": {"image": "agent:3.12.0"},
                "exposeOptions": {"cql": {"ingress": {}}},
                "racks": [{"name": "a", "nodes": 1, "scyllaDB": {"storage": {"capacity": "1Gi"}}}],
            },
        });
        let mut cached = Cached::new(validate(&of(object)).unwrap(), "messina:test");
        let mut service = plan(&observe(&cached)).objects.member_services.remove(0);
        let annotations = service.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::CURRENT_TOKEN_RING_HASH.into(), "new".into());
        cached.services.insert(service);
        let owned = |name: &str| json!({"metadata": {"name": name, "namespace": "shop", "uid": name}});
        cached.jobs.extend(jobs.iter().map(|name| of(owned(name))));
        cached.ingresses.extend(ingresses.iter().map(|name| of(owned(name))));
        observe(&cached)
    }

    fn unwanted(observed: &Observed, name: &str) -> Vec<String> {
        let parts = parts(observed, &plan(observed)).unwrap();
        let part = parts.iter().find(|part| part.name == name).unwrap();
        part.unwanted.iter().map(|object| object.key().name.clone()).collect()
    }

    #[test]
    fn what_the_plan_leaves_alone_stays_and_the_rest_goes() {
        // The rack is not there yet, so its Job waits; the node's host ID is not known, so its Ingress does.
        let observed = with_jobs(
            &["cleanup-orders-dc-a-0", "cleanup-orders-dc-gone-0"],
            &["orders-dc-a-0-cql", "orders-dc-gone-0-cql"],
        );
        assert_eq!(unwanted(&observed, "JobController"), ["cleanup-orders-dc-gone-0"]);
        assert_eq!(unwanted(&observed, "IngressController"), ["orders-dc-gone-0-cql"]);
    }

    #[test]
    fn every_part_of_a_plan_is_applied() {
        let observed = with_jobs(&[], &[]);
        let parts = parts(&observed, &plan(&observed)).unwrap();
        let mut applied: Vec<&str> = parts.iter().map(|part| part.name).collect();
        let mut all = datacenter::Part::ALL.map(datacenter::Part::name).to_vec();
        applied.sort_unstable();
        all.sort_unstable();
        assert_eq!(applied, all, "a part that is not applied has no conditions");
    }

    fn names<'a>(keys: impl Iterator<Item = &'a messina_runtime::queue::ObjectKey>) -> Vec<&'a str> {
        keys.map(|key| key.name.as_str()).collect()
    }

    fn planned(observed: &Observed) -> Vec<Part> {
        parts(observed, &datacenter::plan(observed)).unwrap()
    }

    #[test]
    fn nodes_come_after_all_that_they_need() {
        let mut cached = cached();
        settle(&mut cached, KeyKind::default());
        let parts = planned(&observe(&cached));
        let nodes = parts.iter().position(|part| part.name == datacenter::Part::StatefulSet.name()).unwrap();
        assert_eq!(names(parts[nodes].objects.iter().map(Wanted::key)), ["orders-dc-a"]);
        let before: Vec<&str> = parts[..nodes].iter().map(|part| part.name).collect();
        assert_eq!(before, BEFORE_NODES);
        // What comes after is for nodes that are there.
        let after: Vec<&str> = parts[nodes + 1..].iter().map(|part| part.name).collect();
        assert_eq!(after, ["StorageController", "IngressController", "JobController"]);
    }

    #[test]
    fn authorities_come_before_what_they_sign() {
        let mut cached = cached();
        settle(&mut cached, KeyKind::default());
        let parts = planned(&observe(&cached));
        let part = parts.iter().find(|part| part.name == datacenter::Part::Certificates.name()).unwrap();
        let expected = [
            "orders-local-client-ca",
            "orders-local-client-ca",
            "orders-local-user-admin",
            "orders-local-serving-ca",
            "orders-local-serving-ca",
            "orders-local-serving-certs",
            "orders-local-cql-connection-configs-admin",
        ];
        assert_eq!(names(part.objects.iter().map(Wanted::key)), expected);
    }

    /// They are ConfigMaps of the datacenter, as its configuration is.
    #[test]
    fn authorities_that_are_trusted_are_not_given_up_with_old_configuration() {
        let mut cached = cached();
        settle(&mut cached, KeyKind::default());
        let mut old = cached.config_maps["orders-local-client-ca"].clone();
        old.metadata.name = Some("orders-old-snitch-config".into());
        cached.config_maps.insert(old);
        let given_up = |cached: &Cached| {
            let parts = planned(&observe(cached));
            let given_up = parts.iter().flat_map(|part| &part.unwanted).map(|object| object.key().name.clone());
            given_up.collect::<Vec<_>>()
        };
        assert_eq!(given_up(&cached), ["orders-old-snitch-config"]);
        cached.secrets.remove("orders-local-serving-ca");
        assert_eq!(given_up(&cached), ["orders-old-snitch-config"], "while the authority is made anew");
        cached.gates = datacenter::Gates::default();
        assert_eq!(given_up(&cached), ["orders-old-snitch-config"], "when certificates are no longer made");
    }
}
