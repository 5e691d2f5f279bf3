//! The components of a plan, in the order in which they are applied.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use messina_plan::datacenter::{
    self, ByName, CleanupJob, Component, DesiredObject, Explanation, ObjectKind, Observed,
    ObservedVersion as Observation, Plan, State,
};
use messina_runtime::{
    apply::{ComponentPlan, Deletion, Desired, FieldPatch, ObservedVersion, Progress, no_longer_desired},
    error::Error,
    events,
    queue::ObjectKey,
    store::Kind,
};
use messina_text::Reason;

pub(super) fn components(observed: &Observed, plan: &Plan) -> Result<Vec<ComponentPlan>, Error> {
    let all = plan.objects.in_order().map(|(component, object)| Ok((component, desired(observed, plan, object)?)));
    let (of_components, all): (Vec<_>, Vec<_>) = all.collect::<Result<Vec<_>, Error>>()?.into_iter().unzip();
    let mut surplus = BTreeMap::from([
        (Component::Config, surplus(observed.config_maps(), &all, plan)),
        (Component::Ingress, surplus(observed.ingresses(), &all, plan)),
        (Component::Job, surplus_jobs(observed, plan)),
    ]);
    let mut objects: BTreeMap<Component, Vec<Desired>> = BTreeMap::new();
    for (component, object) in of_components.into_iter().zip(all) {
        objects.entry(component).or_default().push(object);
    }
    let component = |component: Component| {
        let State { progressing: waits, degraded, warning } = plan.state(component);
        let surplus = surplus.remove(&component).unwrap_or_default();
        ComponentPlan {
            name: component.name(),
            needs: needs(component),
            objects: objects.remove(&component).unwrap_or_default(),
            changes: patches(component, observed, plan),
            deletions: [deletions(component, observed, plan), surplus].concat(),
            progressing: waits.map(progressing),
            fault: degraded.map(fault),
            remark: warning.map(progressing),
        }
    };
    Ok(Component::ALL.into_iter().map(component).collect())
}

/// Returns the names of the components that this one needs.
fn needs(component: Component) -> &'static [&'static str] {
    static NEEDS: LazyLock<BTreeMap<Component, Vec<&'static str>>> = LazyLock::new(|| {
        let names = |component: Component| component.needs().iter().map(|need| need.name()).collect();
        Component::ALL.into_iter().map(|component| (component, names(component))).collect()
    });
    NEEDS.get(&component).map(Vec::as_slice).unwrap_or_default()
}

/// Returns deletions of the objects that the datacenter owns and that the plan neither desires nor leaves untouched.
fn surplus<K: Kind>(owned: &ByName<K>, desired: &[Desired], plan: &Plan) -> Vec<Deletion> {
    let kind = K::kind(&());
    let is_untouched = |name: &str| plan.untouched.iter().any(|left| left.kind == kind && left.name == name);
    let owned: Vec<Arc<K>> = owned.shared().cloned().collect();
    let mut deletions = no_longer_desired(&owned, desired);
    deletions.retain(|object| !is_untouched(&object.key().name));
    deletions
}

/// Returns the deletions of Jobs by the same rule.
fn surplus_jobs(observed: &Observed, plan: &Plan) -> Vec<Deletion> {
    let is_untouched = |name: &str| plan.untouched.iter().any(|left| left.kind == "Job" && left.name == name);
    let desired = &plan.objects.cleanup_jobs;
    let is_desired = |name: &str| desired.iter().any(|job| job.metadata.name.as_deref() == Some(name));
    let is_surplus =
        |job: &&CleanupJob| !job.is_being_deleted() && !is_desired(job.name()) && !is_untouched(job.name());
    let jobs = observed.jobs().filter(is_surplus);
    jobs.map(|job| Deletion::new(&known::<Job>(observed, job.name(), job.uid(), None))).collect()
}

