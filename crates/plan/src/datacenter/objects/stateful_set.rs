//! The StatefulSet of a rack.

use k8s_openapi::{
    api::{
        apps::v1::{RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy},
        core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PodTemplateSpec, VolumeResourceRequirements},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use messina_api::names::{self, DATA_VOLUME, annotation};

use crate::{
    datacenter::{
        layout::{ORDERED_READY, PARALLEL, RESTARTED_AT},
        model::{
            component::Component,
            metadata::{node_labels, owned, rack_labels},
            observed::Observed,
            plan::Note,
            spec::{Datacenter, MAX_NODES, Rack},
        },
        objects::{
            config::{Inputs, inputs},
            difference::is_subset,
            pod::pod_spec,
        },
        reasons,
        state::{
            Current,
            counts::nodes_to_keep,
            disks::{last_image, newest_image},
            stateful_set::{is_parallel, replicas},
        },
    },
    metadata::{map, some, template, with},
};

/// Returns the desired StatefulSet of a rack, regardless of the existing one.
pub(crate) fn stateful_set(current: &Current<'_>, rack: &Rack) -> StatefulSet {
    let observed = current.observed;
    let datacenter = &observed.datacenter;
    let name = datacenter.stateful_set_name(rack);
    let inputs = InputsOf::of(observed, rack, &name);
    let policy = if datacenter.parallel_node_operations { PARALLEL } else { ORDERED_READY };
    StatefulSet {
        metadata: inputs.noted(owned(datacenter, name, node_labels(datacenter, rack))),
        spec: Some(StatefulSetSpec {
            replicas: Some(nodes_to_keep(current, rack)),
            service_name: Some(names::datacenter::identity_service(&datacenter.name)),
            selector: LabelSelector {
                match_labels: Some(rack_labels(datacenter, &rack.name)),
                match_expressions: None,
            },
            pod_management_policy: Some(policy.into()),
            // The API server omits a zero, so the StatefulSet would always seem to differ.
            min_ready_seconds: Some(datacenter.min_ready_seconds).filter(|seconds| *seconds != 0),
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("RollingUpdate".into()),
                rolling_update: Some(RollingUpdateStatefulSetStrategy {
                    partition: Some(0),
                    ..RollingUpdateStatefulSetStrategy::default()
                }),
            }),
            template: pod_template(observed, rack, &inputs.hash),
            volume_claim_templates: Some(vec![claim(datacenter, rack)]),
            ..StatefulSetSpec::default()
        }),
        ..StatefulSet::default()
    }
}

/// The hash of a rack's configuration that its pods carry as an annotation: a change of it restarts the nodes.
struct InputsOf {
    hash: String,
    /// The hash of the complete configuration, where `hash` is from an earlier operator version that left out the
    /// user's ConfigMaps and Secrets. As long as this stays the same, nodes do not restart just to get the complete
    /// hash.
    stands_for: Option<String>,
}

impl InputsOf {
    fn of(observed: &Observed, rack: &Rack, stateful_set: &str) -> Self {
        let Inputs { all, without_users } = inputs(observed, rack);
        let existing = observed.stateful_sets.get(stateful_set);
        let annotation = |metadata: Option<&ObjectMeta>, key| {
            metadata.and_then(|metadata| metadata.annotations.as_ref()?.get(key).cloned())
        };
        let has_old_hash = match existing {
            Some(existing) => {
                let template = existing.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
                annotation(template, annotation::INPUTS_HASH).as_ref() == Some(&without_users)
            }
            // The StatefulSet is recreated around the existing pods, if there are any.
            None => (0..rack.nodes).any(|ordinal| {
                let pod = observed.pods.get(&names::datacenter::member(stateful_set, ordinal));
                pod.and_then(|pod| pod.inputs_hash.as_ref()) == Some(&without_users)
            }),
        };
        let stood_for = annotation(existing.map(|one| &one.metadata), annotation::INPUTS_STAND_FOR);
        if has_old_hash && stood_for.is_none_or(|stood_for| stood_for == all) {
            Self { hash: without_users, stands_for: Some(all) }
        } else {
            Self { hash: all, stands_for: None }
        }
    }

    fn noted(&self, mut metadata: ObjectMeta) -> ObjectMeta {
        let noted = self.stands_for.iter().map(|inputs| (annotation::INPUTS_STAND_FOR.to_owned(), inputs.clone()));
        metadata.annotations.get_or_insert_default().extend(noted);
        metadata.annotations = metadata.annotations.and_then(some);
        metadata
    }
}

