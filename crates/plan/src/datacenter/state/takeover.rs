//! Takeover of a datacenter from scylla-operator. While scylla-operator runs, this operator does not change the
//! datacenter.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        coordination::v1::Lease,
        core::v1::{Container, PodTemplateSpec},
    },
    apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry,
};
use messina_api::names::scylla_operator::{PROGRAMS, is_field_manager};

use crate::metadata::managed_fields;

/// How long after a write of scylla-operator it counts as running. Where its Lease has another name, its writes are the
/// only evidence.
const QUIET: SignedDuration = SignedDuration::from_mins(5);

/// How long a Lease counts as held that was neither renewed nor released. The operator notices a dead watch within five
/// minutes, so a Lease that seems to expire may have been renewed all the time.
const UNRENEWED: SignedDuration = SignedDuration::from_mins(6);

/// Evidence that scylla-operator runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScyllaOperatorActivity {
    /// When it counts as stopped, if there is no further evidence.
    pub until: Timestamp,
    /// The evidence, as part of a sentence.
    pub evidence: String,
}

/// Returns whether a Lease is held. `changed` is when it was first observed, or observed to change, by this operator's
/// clock: that of the holder may be wrong.
pub fn active_by_lease(lease: &Lease, changed: Timestamp, now: Timestamp) -> Option<ScyllaOperatorActivity> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
    let until = changed.saturating_add(UNRENEWED).unwrap_or(Timestamp::MAX);
    let (namespace, name) = (lease.metadata.namespace.as_deref(), lease.metadata.name.as_deref());
    let evidence = format!("{holder} holds Lease {}/{}", namespace.unwrap_or_default(), name.unwrap_or_default());
    (until > now).then_some(ScyllaOperatorActivity { until, evidence })
}

/// Returns whether scylla-operator has written one of a datacenter's StatefulSets recently.
pub fn active_by_write<'a>(
    stateful_sets: impl IntoIterator<Item = &'a StatefulSet>,
    now: Timestamp,
) -> Option<ScyllaOperatorActivity> {
    let times = |one: &'a StatefulSet| records(one).filter_map(move |record| Some((record.time.as_ref()?.0, one)));
    let (time, stateful_set) = stateful_sets.into_iter().flat_map(times).max_by_key(|(time, _)| *time)?;
    let until = time.saturating_add(QUIET).unwrap_or(Timestamp::MAX);
    let name = stateful_set.metadata.name.as_deref().unwrap_or_default();
    (until > now).then(|| ScyllaOperatorActivity { until, evidence: format!("it wrote StatefulSet {name} at {time}") })
}

/// Returns the managed fields of scylla-operator.
fn records(stateful_set: &StatefulSet) -> impl Iterator<Item = &ManagedFieldsEntry> {
    let is_its = |record: &&ManagedFieldsEntry| {
        record.manager.as_deref().is_some_and(is_field_manager) && record.subresource.is_none()
    };
    stateful_set.metadata.managed_fields.iter().flatten().filter(is_its)
}

/// Whether the pod template runs scylla-operator's program, or scylla-operator still manages fields of it: the next
/// write of this operator removes those fields that it does not set itself, which restarts nodes.
pub(crate) fn is_of_scylla_operator(stateful_set: &StatefulSet) -> bool {
    let Some(spec) = &stateful_set.spec else { return false };
    runs_its_program(&spec.template) || records(stateful_set).any(has_template)
}

fn has_template(record: &ManagedFieldsEntry) -> bool {
    managed_fields(record).is_some_and(|fields| !fields["f:spec"]["f:template"].is_null())
}

fn runs_its_program(template: &PodTemplateSpec) -> bool {
    let Some(spec) = &template.spec else { return false };
    let words = |container: &Container| -> Vec<String> {
        let command = container.command.iter().flatten();
        command.flat_map(|word| word.split_whitespace().map(str::to_owned)).collect()
    };
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.flat_map(words).any(|word| PROGRAMS.contains(&word.as_str()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn lease(holder: &str, renewed: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": {"name": "lock", "namespace": "scylla-operator"},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 60, "renewTime": renewed},
        }))
        .unwrap()
    }

    #[test]
    fn lease_is_held_until_it_expires_or_is_released() {
        let long_ago = "2020-01-01T12:00:00.000000Z";
        let seen = time("2026-01-01T12:00:00Z");
        let (soon, late) = (time("2026-01-01T12:05:59Z"), time("2026-01-01T12:06:00Z"));
        let active = active_by_lease(&lease("a", long_ago), seen, soon).unwrap();
        assert_eq!((active.until, active.evidence.as_str()), (late, "a holds Lease scylla-operator/lock"));
        assert_eq!(active_by_lease(&lease("a", long_ago), seen, late), None, "it has expired");
        assert_eq!(
            active_by_lease(&lease("a", "2999-01-01T12:00:00.000000Z"), seen, late),
            None,
            "regardless of its renewTime"
        );
        assert_eq!(active_by_lease(&lease("", long_ago), seen, soon), None, "it was released");
        assert_eq!(active_by_lease(&Lease::default(), seen, soon), None);
    }

    fn stateful_set(manager: &str, fields: Value, command: &[&str]) -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "managedFields": [
                {"manager": manager, "operation": "Update", "time": "2026-01-01T12:00:00Z", "fieldsV1": fields},
            ]},
            "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "scylla", "command": command}]}}},
        }))
        .unwrap()
    }

    #[test]
    fn recent_write_shows_that_scylla_operator_runs() {
        let its = [stateful_set("scylla-operator (linux", json!({}), &[])];
        let (soon, late) = (time("2026-01-01T12:04:59Z"), time("2026-01-01T12:05:00Z"));
        assert_eq!(active_by_write(&its, soon).unwrap().until, late);
        assert_eq!(active_by_write(&its, late), None);
        assert_eq!(active_by_write(&[stateful_set("messina", json!({}), &[])], soon), None);
    }

    #[test]
    fn template_is_of_scylla_operator_by_program_or_managed_fields() {
        let template = json!({"f:spec": {"f:template": {"f:spec": {}}}});
        for (manager, fields, command, expected) in [
            ("messina", template.clone(), &["/mnt/shared/messina", "sidecar"][..], false),
            ("messina", template.clone(), &["/bin/sh", "-c", "cp -a /usr/bin/scylla-operator '/mnt/shared'"], true),
            ("messina", template.clone(), &["/mnt/shared/scylla-operator", "run-bootstrap-barrier"], true),
            ("messina", template.clone(), &["--tls=/var/run/secrets/scylla-operator.scylladb.com/x"], false),
            ("scylla-operator (linux", json!({"f:spec": {"f:replicas": {}}}), &["/mnt/shared/messina"], false),
            ("scylla-operator (linux", template.clone(), &["/mnt/shared/messina"], true),
            ("scylla-operator", json!(template.to_string()), &["/mnt/shared/messina"], true),
        ] {
            let found = is_of_scylla_operator(&stateful_set(manager, fields.clone(), command));
            assert_eq!(found, expected, "{manager} {fields} {command:?}");
        }
    }
}
