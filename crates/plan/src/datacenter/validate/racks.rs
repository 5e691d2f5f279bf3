//! Validates racks and the rack template.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use messina_api::{
    names,
    scylla::v1alpha1::{Placement, RackSpec, RackTemplate, ScyllaDBDatacenterSpec},
};

use crate::{
    datacenter::{
        model::spec::{MAX_NODES, Rack, Storage},
        validate::{
            forms,
            invalid_fields::{InvalidFields, required},
        },
    },
    quantity::{self, Amount},
};

/// Maximum length of a StatefulSet's name: its pods have it in a label of at most 63 characters, followed by a dash and
/// a hash of 10.
const MAX_STATEFUL_SET_NAME: usize = 52;

/// Validates the fields of a template that do not depend on others.
fn template_values(template: &RackTemplate, field: &str, invalid: &mut InvalidFields) {
    invalid.not_negative(&format!("{field}.nodes"), template.nodes);
    forms::labels(template.topology_label_selector.as_ref(), &format!("{field}.topologyLabelSelector"), invalid);
    if let Some(scylladb) = &template.scylladb {
        let field = format!("{field}.scyllaDB");
        let storage = scylladb.storage.clone().unwrap_or_default();
        if let Some(capacity) = storage.capacity.as_deref().filter(|capacity| !capacity.is_empty()) {
            quantity_of(capacity, &format!("{field}.storage.capacity"), invalid);
        }
        let metadata = storage.metadata.unwrap_or_default();
        forms::labels(metadata.labels.as_ref(), &format!("{field}.storage.metadata.labels"), invalid);
        forms::annotations(metadata.annotations.as_ref(), &format!("{field}.storage.metadata.annotations"), invalid);
        for (name, value) in [
            ("storage.storageClassName", &storage.storage_class_name),
            ("customConfigMapRef", &scylladb.custom_config_map_ref),
        ] {
            value.iter().for_each(|value| {
                forms::object_name(value, &format!("{field}.{name}"), invalid);
            });
        }
    }
    let secret = template.scylladb_manager_agent.as_ref().and_then(|agent| agent.custom_config_secret_ref.as_ref());
    if let Some(secret) = secret {
        forms::object_name(secret, &format!("{field}.scyllaDBManagerAgent.customConfigSecretRef"), invalid);
    }
    let service = template.expose_options.as_ref().and_then(|options| options.node_service.clone()).unwrap_or_default();
    let field = format!("{field}.exposeOptions.nodeService");
    forms::labels(service.labels.as_ref(), &format!("{field}.labels"), invalid);
    forms::annotations(service.annotations.as_ref(), &format!("{field}.annotations"), invalid);
}

fn quantity_of(text: &str, field: &str, invalid: &mut InvalidFields) {
    match Amount::parse(text) {
        Some(amount) if amount.is_positive() => {}
        Some(_) => invalid.add(field, format!("{text:?} is not more than 0: set a size such as 500Gi")),
        None => invalid.add(field, format!("{text:?} is not a valid quantity: set a size such as 500Gi")),
    }
}

pub(crate) fn racks(spec: &ScyllaDBDatacenterSpec, invalid: &mut InvalidFields) -> Vec<Rack> {
    let template = spec.rack_template.clone().unwrap_or_default();
    template_values(&template, "spec.rackTemplate", invalid);
    let racks = spec.racks.as_deref().unwrap_or_default();
    let mut names = BTreeSet::new();
    let mut valid = Vec::new();
    for (position, rack) in racks.iter().enumerate() {
        let field = format!("spec.racks[{position}]");
        let name_field = format!("{field}.name");
        let name = required(rack.name.as_ref(), &name_field, invalid);
        if let Some(name) = &name
            && !names.insert(name.clone())
        {
            invalid.add(name_field, format!("another rack has the name {name:?}: give each rack a unique name"));
        }
        valid.extend(self::rack(name, position, rack, &template, &field, invalid));
    }
    valid
}