/// Sets the complete hash. It is called where nodes restart anyway, so the hash that leaves out the user's settings can
/// go.
pub(crate) fn take_new_hash(stateful_set: &mut StatefulSet) {
    let noted = stateful_set.metadata.annotations.as_mut().and_then(|all| all.remove(annotation::INPUTS_STAND_FOR));
    if let (Some(hash), Some(spec)) = (noted, stateful_set.spec.as_mut()) {
        let template = spec.template.metadata.get_or_insert_default();
        template.annotations.get_or_insert_default().insert(annotation::INPUTS_HASH.into(), hash);
    }
}

fn pod_template(observed: &Observed, rack: &Rack, inputs_hash: &str) -> PodTemplateSpec {
    let datacenter = &observed.datacenter;
    let labels = datacenter.pod_labels.clone().unwrap_or_else(|| datacenter.labels.clone());
    let annotations = datacenter.pod_annotations.clone().unwrap_or_else(|| datacenter.annotations.clone());
    let reason = datacenter.force_redeployment_reason.as_deref();
    let own = map([
        (annotation::PROMETHEUS_SCRAPE, "true"),
        (annotation::PROMETHEUS_PORT, "9180"),
        (annotation::INPUTS_HASH, inputs_hash),
    ]
    .into_iter()
    .chain(reason.map(|reason| (annotation::FORCE_REDEPLOYMENT_REASON, reason))));
    PodTemplateSpec {
        metadata: Some(template(with(labels, node_labels(datacenter, rack)), with(annotations, own))),
        spec: Some(pod_spec(observed, rack)),
    }
}

fn claim(datacenter: &Datacenter, rack: &Rack) -> PersistentVolumeClaim {
    let storage = &rack.storage;
    let labels = some(storage.labels.clone()).unwrap_or_else(|| datacenter.labels.clone());
    let annotations = some(storage.annotations.clone()).unwrap_or_else(|| datacenter.annotations.clone());
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(DATA_VOLUME.into()),
            ..template(with(labels, rack_labels(datacenter, &rack.name)), annotations)
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: storage.class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), storage.capacity.clone())].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}

/// Returns `desired` with the immutable fields of `existing` and no fewer replicas, and a note for each immutable field
/// that differs from the specification.
pub(crate) fn keep_immutable_fields(
    current: &Current<'_>,
    mut desired: StatefulSet,
    existing: &StatefulSet,
) -> (StatefulSet, Vec<Note>) {
    let observed = current.observed;
    let (Some(spec), Some(now)) = (desired.spec.as_mut(), existing.spec.as_ref()) else { return (desired, Vec::new()) };
    let mut differing = Vec::new();
    // Labels and annotations of claims matter only when a claim is created, so a difference there is not reported.
    // `storage` handles sizes.
    let unsized_claim = |claim: &PersistentVolumeClaim| {
        claim.spec.clone().map(|spec| PersistentVolumeClaimSpec { resources: None, ..spec })
    };
    let claims =
        |spec: &StatefulSetSpec| spec.volume_claim_templates.iter().flatten().map(unsized_claim).collect::<Vec<_>>();
    if !is_subset(&claims(spec), &claims(now)) {
        differing.push("spec.volumeClaimTemplates");
    }
    if spec.selector != now.selector {
        differing.push("spec.selector");
    }
    if spec.service_name != now.service_name {
        differing.push("spec.serviceName");
    }
    // A StatefulSet that is `Parallel` although the specification is not is scaled out one node at a time.
    if observed.datacenter.parallel_node_operations && !is_parallel(existing) {
        differing.push("spec.podManagementPolicy");
    }
    // Equivalent templates are written as the operator renders them: else each StatefulSet would be written once more,
    // with the API server's defaults.
    if !is_subset(&spec.volume_claim_templates, &now.volume_claim_templates) || has_other_metadata(spec, now) {
        spec.volume_claim_templates.clone_from(&now.volume_claim_templates);
    }
    spec.selector.clone_from(&now.selector);
    spec.service_name.clone_from(&now.service_name);
    spec.pod_management_policy.clone_from(&now.pod_management_policy);
    let joining = if observed.datacenter.parallel_node_operations || !is_parallel(existing) {
        spec.replicas
    } else {
        // Nodes that have joined before start together.
        let name = existing.metadata.name.as_deref().unwrap_or_default();
        let is_back = |ordinal: &i32| current.is_known(&names::datacenter::member(name, *ordinal));
        let known = (replicas(existing)..MAX_NODES).take_while(is_back).count();
        let most = replicas(existing) + i32::try_from(known).unwrap_or(MAX_NODES).max(1);
        spec.replicas.min(Some(most))
    };
    spec.replicas = joining.max(now.replicas);
    let restarted_at = now.template.metadata.as_ref().and_then(|one| one.annotations.as_ref()?.get(RESTARTED_AT));
    keep_restart(&mut spec.template, restarted_at);
    // The API server rejects a template whose labels do not match the selector.
    let labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.extend(now.selector.match_labels.clone().unwrap_or_default());
    let notes = differing.into_iter().map(|field| cannot_change(observed, &desired, field)).collect();
    (desired, notes)
}