fn desired(observed: &Observed, plan: &Plan, object: DesiredObject<'_>) -> Result<Desired, Error> {
    match object {
        DesiredObject::ServiceAccount(object) => Desired::new(object),
        DesiredObject::RoleBinding(object) => Desired::new(object),
        DesiredObject::Secret(object) => Desired::new(object),
        DesiredObject::ConfigMap(object) => Desired::new(object),
        DesiredObject::Service(object) => Desired::new(object),
        DesiredObject::PodDisruptionBudget(object) => Desired::new(object),
        DesiredObject::Ingress(object) => Desired::new(object),
        DesiredObject::Job(object) => Desired::new(object),
        DesiredObject::StatefulSet(object) => {
            let desired = Desired::new(object)?;
            let preconditions = preconditions(observed, plan, ObjectKind::StatefulSet, &desired.key().name);
            Ok(desired.with_preconditions(preconditions).matching_observed_version())
        }
    }
}

fn event(event: Option<&(Reason, String)>) -> Option<events::Note> {
    event.map(|(reason, message)| events::Note::normal(*reason, message))
}

/// Returns the objects that must still have their observed versions when this one is written.
fn preconditions(observed: &Observed, plan: &Plan, kind: ObjectKind, name: &str) -> Vec<ObservedVersion> {
    let observed_version = |seen: &Observation| {
        let namespace = Some(observed.datacenter().namespace.clone());
        let (key, version) = (ObjectKey { namespace, name: seen.name.clone() }, seen.version.clone());
        match seen.kind {
            ObjectKind::Service => ObservedVersion::new::<Service>(key, version),
            ObjectKind::StatefulSet => ObservedVersion::new::<StatefulSet>(key, version),
            ObjectKind::Pod => ObservedVersion::new::<Pod>(key, version),
            ObjectKind::PersistentVolumeClaim => ObservedVersion::new::<PersistentVolumeClaim>(key, version),
        }
    };
    plan.preconditions.get(&(kind, name.to_owned())).into_iter().flatten().map(observed_version).collect()
}

/// Returns an object with nothing but its namespace, name, UID and version.
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

fn patches(component: Component, observed: &Observed, plan: &Plan) -> Vec<FieldPatch> {
    let of_component = plan.changes.iter().filter(|change| change.component == component);
    let patch = |change: &datacenter::FieldPatch| {
        fn patch<K: Kind + Default>(observed: &Observed, change: &datacenter::FieldPatch) -> FieldPatch {
            let object: K = known(observed, &change.name, &change.uid, Some(&change.version));
            FieldPatch::new(&object, change.patch.clone(), event(change.event.as_ref()))
        }
        let patch = match change.kind {
            ObjectKind::Service => patch::<Service>(observed, change),
            ObjectKind::StatefulSet => patch::<StatefulSet>(observed, change),
            ObjectKind::Pod => patch::<Pod>(observed, change),
            ObjectKind::PersistentVolumeClaim => patch::<PersistentVolumeClaim>(observed, change),
        };
        patch.with_preconditions(preconditions(observed, plan, change.kind, &change.name))
    };
    of_component.map(patch).collect()
}

fn deletions(component: Component, observed: &Observed, plan: &Plan) -> Vec<Deletion> {
    let of_component = plan.deletions.iter().filter(|deletion| deletion.component == component);
    let to_write = |deletion: &datacenter::Deletion| {
        let (name, uid) = (&deletion.name, &deletion.uid);
        let written = match deletion.kind {
            ObjectKind::Service => Deletion::new(&known::<Service>(observed, name, uid, None)),
            ObjectKind::StatefulSet => Deletion::new(&known::<StatefulSet>(observed, name, uid, None)),
            ObjectKind::Pod => Deletion::new(&known::<Pod>(observed, name, uid, None)),
            ObjectKind::PersistentVolumeClaim => {
                Deletion::new(&known::<PersistentVolumeClaim>(observed, name, uid, None))
            }
        };
        let written = written.with_resource_version(deletion.version.clone()).orphaning(deletion.orphans);
        let written = written.with_preconditions(preconditions(observed, plan, deletion.kind, name));
        written.with_event(event(deletion.event.as_ref()))
    };
    of_component.map(to_write).collect()
}

fn progressing(Explanation { reason, message }: Explanation) -> Progress {
    Progress { reason, message }
}

