//! Objects that are invalid, orphaned, or owned by others.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        core::v1::{ConfigMap, Secret, Service, ServiceAccount},
        events::v1::Event,
        policy::v1::PodDisruptionBudget,
        rbac::v1::RoleBinding,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy},
    core::NamespaceResourceScope,
};
use messina_api::{
    names::{
        annotation,
        datacenter::{identity_service, managed_config, member_service_account},
    },
    scylla::v1alpha1::ScyllaDBDatacenter,
};
use messina_e2e::{in_a_namespace, light_kubeconfig};
use messina_testbed::{demo, harness};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Own, apply, await_created, await_that, change, condition, datacenter, operator_process::Operator};

const UNREADABLE: &str = "messina_cache_unreadable_objects{resource=\"scylladbdatacenters\"}";

/// Installs the definitions, one of them without validation.
async fn install_lax_definitions(own: &Own) {
    demo::install_definitions(&own.client).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(own.client.clone());
    let name = "scylladbdatacenters.scylla.scylladb.com";
    let mut definition = definitions.get(name).await.unwrap();
    let anything = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    definition.spec.versions[0].schema = Some(serde_json::from_value(anything).unwrap());
    // Patched, not replaced: the API server writes its status at the same time.
    let versions = Patch::Merge(json!({"spec": {"versions": definition.spec.versions}}));
    definitions.patch(name, &PatchParams::default(), &versions).await.unwrap();
    // The API server takes a moment to use the new schema.
    let probe = with_nodes("probe", json!("many"));
    await_that("the definition to accept any object", async || {
        harness::apply(&own.client, &probe.to_string(), Some("default"))
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test]
async fn missing_cleanup_without_agent_is_reported() {
    in_a_namespace("days-agent", async |client, namespace| {
        let mut without = datacenter("dc");
        without["spec"].as_object_mut().unwrap().remove("scyllaDBManagerAgent");
        apply(client, namespace, &without).await;
        let _operator = Operator::start(&light_kubeconfig(), namespace, &[]);
        let reported =
            condition(client, namespace, "dc", "JobControllerProgressing", |one| one.status == "False").await;
        assert_eq!(reported.reason, "CleanupNotAvailable");
        assert!(reported.message.contains("nodetool cleanup"), "{}", reported.message);
    })
    .await;
}

fn with_nodes(name: &str, nodes: Value) -> Value {
    let mut datacenter = datacenter(name);
    datacenter["spec"]["racks"][0]["nodes"] = nodes;
    datacenter
}

#[tokio::test]
async fn unreadable_object_is_reported_and_blocks_no_other() {
    let Some(own) = Own::up("days-unreadable").await else { return };
    install_lax_definitions(&own).await;
    let client = &own.client;
    let namespace = harness::namespace(client, "days").await.unwrap();
    apply(client, &namespace, &with_nodes("odd", json!("many"))).await;
    apply(client, &namespace, &datacenter("first")).await;
    let mut operator = Operator::start(&own.cluster().kubeconfig(), &namespace, &[]);

    await_created(client, &namespace, "first").await;
    operator.await_metric(UNREADABLE, "1").await;
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    await_that("an event that reports it", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let is_it = |event: &&Event| {
            let about = event.regarding.as_ref().and_then(|object| object.name.as_deref());
            event.reason.as_deref() == Some("Unreadable") && about == Some("odd")
        };
        let event = all.iter().find(is_it).ok_or("no such event")?;
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert!(event.note.as_deref().unwrap().contains("Correct it"), "{:?}", event.note);
        Ok(())
    })
    .await;

    // A readable object becomes unreadable: its objects are kept.
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
    let before = sets.get("first-dc-a").await.unwrap();
    change(client, &namespace, "first", json!({"spec": {"racks": [{"name": "a", "nodes": "many"}]}})).await;
    operator.await_metric(UNREADABLE, "2").await;
    apply(client, &namespace, &datacenter("second")).await;
    await_created(client, &namespace, "second").await;
    let after = sets.get("first-dc-a").await.unwrap();
    assert_eq!((before.uid(), before.metadata.generation), (after.uid(), after.metadata.generation));

    apply(client, &namespace, &with_nodes("odd", json!(1))).await;
    await_created(client, &namespace, "odd").await;
    operator.await_metric(UNREADABLE, "1").await;
    operator.check_running();
}

/// The objects of a datacenter by kind and name: their UIDs, and those of their owners.
async fn objects_and_owners(client: &Client, namespace: &str) -> BTreeMap<String, (String, Option<String>)> {
    async fn of<K>(client: &Client, namespace: &str, all: &mut BTreeMap<String, (String, Option<String>)>)
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let ours = ListParams::default().labels("scylla/cluster=dc");
        for object in Api::<K>::namespaced(client.clone(), namespace).list(&ours).await.unwrap() {
            let owner = object.owner_references().first().map(|owner| owner.uid.clone());
            all.insert(format!("{} {}", K::kind(&()), object.name_any()), (object.uid().unwrap(), owner));
        }
    }
    let mut all = BTreeMap::new();
    of::<StatefulSet>(client, namespace, &mut all).await;
    of::<Service>(client, namespace, &mut all).await;
    of::<ConfigMap>(client, namespace, &mut all).await;
    of::<Secret>(client, namespace, &mut all).await;
    of::<ServiceAccount>(client, namespace, &mut all).await;
    of::<RoleBinding>(client, namespace, &mut all).await;
    of::<PodDisruptionBudget>(client, namespace, &mut all).await;
    all
}