/// Whether labels or annotations of the claim templates differ. Claim templates are immutable, so none can be removed.
fn has_other_metadata(desired: &StatefulSetSpec, now: &StatefulSetSpec) -> bool {
    let metadata = |spec: &StatefulSetSpec| -> Vec<_> {
        let claims = spec.volume_claim_templates.iter().flatten();
        claims.map(|claim| (claim.metadata.labels.clone(), claim.metadata.annotations.clone())).collect()
    };
    metadata(desired) != metadata(now)
}

/// Keeps the annotation of a restart that the user requested: without it, the pods would be recreated once more.
fn keep_restart(template: &mut PodTemplateSpec, restarted_at: Option<&String>) {
    if let Some(restarted_at) = restarted_at {
        let annotations = template.metadata.get_or_insert_default().annotations.get_or_insert_default();
        annotations.insert(RESTARTED_AT.into(), restarted_at.clone());
    }
}

/// Returns the StatefulSet of a rack whose StatefulSet is gone while its nodes exist. It is recreated around them: with
/// as many replicas, and a template that matches their pods. The nodes keep their version, since an upgrade has to go
/// through `topology`.
pub(crate) fn recreated_stateful_set(current: &Current<'_>, rack: &Rack, nodes: i32) -> StatefulSet {
    let observed = current.observed;
    let name = observed.datacenter.stateful_set_name(rack);
    let members = || (0..nodes).map(|ordinal| names::datacenter::member(&name, ordinal));
    let pods = || members().filter_map(|member| observed.pods.get(&member));
    // Existing pods do not restart by this; missing pods are created from it.
    let (there, missing): (Vec<_>, Vec<_>) = members().partition(|member| observed.pods.contains_key(member));
    let is_former = |(version, _): &(String, String)| *version != observed.datacenter.version;
    let are_all_up = pods().filter(|pod| pod.ready == Some(true)).count() == there.len() && missing.is_empty();
    let former = if are_all_up {
        there.iter().filter_map(|member| last_image(observed, member)).find(is_former)
    } else {
        newest_image(observed, &[missing, there].concat())
    };
    let mut restored = match former.filter(is_former) {
        Some((version, image)) => {
            let datacenter = Datacenter { version, image, ..observed.datacenter.clone() };
            stateful_set(&Current::new(&Observed { datacenter, ..observed.clone() }), rack)
        }
        None => stateful_set(current, rack),
    };
    let Some(spec) = restored.spec.as_mut() else { return restored };
    spec.replicas = Some(nodes);
    if members().any(|member| current.is_known(&member)) {
        spec.pod_management_policy = Some(PARALLEL.into());
    }
    let restarts = pods().filter_map(|pod| pod.restarted_at.as_ref());
    keep_restart(&mut spec.template, restarts.max());
    restored
}

fn cannot_change(observed: &Observed, stateful_set: &StatefulSet, field: &str) -> Note {
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    let remedy = match field {
        "spec.volumeClaimTemplates" => {
            "Revert the change of the rack's storage class, or move the nodes to a new rack."
        }
        "spec.podManagementPolicy" => {
            "Set spec.enableParallelNodeOperations to false, or delete the StatefulSet with --cascade=orphan: the \
             operator recreates it around its pods."
        }
        _ => "Delete the StatefulSet with --cascade=orphan: the operator recreates it around its pods.",
    };
    Note {
        component: Component::StatefulSet,
        reason: reasons::IMMUTABLE_FIELD,
        message: format!(
            "StatefulSet {}/{name} keeps its {field}, which differs from the specification, because the field is \
             immutable. {remedy}",
            observed.datacenter.namespace
        ),
    }
}
