//! Every field of the specification of a ScyllaDBDatacenter takes effect.
//!
//! [`table::rows`] has a row for each field, which says what value the field has in a datacenter of the test and where
//! that very value is seen. The definition says which fields there are. No effect may be seen in a datacenter that has
//! none of the values: else it would be seen whatever the operator does.

mod nodes;
mod row;
mod table;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, Service};
use kube::{
    Api, Client,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use messina_api::names::{annotation, datacenter::data_claim};
use messina_e2e::{DEFINITIONS, SOON, accepts, in_a_namespace};
use messina_testbed::harness::{Seen, eventually, until};
use serde_json::{Value, json};

use crate::plan::Operator;
use row::{Effect, Object, Rack, Row, Setup};

/// ConfigMaps and Secrets of the user: the numbers are those of the table.
const LEVELS: [(&str, i32); 2] = [("template", 2), ("own", 3)];

#[test]
fn every_field_has_a_row_and_every_row_a_field() {
    let fields = fields();
    let rows = table::rows();
    let named: BTreeSet<&str> = rows.iter().map(|row| row.field.as_str()).collect();
    assert_eq!(named.len(), rows.len(), "a field has two rows");
    let without_row: Vec<&String> = fields.keys().filter(|field| !named.contains(field.as_str())).collect();
    let without_field: Vec<&&str> = named.iter().filter(|field| !fields.contains_key(**field)).collect();
    assert!(
        without_row.is_empty() && without_field.is_empty(),
        "fields without a row in tests/e2e/fields/table.rs: {without_row:#?}\nrows without a field: {without_field:#?}"
    );
    for row in &rows {
        assert!(row.settings.iter().any(|setting| !setting.effects.is_empty()), "{} has no effect", row.field);
        let default = &fields[&row.field];
        let is_default = row.settings.iter().any(|setting| setting.value == *default);
        assert!(!is_default, "{} has its default value, {default}", row.field);
    }
    println!("{} rows", rows.len());
}

/// The default values of all fields, by path. A field of one of Kubernetes' own types is one field: those have no
/// descriptions in our definitions.
fn fields() -> BTreeMap<String, Value> {
    fn walk(path: &str, schema: &Value, fields: &mut BTreeMap<String, Value>) {
        let (inner, suffix) = if schema["items"].is_object() { (&schema["items"], "[]") } else { (schema, "") };
        let properties = inner["properties"].as_object().into_iter().flatten();
        let own: Vec<_> = properties.filter(|(_, schema)| schema["description"].is_string()).collect();
        if own.is_empty() {
            fields.insert(path.to_owned(), schema["default"].clone());
        }
        for (name, schema) in own {
            walk(&format!("{path}{suffix}.{name}"), schema, fields);
        }
    }
    let definition = DEFINITIONS.iter().find(|one| one.spec.names.kind == "ScyllaDBDatacenter").unwrap();
    let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
    let mut fields = BTreeMap::new();
    walk("spec", &serde_json::to_value(schema).unwrap()["properties"]["spec"], &mut fields);
    fields
}

#[tokio::test]
async fn every_field_takes_effect_on_objects() {
    let rows = table::rows();
    in_a_namespace("fields", async |client, namespace| {
        create_what_is_named(client, namespace).await;
        let _operator = Operator::start(namespace);
        for setup in Setup::LIGHT {
            accepts(client, namespace, &setup.manifest(&rows).to_string()).await;
        }
        for setup in [Setup::Base, Setup::Everything] {
            lose_first_disk(client, namespace, &setup.manifest(&rows)).await;
        }
        let wait = eventually("every field to take effect", SOON, async || {
            let mut missing = vec![];
            for setup in Setup::LIGHT {
                let objects = Objects::read(client, namespace, &setup.manifest(&rows), effects(&rows, setup)).await;
                missing.extend(objects.missing(&rows, setup));
            }
            Ok(if missing.is_empty() { Seen::Ready(()) } else { Seen::NotYet(missing.join("\n")) })
        });
        let missing = wait.await.err().map(|late| late.to_string()).unwrap_or_default();
        let vacuous = seen_without_the_values(client, namespace, &rows).await;
        assert!(
            missing.is_empty() && vacuous.is_empty(),
            "{missing}\neffects that are seen without their values:\n{}",
            vacuous.join("\n")
        );
    })
    .await;
}

/// The expected effects of the values of a datacenter.
fn effects(rows: &[Row], setup: Setup) -> impl Iterator<Item = (&str, &Effect)> {
    rows.iter().flat_map(move |row| {
        let settings = row.settings.iter().filter(move |setting| setting.setup == setup);
        settings.flat_map(|setting| &setting.effects).map(|effect| (row.field.as_str(), effect))
    })
}

/// The objects of a datacenter in which effects are seen, as they were at one time.
struct Objects(Vec<(Object, Option<Value>)>);

impl Objects {
    async fn read<'a>(
        client: &Client,
        namespace: &str,
        manifest: &Value,
        effects: impl Iterator<Item = (&'a str, &'a Effect)>,
    ) -> Self {
        let mut read: Vec<(Object, Option<Value>)> = vec![];
        for (_, effect) in effects {
            for object in effect.objects() {
                if !read.iter().any(|(known, _)| *known == object) {
                    read.push((object, get(client, namespace, manifest, object).await));
                }
            }
        }
        Self(read)
    }

    fn get(&self, object: Object) -> Option<Value> {
        self.0.iter().find(|(known, _)| *known == object).and_then(|(_, value)| value.clone())
    }

    /// The expected effects that are not seen in this datacenter.
    fn missing(&self, rows: &[Row], setup: Setup) -> Vec<String> {
        let check = |(field, effect): (&str, &Effect)| {
            let found = effect.check(|object| self.get(object)).err()?;
            Some(format!("{field} in {}: expected {effect}, found {found}", setup.name()))
        };
        effects(rows, setup).filter_map(check).collect()
    }
}

