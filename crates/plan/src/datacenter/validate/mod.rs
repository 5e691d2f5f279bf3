//! Validates a ScyllaDBDatacenter.

mod forms;
pub(crate) mod identity;
mod invalid_fields;
pub(crate) mod options;
mod racks;

use std::collections::BTreeMap;

use messina_api::{
    names::annotation,
    scylla::v1alpha1::{DnsPolicy, NodeServiceType, ScyllaDBDatacenter},
};

use self::invalid_fields::{InvalidFields, required};
use crate::{
    datacenter::model::{
        metadata,
        spec::{Datacenter, InvalidField},
    },
    node::sysctl::Allowed,
};

/// Validates the object, with the default kernel settings (sysctls) allowed. Returns every invalid field, not only the
/// first one.
pub fn validate(object: &ScyllaDBDatacenter) -> Result<Datacenter, Vec<InvalidField>> {
    validate_allowing(object, &Allowed::default())
}

/// Validates the object, with these kernel settings (sysctls) allowed.
pub fn validate_allowing(object: &ScyllaDBDatacenter, sysctls: &Allowed) -> Result<Datacenter, Vec<InvalidField>> {
    let mut invalid = InvalidFields::default();
    let datacenter = read(object, sysctls, &mut invalid);
    match datacenter {
        Some(datacenter) if invalid.0.is_empty() => Ok(datacenter),
        _ => Err(invalid.0),
    }
}

/// Returns none only if it has added an invalid field.
fn read(object: &ScyllaDBDatacenter, sysctls: &Allowed, invalid: &mut InvalidFields) -> Option<Datacenter> {
    let spec = &object.spec;
    let scylladb = spec.scylladb.clone().unwrap_or_default();
    let given = object.metadata.annotations.clone().unwrap_or_default();
    let name = required(object.metadata.name.as_ref(), "metadata.name", invalid);
    let namespace = required(object.metadata.namespace.as_ref(), "metadata.namespace", invalid);
    let uid = required(object.metadata.uid.as_ref(), "metadata.uid", invalid);
    let cluster_name = required(spec.cluster_name.as_ref(), "spec.clusterName", invalid);
    let image = options::image(scylladb.image.as_deref(), "spec.scyllaDB.image", invalid);
    let version = image.as_deref().and_then(|image| options::version(image, invalid));
    let agent_image = spec
        .scylladb_manager_agent
        .as_ref()
        .and_then(|agent| options::image(agent.image.as_deref(), "spec.scyllaDBManagerAgent.image", invalid));
    invalid.not_negative("spec.minReadySeconds", spec.min_ready_seconds);
    invalid.not_negative("spec.minTerminationGracePeriodSeconds", spec.min_termination_grace_period_seconds);
    options::known_values(spec, invalid);
    let node_service = spec.expose_options.as_ref().and_then(|options| options.node_service.clone());
    options::service_values(node_service.as_ref(), invalid);
    let (nodes_broadcast, clients_broadcast) = options::broadcast(spec.expose_options.as_ref(), invalid);
    let alternator = scylladb.alternator_options.as_ref().map(|options| options::alternator(options, &given, invalid));
    let parallel_node_operations = spec.enable_parallel_node_operations == Some(true);
    if let (true, Some(version)) = (parallel_node_operations, &version) {
        options::parallel_needs(version, invalid);
    }
    options::domains(spec, invalid);
    if let Some(metadata) = &spec.metadata {
        forms::labels(metadata.labels.as_ref(), "spec.metadata.labels", invalid);
        forms::annotations(metadata.annotations.as_ref(), "spec.metadata.annotations", invalid);
    }
    let scylla_datacenter = spec.datacenter_name.clone().filter(|name| !name.is_empty()).or(name.clone());
    let racks = racks::racks(spec, invalid);
    if let (Some(name), Some(scylla_datacenter)) = (&name, &scylla_datacenter) {
        racks::stateful_set_names(name, scylla_datacenter, &racks, invalid);
    }
    let (sysctls, other_sysctls) = options::sysctls(&given, sysctls, invalid);
    let is_load_balanced =
        node_service.as_ref().is_some_and(|service| service.service_type == Some(NodeServiceType::LoadBalancer));
    Some(Datacenter {
        name: name?,
        namespace: namespace?,
        uid: uid?,
        generation: object.metadata.generation.unwrap_or_default(),
        labels: metadata::propagated_labels(object.metadata.labels.as_ref()),
        annotations: metadata::propagated_annotations(&given),
        deletes_claims_of_left_nodes: given
            .get(annotation::CLAIMS_OF_LEFT_NODES)
            .is_some_and(|policy| policy == "Delete"),
        skips_upgrade_hooks: given.get(annotation::SKIP_UPGRADE_HOOKS).is_some_and(|skips| skips == "true"),
        ignored_down_nodes: given
            .get(annotation::IGNORED_DOWN_NODES)
            .map(|list| list.split(',').map(|host_id| host_id.trim().to_owned()).collect())
            .unwrap_or_default(),
        // Off by default: a replacement deletes the disk of the lost node, which cannot be undone.
        replaces_lost_nodes: spec.disable_automatic_orphaned_node_replacement == Some(false),
        pod_labels: spec.metadata.as_ref().and_then(|metadata| metadata.labels.clone()),
        pod_annotations: spec.metadata.as_ref().and_then(|metadata| metadata.annotations.clone()),
        cluster_name: cluster_name?,
        scylla_datacenter: scylla_datacenter?,
        image: image?,
        version: version?,
        agent_image,
        external_seeds: scylladb.external_seeds.unwrap_or_default(),
        additional_arguments: scylladb.additional_scylladb_arguments.unwrap_or_default(),
        developer_mode: scylladb.enable_developer_mode == Some(true),
        alternator,
        racks,
        node_service,
        nodes_broadcast,
        clients_broadcast,
        cql_ingress: spec.expose_options.as_ref().and_then(|options| options.cql.clone()?.ingress),
        dns_domains: spec.dns_domains.clone().unwrap_or_default(),
        image_pull_secrets: spec.image_pull_secrets.clone().unwrap_or_default(),
        dns_policy: spec.dns_policy.clone().unwrap_or(DnsPolicy::ClusterFirstWithHostNet),
        ip_families: spec.ip_families.clone().unwrap_or_default(),
        ip_family_policy: spec.ip_family_policy.clone(),
        force_redeployment_reason: spec.force_redeployment_reason.clone().filter(|reason| !reason.is_empty()),
        readiness_gates: spec.readiness_gates.clone().unwrap_or_default(),
        // A load balancer takes longer than Kubernetes to send traffic to a node.
        min_ready_seconds: spec.min_ready_seconds.unwrap_or(if is_load_balanced { 60 } else { 5 }),
        min_termination_grace_period_seconds: spec.min_termination_grace_period_seconds,
        parallel_node_operations,
        host_network: given.contains_key(annotation::HOST_NETWORKING),
        sysctls,
        other_sysctls,
        token_override: token_override(&given, invalid),
    })
}

pub(crate) fn token_override(given: &BTreeMap<String, String>, invalid: &mut InvalidFields) -> Option<String> {
    let key = annotation::AGENT_AUTH_TOKEN_OVERRIDE_SECRET_REF;
    let name = given.get(key).filter(|name| !name.is_empty())?;
    forms::object_name(name, &format!("metadata.annotations[{key}]"), invalid).then(|| name.clone())
}