fn fault(Explanation { reason, message }: Explanation) -> Error {
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

    fn deletions(observed: &Observed, name: &str) -> Vec<String> {
        let components = components(observed, &plan(observed)).unwrap();
        let component = components.iter().find(|component| component.name == name).unwrap();
        component.deletions.iter().map(|object| object.key().name.clone()).collect()
    }

    #[test]
    fn untouched_objects_stay_and_surplus_objects_are_deleted() {
        // The rack's StatefulSet does not exist yet, so its Job waits. The node's host ID is unknown, so its Ingress
        // waits.
        let observed = with_jobs(
            &["cleanup-orders-dc-a-0", "cleanup-orders-dc-gone-0"],
            &["orders-dc-a-0-cql", "orders-dc-gone-0-cql"],
        );
        assert_eq!(deletions(&observed, "JobController"), ["cleanup-orders-dc-gone-0"]);
        assert_eq!(deletions(&observed, "IngressController"), ["orders-dc-gone-0-cql"]);
    }

    #[test]
    fn every_component_of_a_plan_is_applied() {
        let observed = with_jobs(&[], &[]);
        let components = components(&observed, &plan(&observed)).unwrap();
        let mut applied: Vec<&str> = components.iter().map(|component| component.name).collect();
        let mut all = Component::ALL.map(Component::name).to_vec();
        applied.sort_unstable();
        all.sort_unstable();
        assert_eq!(applied, all, "a component that is not applied has no conditions");
    }

    fn names<'a>(keys: impl Iterator<Item = &'a messina_runtime::queue::ObjectKey>) -> Vec<&'a str> {
        keys.map(|key| key.name.as_str()).collect()
    }

    fn planned(observed: &Observed) -> Vec<ComponentPlan> {
        components(observed, &datacenter::plan(observed)).unwrap()
    }

    #[test]
    fn stateful_sets_come_after_what_their_pods_need() {
        let mut cached = cached();
        settle(&mut cached, KeyKind::default());
        let components = planned(&observe(&cached));
        let nodes = components.iter().position(|component| component.name == Component::StatefulSet.name()).unwrap();
        assert_eq!(names(components[nodes].objects.iter().map(Desired::key)), ["orders-dc-a"]);
        let before: Vec<&str> = components[..nodes].iter().map(|component| component.name).collect();
        assert_eq!(before, components[nodes].needs);
        // The components after that are for nodes that exist.
        let after: Vec<&str> = components[nodes + 1..].iter().map(|component| component.name).collect();
        assert_eq!(after, ["StorageController", "IngressController", "JobController"]);
    }

    #[test]
    fn certificate_authorities_come_before_what_they_sign() {
        let mut cached = cached();
        settle(&mut cached, KeyKind::default());
        let components = planned(&observe(&cached));
        let component = components.iter().find(|component| component.name == Component::Certificates.name()).unwrap();
        let expected = [
            "orders-local-client-ca",
            "orders-local-client-ca",
            "orders-local-user-admin",
            "orders-local-serving-ca",
            "orders-local-serving-ca",
            "orders-local-serving-certs",
            "orders-local-cql-connection-configs-admin",
        ];
        assert_eq!(names(component.objects.iter().map(Desired::key)), expected);
    }

    /// CA bundles are ConfigMaps of the datacenter, like its configuration.
    #[test]
    fn ca_bundles_are_not_deleted_with_old_configuration() {
        let mut cached = cached();
        settle(&mut cached, KeyKind::default());
        let mut old = cached.config_maps["orders-local-client-ca"].clone();
        old.metadata.name = Some("orders-old-snitch-config".into());
        cached.config_maps.insert(old);
        let deleted = |cached: &Cached| {
            let components = planned(&observe(cached));
            let deleted =
                components.iter().flat_map(|component| &component.deletions).map(|object| object.key().name.clone());
            deleted.collect::<Vec<_>>()
        };
        assert_eq!(deleted(&cached), ["orders-old-snitch-config"]);
        cached.secrets.remove("orders-local-serving-ca");
        assert_eq!(deleted(&cached), ["orders-old-snitch-config"], "while the CA is recreated");
        cached.gates = datacenter::Gates::default();
        assert_eq!(deleted(&cached), ["orders-old-snitch-config"], "when certificates are no longer issued");
    }
}