/// An object of a datacenter, if it exists.
async fn get(client: &Client, namespace: &str, manifest: &Value, object: Object) -> Option<Value> {
    let (version, kind, name) = object.reference(manifest);
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    api.get_opt(&name).await.unwrap().map(|object| serde_json::to_value(object).unwrap())
}

async fn create_what_is_named(client: &Client, namespace: &str) {
    for (level, number) in LEVELS {
        let named = |name: String| ObjectMeta { name: Some(name), ..ObjectMeta::default() };
        let settings = ("scylla.yaml".to_owned(), format!("batch_size_warn_threshold_in_kb: {number}\n"));
        let config_map = ConfigMap {
            metadata: named(format!("{level}-config")),
            data: Some([settings].into()),
            ..ConfigMap::default()
        };
        let secret = Secret { metadata: named(format!("{level}-agent")), ..Secret::default() };
        Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &config_map).await.unwrap();
        Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &secret).await.unwrap();
    }
}

/// Gives the first node's Service a host ID, and its claim a volume that does not exist: Kubernetes marks the claim as
/// lost.
async fn lose_first_disk(client: &Client, namespace: &str, manifest: &Value) {
    let (.., member) = Object::Service(Rack::Template).reference(manifest);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let name = data_claim(&member);
    let is_there = |seen: Option<PersistentVolumeClaim>| match seen {
        Some(_) => Seen::Ready(()),
        None => Seen::NotYet("it is not there".into()),
    };
    until(claims.clone(), &name, "the claim of the first node", SOON, is_there).await.unwrap();
    let lost = json!({
        "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": format!("lost-{namespace}")},
    });
    claims.patch(&name, &PatchParams::default(), &Patch::Merge(&lost)).await.unwrap();
    let services: Api<Service> = Api::namespaced(client.clone(), namespace);
    let joined = json!({"metadata": {"annotations": {annotation::HOST_ID: "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}}});
    services.patch(&member, &PatchParams::default(), &Patch::Merge(&joined)).await.unwrap();
}

/// The effects that are seen in the datacenter that has none of the values, when it is as complete as the others.
async fn seen_without_the_values(client: &Client, namespace: &str, rows: &[Row]) -> Vec<String> {
    let manifest = Setup::Base.manifest(rows);
    let all = || Setup::LIGHT.into_iter().flat_map(|setup| effects(rows, setup));
    let complete = eventually("the datacenter without the values", SOON, async || {
        let objects = Objects::read(client, namespace, &manifest, all()).await;
        let racks = [Rack::Template, Rack::Own];
        let are_there = racks.iter().all(|rack| objects.get(Object::StatefulSet(*rack)).is_some());
        let status = objects.get(Object::Datacenter).map(|one| one["status"].clone()).unwrap_or_default();
        let is_lost = status.to_string().contains("NodeGone");
        Ok(if are_there && is_lost { Seen::Ready(objects) } else { Seen::NotYet(status.to_string()) })
    });
    let objects = complete.await.unwrap();
    let seen = all().filter(|(_, effect)| effect.check(|object| objects.get(object)).is_ok());
    seen.map(|(field, effect)| format!("{field}: {effect}")).collect()
}