async fn is_gone<K: Clone + DeserializeOwned + std::fmt::Debug>(api: &Api<K>, name: &str) {
    await_that(&format!("{name} to be gone"), async || match api.get_opt(name).await.unwrap() {
        None => Ok(()),
        Some(_) => Err("it exists".into()),
    })
    .await;
}

#[tokio::test]
async fn orphaned_objects_of_a_former_datacenter_are_adopted() {
    in_a_namespace("days-orphans", async |client, namespace| {
        apply(client, namespace, &datacenter("dc")).await;
        let mut operator = Operator::start(&light_kubeconfig(), namespace, &[]);
        await_created(client, namespace, "dc").await;
        let before = objects_and_owners(client, namespace).await;
        assert!(before.len() > 8 && before.values().all(|(_, owner)| owner.is_some()), "{before:?}");
        // A copy that belongs to the user is not adopted.
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let ours = maps.get(&managed_config("dc")).await.unwrap();
        let metadata =
            json!({"name": "dc-copy", "labels": ours.metadata.labels, "annotations": ours.metadata.annotations});
        let copy: ConfigMap = serde_json::from_value(json!({"metadata": metadata, "data": ours.data})).unwrap();
        maps.create(&PostParams::default(), &copy).await.unwrap();

        let datacenters: Api<ScyllaDBDatacenter> = Api::namespaced(client.clone(), namespace);
        let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
        datacenters.delete("dc", &orphan).await.unwrap();
        is_gone(&datacenters, "dc").await;
        let left = objects_and_owners(client, namespace).await;
        assert!(left.values().all(|(_, owner)| owner.is_none()), "{left:?}");

        // An invalid datacenter adopts nothing: the objects would be deleted with it.
        for (field, name) in [("datacenterName", "another"), ("clusterName", "another")] {
            let mut wrong = datacenter("dc");
            wrong["spec"][field] = name.into();
            apply(client, namespace, &wrong).await;
            let reported = condition(client, namespace, "dc", "Degraded", |one| one.status == "True").await;
            assert!(reported.message.contains(&format!("spec.{field}: ")), "{}", reported.message);
            datacenters.delete("dc", &DeleteParams::default()).await.unwrap();
            is_gone(&datacenters, "dc").await;
            assert_eq!(objects_and_owners(client, namespace).await, left);
        }

        apply(client, namespace, &datacenter("dc")).await;
        let owner = datacenters.get("dc").await.unwrap().uid();
        await_that("everything to be adopted", async || {
            let now = objects_and_owners(client, namespace).await;
            let is_ours = |(name, (uid, _)): (&String, &(String, Option<String>))| {
                now.get(name) == Some(&(uid.clone(), owner.clone()))
            };
            if before.iter().all(is_ours) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
        condition(client, namespace, "dc", "Degraded", |one| one.status == "False").await;
        let copy = maps.get("dc-copy").await.unwrap();
        assert_eq!(copy.metadata.owner_references, None);
        operator.check_running();

        // The operator has not written this object, so the user requests the adoption.
        let given = json!({"metadata": {"annotations": {annotation::ADOPT: "dc"}}});
        maps.patch("dc-copy", &PatchParams::default(), &Patch::Merge(given)).await.unwrap();
        // It is not in the specification.
        is_gone(&maps, "dc-copy").await;
    })
    .await;
}

#[tokio::test]
async fn object_of_another_owner_is_reported_and_not_changed() {
    in_a_namespace("days-taken", async |client, namespace| {
        let services: Api<Service> = Api::namespaced(client.clone(), namespace);
        let name = identity_service("dc");
        let theirs: Service = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"of": "somebody"}}, "spec": {"ports": [{"port": 1234}]},
        }))
        .unwrap();
        let theirs = services.create(&PostParams::default(), &theirs).await.unwrap();
        apply(client, namespace, &datacenter("dc")).await;
        let mut operator = Operator::start(&light_kubeconfig(), namespace, &[]);

        let reported =
            condition(client, namespace, "dc", "ServiceControllerDegraded", |one| one.status == "True").await;
        assert_eq!(reported.reason, "NameTaken");
        assert!(
            reported.message.contains(&name) && reported.message.contains("Only if it is not in use"),
            "{}",
            reported.message
        );
        condition(client, namespace, "dc", "Degraded", |one| one.status == "True").await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        accounts.get(&member_service_account("dc")).await.expect("other components are applied");
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        maps.get(&managed_config("dc")).await.expect("other components are applied");
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        assert!(sets.get_opt("dc-dc-a").await.unwrap().is_none(), "nodes need the Service");
        let still = services.get(&name).await.unwrap();
        assert_eq!(still.resource_version(), theirs.resource_version(), "it is not changed");

        services.delete(&name, &DeleteParams::default()).await.unwrap();
        await_created(client, namespace, "dc").await;
        condition(client, namespace, "dc", "ServiceControllerDegraded", |one| one.status == "False").await;
        let ours = services.get(&name).await.unwrap();
        assert_eq!(ours.owner_references()[0].kind, "ScyllaDBDatacenter");
        assert_eq!(operator.warnings(0).len(), 1, "the same warning is logged once: {:?}", operator.warnings(0));
        operator.check_running();
    })
    .await;
}

