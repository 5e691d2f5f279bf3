//! scylla-operator, which selects the same objects under a lease of its own: while it runs, nothing of them is changed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::{apps::v1::StatefulSet, coordination::v1::Lease};
use messina_plan::datacenter::takeover::{Active, has_written, is_led};
use messina_runtime::{
    controller::Suspension,
    queue::ObjectKey,
    store::{Change, Store},
};

/// The type of the condition of a datacenter that is left to scylla-operator.
pub(super) const CONDITION: &str = "ScyllaOperatorActive";

/// How often it is looked whether its Lease can be read.
const UNKNOWN: Duration = Duration::from_secs(10);

/// What is known of scylla-operator.
#[derive(Debug)]
pub(super) struct ScyllaOperator {
    /// The name of its Lease.
    name: String,
    /// Leases of the name that its own has, in all namespaces; none where it is said to be absent.
    leases: Option<Arc<Store<Lease>>>,
    /// When each was first seen, or seen to change.
    changed: Mutex<HashMap<ObjectKey, Timestamp>>,
}

impl ScyllaOperator {
    pub(super) fn new(name: &str, leases: Option<Arc<Store<Lease>>>) -> Self {
        Self { name: name.to_owned(), leases, changed: Mutex::default() }
    }

    /// Takes in a change of a lease, and says whether it was taken or given up: not each renewal concerns all datacenters.
    pub(super) fn take_in(&self, change: &Change<Lease>) -> bool {
        let now = Timestamp::now();
        let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_led = |lease: &Option<Arc<Lease>>, changed: Option<&Timestamp>| {
            let changed = changed.copied().unwrap_or(now);
            lease.as_ref().is_some_and(|lease| is_led(lease, changed, now).is_some())
        };
        let was_led = is_led(&change.before, changed.get(&change.key));
        let spec = |lease: &Option<Arc<Lease>>| lease.as_ref().and_then(|lease| lease.spec.clone());
        if change.after.is_none() {
            changed.remove(&change.key);
        } else if spec(&change.before) != spec(&change.after) {
            changed.insert(change.key.clone(), now);
        }
        was_led != is_led(&change.after, changed.get(&change.key))
    }

    fn leads(&self, now: Timestamp) -> Option<Active> {
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.leases.iter().flat_map(|leases| leases.all());
        let active = all.filter_map(|lease| {
            let key = ObjectKey { namespace: lease.metadata.namespace.clone(), name: lease.metadata.name.clone()? };
            is_led(&lease, changed.get(&key).copied().unwrap_or(now), now)
        });
        active.max_by_key(|active| active.until)
    }

    /// Whether it cannot be known that scylla-operator does not run.
    fn is_unknown(&self) -> bool {
        self.leases.as_ref().is_some_and(|leases| leases.is_forbidden() || leases.unreadable() > 0)
    }

    /// What the process waits for while scylla-operator leads.
    pub(super) fn blocked_on(&self) -> Option<String> {
        if self.is_unknown() {
            return Some(format!("permission to read scylla-operator's Lease {}", self.name));
        }
        let active = self.leads(Timestamp::now())?;
        Some(format!("scylla-operator to stop ({})", active.evidence))
    }

    /// Whether a datacenter with these StatefulSets is left to scylla-operator.
    pub(super) fn holds(&self, stateful_sets: &[Arc<StatefulSet>]) -> Option<Suspension> {
        let now = Timestamp::now();
        if self.is_unknown() {
            let message = format!(
                "It is not known whether scylla-operator is active, because its Lease {} cannot be read. The objects of this \
                 datacenter are not changed: let this operator list and watch leases of that name in all namespaces, or start \
                 it with --scylla-operator-absent if scylla-operator does not run in this cluster.",
                self.name
            );
            return Some(Suspension { message, requeue_after: UNKNOWN });
        }
        let active = self.leads(now).or_else(|| has_written(stateful_sets.iter().map(Arc::as_ref), now))?;
        let message = format!(
            "scylla-operator is active: {}. The objects of this datacenter are not changed before it has stopped: scale its \
             Deployment to 0 to have this operator take over, or this operator's to 0 to stay with scylla-operator. If it is gone \
             for good, delete its Lease.",
            active.evidence
        );
        let rest = Duration::try_from(active.until.duration_since(now)).unwrap_or_default();
        Some(Suspension { message, requeue_after: rest.max(Duration::from_secs(1)) })
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

    /// The clock of its holder is years behind.
    #[test]
    fn a_lease_with_a_holder_is_held_whatever_time_it_says() {
        let key = ObjectKey { namespace: Some("peer".into()), name: "lock".into() };
        let [first, second, third] =
            ["2020-01-01T00:00:00.000000Z", "2020-01-01T00:00:10.000000Z", "2020-01-01T00:00:20.000000Z"];
        let changes = [
            (None, lease("a", first), true, "how old it is, nobody knows"),
            (lease("a", first), lease("a", second), false, "it is renewed"),
            (lease("a", second), lease("a", third), false, "it is renewed again"),
            (lease("a", third), lease("", third), true, "it is released"),
            (lease("", third), None, false, "it is deleted"),
        ];
        let known = ScyllaOperator::new("lock", Some(Arc::default()));
        for (before, after, is_handover, why) in changes {
            assert_eq!(known.take_in(&Change::new(key.clone(), before, after)), is_handover, "{why}");
        }
    }
}
