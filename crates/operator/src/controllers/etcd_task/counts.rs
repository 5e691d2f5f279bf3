//! What is counted of tasks.

use std::time::Duration;

use messina_api::druid::v1alpha1::{EtcdOperatorTask, EtcdOperatorTaskStatus, TaskState};
use messina_plan::etcd_task::is_finished;
use messina_runtime::{metrics::Metrics, queue::ObjectKey, store::Change};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use super::{lines::etcd_of, type_of};

/// Seconds at which buckets of durations end.
const BUCKETS: [f64; 10] = [0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10_800.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfType {
    r#type: String,
    state: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Finished {
    r#type: String,
    state: String,
    namespace: String,
    etcd: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCode {
    r#type: String,
    code: String,
}

/// What is counted of tasks. Clones count together.
#[derive(Clone, Debug)]
pub struct Counts {
    tasks: Family<OfType, Gauge>,
    finished: Family<Finished, Counter>,
    seconds: Family<OfType, Histogram, fn() -> Histogram>,
    errors: Family<ByCode, Counter>,
}

impl Counts {
    /// To be made once for each process.
    pub fn new(metrics: &Metrics) -> Self {
        let counts = Self {
            tasks: Family::default(),
            finished: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            errors: Family::default(),
        };
        metrics.register(|registry| {
            registry.register("etcd_tasks", "Tasks on etcd clusters, by how they stand", counts.tasks.clone());
            registry.register("etcd_tasks_finished", "Tasks that came to their end", counts.finished.clone());
            registry.register("etcd_task_seconds", "How long tasks ran", counts.seconds.clone());
            registry.register("etcd_task_errors", "Errors that tasks met", counts.errors.clone());
        });
        counts
    }

    /// What there is belongs to a leadership that is over.
    pub(super) fn forget_tasks(&self) {
        self.tasks.clear();
    }

    pub(super) fn take_in(&self, change: &Change<EtcdOperatorTask>) {
        if let Some(before) = change.before.as_deref() {
            self.tasks.get_or_create(&of_type(before)).dec();
        }
        let Some(after) = change.after.as_deref() else { return };
        self.tasks.get_or_create(&of_type(after)).inc();
        let Some(before) = change.before.as_deref() else { return };
        let (empty, before_status) = (EtcdOperatorTaskStatus::default(), before.status.as_ref());
        let (before_status, status) = (before_status.unwrap_or(&empty), after.status.as_ref().unwrap_or(&empty));
        self.count_errors(after, before_status, status);
        if is_finished(status.state.as_ref()) && !is_finished(before_status.state.as_ref()) {
            let etcd = etcd_of(after).unwrap_or_else(|| ObjectKey { namespace: None, name: String::new() });
            let OfType { r#type, state } = of_type(after);
            let namespace = etcd.namespace.unwrap_or_default();
            self.finished.get_or_create(&Finished { r#type, state, namespace, etcd: etcd.name }).inc();
            let ran = status.state != Some(TaskState::Rejected);
            if let Some(took) = took(status).filter(|_| ran) {
                self.seconds.get_or_create(&of_type(after)).observe(took.as_secs_f64());
            }
        }
    }

    fn count_errors(&self, task: &EtcdOperatorTask, before: &EtcdOperatorTaskStatus, now: &EtcdOperatorTaskStatus) {
        let known = before.last_errors.as_deref().unwrap_or_default();
        for error in now.last_errors.iter().flatten().filter(|error| !known.contains(error)) {
            let code = error.code.clone().unwrap_or_default();
            self.errors.get_or_create(&ByCode { r#type: type_of(task), code }).inc();
        }
    }
}

fn of_type(task: &EtcdOperatorTask) -> OfType {
    let state = task.status.as_ref().and_then(|status| status.state.as_ref());
    let state = match state {
        None => "New",
        Some(TaskState::Pending) => "Pending",
        Some(TaskState::InProgress) => "InProgress",
        Some(TaskState::Succeeded) => "Succeeded",
        Some(TaskState::Failed) => "Failed",
        Some(TaskState::Rejected) => "Rejected",
        Some(TaskState::Other(_)) => "Other",
    };
    OfType { r#type: type_of(task), state: state.to_owned() }
}

fn took(status: &EtcdOperatorTaskStatus) -> Option<Duration> {
    let ended = status.last_operation.as_ref()?.last_transition_time.as_ref()?.0;
    Duration::try_from(ended.duration_since(status.initiated_at.as_ref()?.0)).ok()
}
