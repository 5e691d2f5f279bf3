//! Objects that are wrong, or in the way.

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

use super::{Own, apply, change, condition, datacenter, holds, is_made, program::Operator};

const UNREADABLE: &str = "messina_cache_unreadable_objects{resource=\"scylladbdatacenters\"}";

/// The definitions, with one that lets anything pass.
async fn install_lax_definitions(own: &Own) {
    demo::install_definitions(&own.client).await.unwrap();
    let definitions: Api<CustomResourceDefinition> = Api::all(own.client.clone());
    let name = "scylladbdatacenters.scylla.scylladb.com";
    let mut definition = definitions.get(name).await.unwrap();
    let anything = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    definition.spec.versions[0].schema = Some(serde_json::from_value(anything).unwrap());
    // Not replaced as a whole: the API server itself writes how it stands at the same time.
    let versions = Patch::Merge(json!({"spec": {"versions": definition.spec.versions}}));
    definitions.patch(name, &PatchParams::default(), &versions).await.unwrap();
    // The API server takes a moment to serve by the new schema.
    let probe = with_nodes("probe", json!("many"));
    holds("the definition to let anything pass", async || {
        harness::apply(&own.client, &probe.to_string(), Some("default"))
            .await
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await;
}

#[tokio::test]
async fn what_is_not_done_without_an_agent_is_told() {
    in_a_namespace("days-agent", async |client, namespace| {
        let mut without = datacenter("dc");
        without["spec"].as_object_mut().unwrap().remove("scyllaDBManagerAgent");
        apply(client, namespace, &without).await;
        let _operator = Operator::start(&light_kubeconfig(), namespace, &[]);
        let told = condition(client, namespace, "dc", "JobControllerProgressing", |one| one.status == "False").await;
        assert_eq!(told.reason, "CleanupNotAvailable");
        assert!(told.message.contains("nodetool cleanup"), "{}", told.message);
    })
    .await;
}

fn with_nodes(name: &str, nodes: Value) -> Value {
    let mut datacenter = datacenter(name);
    datacenter["spec"]["racks"][0]["nodes"] = nodes;
    datacenter
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_told_and_keeps_no_other_from_its_due() {
    let Some(own) = Own::up("days-unreadable").await else { return };
    install_lax_definitions(&own).await;
    let client = &own.client;
    let namespace = harness::namespace(client, "days").await.unwrap();
    apply(client, &namespace, &with_nodes("odd", json!("many"))).await;
    apply(client, &namespace, &datacenter("first")).await;
    let mut operator = Operator::start(&own.cluster().kubeconfig(), &namespace, &[]);

    is_made(client, &namespace, "first").await;
    operator.counts(UNREADABLE, "1").await;
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    holds("an event that says so", async || {
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

    // One that was well goes wrong: what was made for it stays.
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
    let before = sets.get("first-dc-a").await.unwrap();
    change(client, &namespace, "first", json!({"spec": {"racks": [{"name": "a", "nodes": "many"}]}})).await;
    operator.counts(UNREADABLE, "2").await;
    apply(client, &namespace, &datacenter("second")).await;
    is_made(client, &namespace, "second").await;
    let after = sets.get("first-dc-a").await.unwrap();
    assert_eq!((before.uid(), before.metadata.generation), (after.uid(), after.metadata.generation));

    apply(client, &namespace, &with_nodes("odd", json!(1))).await;
    is_made(client, &namespace, "odd").await;
    operator.counts(UNREADABLE, "1").await;
    operator.goes_on();
}

/// What there is of a datacenter, by kind and name: UIDs, and those of the owners.
async fn belongings(client: &Client, namespace: &str) -> BTreeMap<String, (String, Option<String>)> {
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
    holds(&format!("{name} to be gone"), async || match api.get_opt(name).await.unwrap() {
        None => Ok(()),
        Some(_) => Err("it is there".into()),
    })
    .await;
}

#[tokio::test]
async fn orphaned_objects_of_a_former_datacenter_are_adopted() {
    in_a_namespace("days-orphans", async |client, namespace| {
        apply(client, namespace, &datacenter("dc")).await;
        let mut operator = Operator::start(&light_kubeconfig(), namespace, &[]);
        is_made(client, namespace, "dc").await;
        let before = belongings(client, namespace).await;
        assert!(before.len() > 8 && before.values().all(|(_, owner)| owner.is_some()), "{before:?}");
        // A copy that the user keeps looks the same, and stays the user's.
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
        let left = belongings(client, namespace).await;
        assert!(left.values().all(|(_, owner)| owner.is_none()), "{left:?}");

        // Who makes no sense owns nothing: it would all go with that one.
        for (field, name) in [("datacenterName", "another"), ("clusterName", "another")] {
            let mut wrong = datacenter("dc");
            wrong["spec"][field] = name.into();
            apply(client, namespace, &wrong).await;
            let told = condition(client, namespace, "dc", "Degraded", |one| one.status == "True").await;
            assert!(told.message.contains(&format!("spec.{field}: ")), "{}", told.message);
            datacenters.delete("dc", &DeleteParams::default()).await.unwrap();
            is_gone(&datacenters, "dc").await;
            assert_eq!(belongings(client, namespace).await, left);
        }

        apply(client, namespace, &datacenter("dc")).await;
        let owner = datacenters.get("dc").await.unwrap().uid();
        holds("everything to be adopted", async || {
            let now = belongings(client, namespace).await;
            let is_ours = |(name, (uid, _)): (&String, &(String, Option<String>))| {
                now.get(name) == Some(&(uid.clone(), owner.clone()))
            };
            if before.iter().all(is_ours) { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await;
        condition(client, namespace, "dc", "Degraded", |one| one.status == "False").await;
        let copy = maps.get("dc-copy").await.unwrap();
        assert_eq!(copy.metadata.owner_references, None);
        operator.goes_on();

        // Where nobody wrote it in our name, the user says whose it is.
        let given = json!({"metadata": {"annotations": {annotation::ADOPT: "dc"}}});
        maps.patch("dc-copy", &PatchParams::default(), &Patch::Merge(given)).await.unwrap();
        // It is not in the specification.
        is_gone(&maps, "dc-copy").await;
    })
    .await;
}

#[tokio::test]
async fn a_name_that_is_taken_stays_with_its_owner_until_it_is_free() {
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

        let told = condition(client, namespace, "dc", "ServiceControllerDegraded", |one| one.status == "True").await;
        assert_eq!(told.reason, "NameTaken");
        assert!(told.message.contains(&name) && told.message.contains("Only if it is not in use"), "{}", told.message);
        condition(client, namespace, "dc", "Degraded", |one| one.status == "True").await;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        accounts.get(&member_service_account("dc")).await.expect("other parts are done");
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        maps.get(&managed_config("dc")).await.expect("other parts are done");
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        assert!(sets.get_opt("dc-dc-a").await.unwrap().is_none(), "nodes need the Service");
        let still = services.get(&name).await.unwrap();
        assert_eq!(still.resource_version(), theirs.resource_version(), "it is not touched");

        services.delete(&name, &DeleteParams::default()).await.unwrap();
        is_made(client, namespace, "dc").await;
        condition(client, namespace, "dc", "ServiceControllerDegraded", |one| one.status == "False").await;
        let ours = services.get(&name).await.unwrap();
        assert_eq!(ours.owner_references()[0].kind, "ScyllaDBDatacenter");
        assert_eq!(operator.warnings(0).len(), 1, "the same is told once: {:?}", operator.warnings(0));
        operator.goes_on();
    })
    .await;
}

#[tokio::test]
async fn what_makes_no_sense_is_named_and_changes_nothing() {
    in_a_namespace("days-invalid", async |client, namespace| {
        apply(client, namespace, &datacenter("dc")).await;
        let mut operator = Operator::start(&light_kubeconfig(), namespace, &[]);
        is_made(client, namespace, "dc").await;
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

        // Two faults, of which the API server knows nothing: one in a change that would restart all nodes.
        let wrong = json!({"spec": {
            "scyllaDB": {"image": "docker.io/scylladb/scylla"},
            "racks": [{"name": "a", "nodes": 2, "scyllaDB": {"storage": {"capacity": "plenty"}}}],
        }});
        change(client, namespace, "dc", wrong).await;
        let told = condition(client, namespace, "dc", "ObservationDegraded", |one| one.status == "True").await;
        assert_eq!(told.reason, "InvalidSpecification");
        for field in ["spec.scyllaDB.image: ", "spec.racks[0].scyllaDB.storage.capacity: "] {
            assert!(told.message.contains(field), "{field} should be named: {}", told.message);
        }
        condition(client, namespace, "dc", "Degraded", |one| one.status == "True").await;
        assert_eq!(versions().await, before, "nothing is changed");

        apply(client, namespace, &datacenter("dc")).await;
        condition(client, namespace, "dc", "Degraded", |one| one.status == "False").await;
        assert_eq!(operator.warnings(0).len(), 1, "the same is told once: {:?}", operator.warnings(0));
        operator.goes_on();
    })
    .await;
}