/// Merges a rack with the template: fields of the rack take precedence, volumes are added to those of the template.
fn rack(
    name: Option<String>,
    ordinal: usize,
    rack: &RackSpec,
    template: &RackTemplate,
    field: &str,
    invalid: &mut InvalidFields,
) -> Option<Rack> {
    let own = &rack.template;
    template_values(own, field, invalid);
    let nodes = own.nodes.or(template.nodes).unwrap_or(0);
    if nodes > MAX_NODES {
        invalid.add(format!("{field}.nodes"), format!("{nodes} is too many: set at most {MAX_NODES} nodes for a rack"));
    }
    // The template comes first, so that the rack takes precedence where the last value wins.
    let scylladb: Vec<_> = [&template.scylladb, &own.scylladb].into_iter().flatten().collect();
    let agent: Vec<_> = [&template.scylladb_manager_agent, &own.scylladb_manager_agent].into_iter().flatten().collect();
    let storage: Vec<_> = scylladb.iter().filter_map(|one| one.storage.as_ref()).collect();
    let services: Vec<_> = [&template.expose_options, &own.expose_options]
        .into_iter()
        .filter_map(|options| options.as_ref()?.node_service.as_ref())
        .collect();
    let claims: Vec<_> = storage.iter().filter_map(|one| one.metadata.as_ref()).collect();
    let capacity = storage
        .iter()
        .rev()
        .filter_map(|one| one.capacity.as_deref())
        .find(|text| !text.is_empty())
        .unwrap_or_default();
    let amount = Amount::parse(capacity).filter(|amount| amount.is_positive());
    if capacity.is_empty() {
        invalid.add(format!("{field}.scyllaDB.storage.capacity"), "the value is required: set a size such as 500Gi");
    }
    let scylladb_resources = resources(
        scylladb.iter().filter_map(|one| one.resources.as_ref()),
        &format!("{field}.scyllaDB.resources"),
        invalid,
    );
    let agent_resources = resources(
        agent.iter().filter_map(|one| one.resources.as_ref()),
        &format!("{field}.scyllaDBManagerAgent.resources"),
        invalid,
    );
    let topology = merged([&template.topology_label_selector, &own.topology_label_selector].into_iter().flatten());
    Some(Rack {
        name: name?,
        ordinal,
        nodes,
        placement: placement(own.placement.as_ref().or(template.placement.as_ref()), topology),
        resources: scylladb_resources,
        storage: Storage {
            capacity: Quantity(amount?.canonical()),
            class: storage.iter().rev().find_map(|one| one.storage_class_name.clone()),
            labels: merged(claims.iter().filter_map(|one| one.labels.as_ref())),
            annotations: merged(claims.iter().filter_map(|one| one.annotations.as_ref())),
        },
        custom_config_map: scylladb.iter().rev().find_map(|one| one.custom_config_map_ref.clone()),
        volumes: scylladb.iter().flat_map(|one| one.volumes.clone().unwrap_or_default()).collect(),
        volume_mounts: scylladb.iter().flat_map(|one| one.volume_mounts.clone().unwrap_or_default()).collect(),
        agent_resources,
        agent_custom_config_secret: agent.iter().rev().find_map(|one| one.custom_config_secret_ref.clone()),
        agent_volumes: agent.iter().flat_map(|one| one.volumes.clone().unwrap_or_default()).collect(),
        agent_volume_mounts: agent.iter().flat_map(|one| one.volume_mounts.clone().unwrap_or_default()).collect(),
        service_labels: merged(services.iter().filter_map(|one| one.labels.as_ref())),
        service_annotations: merged(services.iter().filter_map(|one| one.annotations.as_ref())),
    })
}

/// Merges maps; the later one takes precedence.
fn merged<'a>(maps: impl Iterator<Item = &'a BTreeMap<String, String>>) -> BTreeMap<String, String> {
    maps.flat_map(|map| map.clone()).collect()
}

/// Returns the placement, restricted to Kubernetes nodes that have the labels of `topology`.
fn placement(placement: Option<&Placement>, topology: BTreeMap<String, String>) -> Placement {
    let mut placement = placement.cloned().unwrap_or_default();
    if topology.is_empty() {
        return placement;
    }
    let requirement = |(key, value): (&String, &String)| NodeSelectorRequirement {
        key: key.clone(),
        operator: "In".into(),
        values: Some(vec![value.clone()]),
    };
    let affinity = placement.node_affinity.get_or_insert_default();
    let terms =
        &mut affinity.required_during_scheduling_ignored_during_execution.get_or_insert_default().node_selector_terms;
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        term.match_expressions.get_or_insert_default().extend(topology.iter().map(requirement));
    }
    placement
}

fn resources<'a>(
    levels: impl Iterator<Item = &'a ResourceRequirements>,
    field: &str,
    invalid: &mut InvalidFields,
) -> Option<ResourceRequirements> {
    let mut all = ResourceRequirements::default();
    let mut add =
        |all: &mut Option<BTreeMap<String, Quantity>>, more: &Option<BTreeMap<String, Quantity>>, kind: &str| {
            for (resource, quantity) in more.iter().flatten() {
                match quantity::canonical(quantity) {
                    Some(quantity) => {
                        all.get_or_insert_default().insert(resource.clone(), quantity);
                    }
                    None => invalid.add(
                        format!("{field}.{kind}[{resource}]"),
                        format!("{:?} is not a valid quantity: use a value such as 2, 500m or 4Gi", quantity.0),
                    ),
                }
            }
        };
    for level in levels {
        add(&mut all.limits, &level.limits, "limits");
        add(&mut all.requests, &level.requests, "requests");
        if level.claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
            all.claims.clone_from(&level.claims);
        }
    }
    (all != ResourceRequirements::default()).then_some(all)
}

/// Validates the names of StatefulSets, which become names of Services and values of labels.
pub(crate) fn stateful_set_names(name: &str, scylla_datacenter: &str, racks: &[Rack], invalid: &mut InvalidFields) {
    for rack in racks {
        let stateful_set = names::datacenter::rack_stateful_set(name, scylla_datacenter, &rack.name);
        let field = format!("spec.racks[{}].name", rack.ordinal);
        let wrong =
            [("metadata.name", name), ("spec.datacenterName", scylla_datacenter), (field.as_str(), rack.name.as_str())]
                .into_iter()
                .find(|(_, component)| {
                    !component.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                });
        if let Some((field, component)) = wrong {
            invalid.add(
                field,
                format!(
                    "{component:?} becomes part of the names of Services: use lower case letters, digits and dashes \
                     only"
                ),
            );
        } else if stateful_set.starts_with('-') || stateful_set.ends_with('-') {
            invalid.add(
                field,
                format!(
                    "the first pod would have the name {stateful_set}-0: begin and end names with a letter or a digit"
                ),
            );
        } else if stateful_set.len() > MAX_STATEFUL_SET_NAME {
            invalid.add(
                field,
                format!(
                    "the StatefulSet would have the name {stateful_set}, which is longer than {MAX_STATEFUL_SET_NAME} \
                     characters: use shorter names for the datacenter or the rack"
                ),
            );
        }
    }
}