#[tokio::test]
async fn invalid_specification_is_reported_and_changes_nothing() {
    in_a_namespace("days-invalid", async |client, namespace| {
        apply(client, namespace, &datacenter("dc")).await;
        let mut operator = Operator::start(&light_kubeconfig(), namespace, &[]);
        await_created(client, namespace, "dc").await;
        condition(client, namespace, "dc", "Degraded", |one| one.status == "False").await;
        let versions = async || {
            let services: Api<Service> = Api::namespaced(client.clone(), namespace);
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
            let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
            let all = ListParams::default();
            let mut versions: Vec<(String, Option<String>)> = vec![];
            let services = services.list(&all).await.unwrap().items;
            versions.extend(services.iter().map(|one| (one.name_any(), one.resource_version())));
            let maps = maps.list(&all).await.unwrap().items;
            versions.extend(maps.iter().map(|one| (one.name_any(), one.resource_version())));
            // Its status changes by itself; its generation does not.
            let sets = sets.list(&all).await.unwrap().items;
            versions.extend(sets.iter().map(|one| (one.name_any(), one.metadata.generation.map(|it| it.to_string()))));
            versions
        };
        let before = versions().await;

        // Two errors that the API server does not detect, one of them in a change that would restart all nodes.
        let wrong = json!({"spec": {
            "scyllaDB": {"image": "docker.io/scylladb/scylla"},
            "racks": [{"name": "a", "nodes": 2, "scyllaDB": {"storage": {"capacity": "plenty"}}}],
        }});
        change(client, namespace, "dc", wrong).await;
        let reported = condition(client, namespace, "dc", "ObservationDegraded", |one| one.status == "True").await;
        assert_eq!(reported.reason, "InvalidSpecification");
        for field in ["spec.scyllaDB.image: ", "spec.racks[0].scyllaDB.storage.capacity: "] {
            assert!(reported.message.contains(field), "{field} should be named: {}", reported.message);
        }
        condition(client, namespace, "dc", "Degraded", |one| one.status == "True").await;
        assert_eq!(versions().await, before, "nothing is changed");

        apply(client, namespace, &datacenter("dc")).await;
        condition(client, namespace, "dc", "Degraded", |one| one.status == "False").await;
        assert_eq!(operator.warnings(0).len(), 1, "the same warning is logged once: {:?}", operator.warnings(0));
        operator.check_running();
    })
    .await;
}
