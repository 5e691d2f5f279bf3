//! Detection of scylla-operator, which manages the same objects. While it is active, this operator does not change
//! them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::StatefulSet, coordination::v1::Lease};
use messina_plan::datacenter::takeover::{ScyllaOperatorActivity, active_by_lease, active_by_write};
use messina_runtime::{
    controller::Suspension,
    queue::ObjectKey,
    store::{Change, Store},
};

/// How often a datacenter is requeued while scylla-operator's Lease cannot be read.
const UNKNOWN_REQUEUE: Duration = Duration::from_secs(10);

/// The observed state of scylla-operator.
#[derive(Debug)]
pub(super) struct ScyllaOperator {
    /// The name of its Lease.
    name: String,
    /// Leases of that name in all namespaces. `None` with --scylla-operator-absent.
    leases: Option<Arc<Store<Lease>>>,
    /// When each Lease was first observed or last observed to change, by this process's clock.
    last_changed: Mutex<HashMap<ObjectKey, Timestamp>>,
}

impl ScyllaOperator {
    pub(super) fn new(name: &str, leases: Option<Arc<Store<Lease>>>) -> Self {
        Self { name: name.to_owned(), leases, last_changed: Mutex::default() }
    }

    /// Records a change of a Lease. Returns whether it was acquired or released: renewals need no reconcile of all
    /// datacenters.
    pub(super) fn observe_change(&self, change: &Change<Lease>) -> bool {
        let now = Timestamp::now();
        let mut last_changed = self.last_changed.lock().unwrap_or_else(PoisonError::into_inner);
        let active_by_lease = |lease: &Option<Arc<Lease>>, last_changed: Option<&Timestamp>| {
            let last_changed = last_changed.copied().unwrap_or(now);
            lease.as_ref().is_some_and(|lease| active_by_lease(lease, last_changed, now).is_some())
        };
        let was_led = active_by_lease(&change.before, last_changed.get(&change.key));
        let spec = |lease: &Option<Arc<Lease>>| lease.as_ref().and_then(|lease| lease.spec.clone());
        if change.after.is_none() {
            last_changed.remove(&change.key);
        } else if spec(&change.before) != spec(&change.after) {
            last_changed.insert(change.key.clone(), now);
        }
        was_led != active_by_lease(&change.after, last_changed.get(&change.key))
    }

    /// Returns the evidence of a held Lease; if several are held, of the one that expires last.
    fn active_lease(&self, now: Timestamp) -> Option<ScyllaOperatorActivity> {
        let last_changed = self.last_changed.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.leases.iter().flat_map(|leases| leases.all());
        let active = all.filter_map(|lease| {
            let key = ObjectKey { namespace: lease.metadata.namespace.clone(), name: lease.metadata.name.clone()? };
            active_by_lease(&lease, last_changed.get(&key).copied().unwrap_or(now), now)
        });
        active.max_by_key(|active| active.until)
    }

    /// Returns whether the Lease cannot be read, so that scylla-operator may be active.
    fn is_unknown(&self) -> bool {
        self.leases.as_ref().is_some_and(|leases| leases.is_forbidden() || leases.unreadable() > 0)
    }

    /// Returns what this operator waits for, for its log, while it must not change datacenters.
    pub(super) fn blocking_reason(&self) -> Option<String> {
        if self.is_unknown() {
            return Some(format!("permission to read scylla-operator's Lease {}", self.name));
        }
        let active = self.active_lease(Timestamp::now())?;
        Some(format!("scylla-operator to stop ({})", active.evidence))
    }

    /// Returns why this operator must not change a datacenter with these StatefulSets.
    pub(super) fn hold(&self, stateful_sets: &[Arc<StatefulSet>]) -> Option<Suspension> {
        let now = Timestamp::now();
        if self.is_unknown() {
            let message = format!(
                "The operator does not change this datacenter: it cannot read scylla-operator's Lease {}, so \
                 scylla-operator may be active. Permit the operator to list and watch Leases of that name in all \
                 namespaces, or start it with --scylla-operator-absent if scylla-operator does not run in this cluster.",
                self.name
            );
            return Some(Suspension { message, requeue_after: UNKNOWN_REQUEUE });
        }
        let active = self.active_lease(now).or_else(|| active_by_write(stateful_sets.iter().map(Arc::as_ref), now))?;
        let message = format!(
            "scylla-operator is active: {}. This operator does not change this datacenter meanwhile. To let this operator \
             take over, scale scylla-operator's Deployment to 0, or delete its Lease if it was uninstalled. To stay with \
             scylla-operator, scale this operator's Deployment to 0.",
            active.evidence
        );
        let delay = Duration::try_from(active.until.duration_since(now)).unwrap_or_default();
        Some(Suspension { message, requeue_after: delay.max(Duration::from_secs(1)) })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, renewed: &str) -> Option<Arc<Lease>> {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 60, "renewTime": renewed});
        Some(Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "lock", "namespace": "peer"}, "spec": spec})).unwrap(),
        ))
    }

    /// The clock of the holder is years behind.
    #[test]
    fn lease_with_a_holder_is_held_whatever_its_renew_time() {
        let key = ObjectKey { namespace: Some("peer".into()), name: "lock".into() };
        let [first, second, third] =
            ["2020-01-01T00:00:00.000000Z", "2020-01-01T00:00:10.000000Z", "2020-01-01T00:00:20.000000Z"];
        let changes = [
            (None, lease("a", first), true, "its age is unknown"),
            (lease("a", first), lease("a", second), false, "it is renewed"),
            (lease("a", second), lease("a", third), false, "it is renewed again"),
            (lease("a", third), lease("", third), true, "it is released"),
            (lease("", third), None, false, "it is deleted"),
        ];
        let known = ScyllaOperator::new("lock", Some(Arc::default()));
        for (before, after, is_handover, why) in changes {
            assert_eq!(known.observe_change(&Change::new(key.clone(), before, after)), is_handover, "{why}");
        }
    }
}
