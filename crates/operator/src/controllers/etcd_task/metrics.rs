//! Metrics of tasks.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use messina_api::druid::v1alpha1::{
    EtcdOperatorTask, EtcdOperatorTaskStatus, EtcdOperatorTaskType, OperationType, TaskState,
};
use messina_plan::etcd_task::is_finished;
use messina_runtime::{metrics::Metrics, queue::ObjectKey, store::Change};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
};

use super::{queues::etcd_of, type_of};

/// Upper bounds of the buckets of durations, in seconds.
const DURATION_BUCKETS: [f64; 10] = [0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10_800.0];
/// Maximum number of tasks with series of their own, so that users who create many tasks do not create as many series.
const MAX_LABELLED_TASKS: usize = 1000;
/// Maximum number of Etcds that have labels in counters. The others are counted together, with empty labels.
const MAX_LABELLED_ETCDS: usize = 1000;

/// Maximum number of error codes that are labels.
const MAX_ERROR_CODES: usize = 100;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TypeLabels {
    r#type: String,
    state: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FinishedLabels {
    r#type: String,
    state: String,
    namespace: String,
    etcd: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ErrorLabels {
    r#type: String,
    code: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TaskLabels {
    namespace: String,
    task: String,
    r#type: String,
    etcd_namespace: String,
    etcd: String,
    state: String,
}

/// The objects and error codes that have series of their own.
#[derive(Debug, Default)]
struct LabelledObjects {
    /// Number of tasks, including those without series.
    count: usize,
    tasks: HashMap<ObjectKey, TaskLabels>,
    etcds: HashMap<ObjectKey, HashSet<FinishedLabels>>,
    codes: HashSet<String>,
}

/// Metrics of tasks. Clones share them.
#[derive(Clone, Debug)]
pub struct TaskMetrics {
    tasks: Family<TypeLabels, Gauge>,
    finished: Family<FinishedLabels, Counter>,
    seconds: Family<TypeLabels, Histogram, fn() -> Histogram>,
    errors: Family<ErrorLabels, Counter>,
    info: Family<TaskLabels, Gauge>,
    duration: Family<TaskLabels, Gauge<f64, AtomicU64>>,
    without_series: Gauge,
    labelled: Arc<Mutex<LabelledObjects>>,
}

impl TaskMetrics {
    /// Registers the metrics. To be called once for each process.
    pub fn new(metrics: &Metrics) -> Self {
        let task_metrics = Self {
            tasks: Family::default(),
            finished: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(DURATION_BUCKETS)),
            errors: Family::default(),
            info: Family::default(),
            duration: Family::default(),
            without_series: Gauge::default(),
            labelled: Arc::default(),
        };
        metrics.register(|registry| {
            registry.register("etcd_tasks", "Tasks on etcd clusters, by state", task_metrics.tasks.clone());
            registry.register(
                "etcd_tasks_finished",
                "Tasks that succeeded, failed or were rejected",
                task_metrics.finished.clone(),
            );
            registry.register("etcd_task_seconds", "Run time of finished tasks", task_metrics.seconds.clone());
            registry.register("etcd_task_errors", "Errors of tasks, by code", task_metrics.errors.clone());
            registry.register("etcd_task_info", "1 for each task, with its state", task_metrics.info.clone());
            registry.register(
                "etcd_task_duration_seconds",
                "Run time of a finished task, as long as the task exists",
                task_metrics.duration.clone(),
            );
            registry.register(
                "etcd_tasks_without_series",
                "Tasks without series of their own, because the maximum number of series is reached",
                task_metrics.without_series.clone(),
            );
        });
        task_metrics
    }

    /// Removes the gauges and the series of Etcds: this process may no longer be the leader, and does not observe
    /// which Etcds are deleted meanwhile.
    pub(super) fn forget_tasks(&self) {
        self.tasks.clear();
        self.info.clear();
        self.duration.clear();
        self.without_series.set(0);
        let mut labelled = self.labelled();
        labelled.count = 0;
        labelled.tasks.clear();
        for labels in labelled.etcds.drain().flat_map(|(_, series)| series) {
            self.finished.remove(&labels);
        }
    }

    /// Counts a change of a task. `has_etcd` returns whether an Etcd exists: series of a deleted one would never be
    /// removed.
    pub(super) fn apply_change(&self, change: &Change<EtcdOperatorTask>, has_etcd: impl Fn(&ObjectKey) -> bool) {
        if let Some(before) = change.before.as_deref() {
            self.tasks.get_or_create(&type_labels(before)).dec();
        }
        self.update_task_series(change);
        let Some(after) = change.after.as_deref() else { return };
        self.tasks.get_or_create(&type_labels(after)).inc();
        let Some(before) = change.before.as_deref() else { return };
        let (empty, before_status) = (EtcdOperatorTaskStatus::default(), before.status.as_ref());
        let (before_status, status) = (before_status.unwrap_or(&empty), after.status.as_ref().unwrap_or(&empty));
        self.count_errors(after, before_status, status);
        if is_finished(status.state.as_ref()) && !is_finished(before_status.state.as_ref()) {
            self.count_finished(after, has_etcd);
            if let Some(duration) = duration(status) {
                self.seconds.get_or_create(&type_labels(after)).observe(duration.as_secs_f64());
            }
        }
    }

    /// Removes the series of a deleted Etcd.
    pub(super) fn remove_etcd(&self, etcd: &ObjectKey) {
        for labels in self.labelled().etcds.remove(etcd).into_iter().flatten() {
            self.finished.remove(&labels);
        }
    }

    /// Updates the series of a task, or removes them if it is deleted.
    fn update_task_series(&self, change: &Change<EtcdOperatorTask>) {
        let mut labelled = self.labelled();
        let had_series = labelled.tasks.remove(&change.key);
        if let Some(labels) = &had_series {
            self.info.remove(labels);
            self.duration.remove(labels);
        }
        // Rejected tasks have no series: a user could create any number of them.
        let is_rejected = |task: &&EtcdOperatorTask| state_label(task) == "Rejected";
        let before = change.before.as_deref().filter(|task| !is_rejected(task));
        let after = change.after.as_deref().filter(|task| !is_rejected(task));
        match (before, after) {
            (None, Some(_)) => labelled.count += 1,
            (Some(_), None) => labelled.count = labelled.count.saturating_sub(1),
            _ => {}
        }
        if let Some(task) = after.filter(|_| labelled.tasks.len() < MAX_LABELLED_TASKS) {
            let labels = task_labels(task, &change.key);
            self.info.get_or_create(&labels).set(1);
            if let Some(duration) = task.status.as_ref().and_then(duration) {
                self.duration.get_or_create(&labels).set(duration.as_secs_f64());
            }
            labelled.tasks.insert(change.key.clone(), labels);
        }
        let without = labelled.count.saturating_sub(labelled.tasks.len());
        self.without_series.set(i64::try_from(without).unwrap_or(i64::MAX));
    }

    fn count_finished(&self, task: &EtcdOperatorTask, has_etcd: impl Fn(&ObjectKey) -> bool) {
        let TypeLabels { r#type, state } = type_labels(task);
        // The lock is held until the series exists, so that the deletion of the Etcd removes it.
        let mut labelled = self.labelled();
        // The Etcd of a rejected task need not exist.
        let has_room = labelled.etcds.len() < MAX_LABELLED_ETCDS && state != "Rejected";
        let is_labelled = |key: &ObjectKey| (has_room && has_etcd(key)) || labelled.etcds.contains_key(key);
        let labels = match etcd_of(task).filter(is_labelled) {
            None => FinishedLabels { r#type, state, namespace: String::new(), etcd: String::new() },
            Some(key) => {
                let namespace = key.namespace.clone().unwrap_or_default();
                let labels = FinishedLabels { r#type, state, namespace, etcd: key.name.clone() };
                labelled.etcds.entry(key).or_default().insert(labels.clone());
                labels
            }
        };
        self.finished.get_or_create(&labels).inc();
    }

    fn count_errors(&self, task: &EtcdOperatorTask, before: &EtcdOperatorTaskStatus, now: &EtcdOperatorTaskStatus) {
        let known = before.last_errors.as_deref().unwrap_or_default();
        for error in now.last_errors.iter().flatten().filter(|error| !known.contains(error)) {
            let code = self.code_label(error.code.as_deref().unwrap_or_default());
            self.errors.get_or_create(&ErrorLabels { r#type: type_label(task), code }).inc();
        }
    }

    /// Returns the label for an error code. The operator has few codes, but users who may write statuses can write
    /// others.
    fn code_label(&self, code: &str) -> String {
        let mut labelled = self.labelled();
        if !labelled.codes.contains(code) {
            let is_code = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
            if labelled.codes.len() >= MAX_ERROR_CODES || !is_code {
                return "Other".to_owned();
            }
            labelled.codes.insert(code.to_owned());
        }
        code.to_owned()
    }

    fn labelled(&self) -> MutexGuard<'_, LabelledObjects> {
        self.labelled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the label for the type of a task. Unknown types share one label, because users may write any text there.
fn type_label(task: &EtcdOperatorTask) -> String {
    match &task.spec.task_type {
        None | Some(EtcdOperatorTaskType::Other(_)) => "Other".to_owned(),
        Some(_) => type_of(task),
    }
}

fn state_label(task: &EtcdOperatorTask) -> &'static str {
    match task.status.as_ref().and_then(|status| status.state.as_ref()) {
        None => "New",
        Some(TaskState::Pending) => "Pending",
        Some(TaskState::InProgress) => "InProgress",
        Some(TaskState::Succeeded) => "Succeeded",
        Some(TaskState::Failed) => "Failed",
        Some(TaskState::Rejected) => "Rejected",
        Some(TaskState::Other(_)) => "Other",
    }
}

fn type_labels(task: &EtcdOperatorTask) -> TypeLabels {
    TypeLabels { r#type: type_label(task), state: state_label(task).to_owned() }
}

fn task_labels(task: &EtcdOperatorTask, key: &ObjectKey) -> TaskLabels {
    let (etcd_namespace, etcd) = task.etcd().unwrap_or_default();
    TaskLabels {
        namespace: key.namespace.clone().unwrap_or_default(),
        task: key.name.clone(),
        r#type: type_label(task),
        etcd_namespace,
        etcd,
        state: state_label(task).to_owned(),
    }
}

/// Returns the run time of a finished task; none if it was rejected, or if the deletion has overwritten
/// `lastOperation`.
fn duration(status: &EtcdOperatorTaskStatus) -> Option<Duration> {
    let has_run = matches!(status.state, Some(TaskState::Succeeded | TaskState::Failed));
    let operation = status.last_operation.as_ref().filter(|_| has_run)?;
    if operation.operation_type == Some(OperationType::Delete) {
        return None;
    }
    let ended = operation.last_transition_time.as_ref()?.0;
    Duration::try_from(ended.duration_since(status.initiated_at.as_ref()?.0)).ok()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(number: usize) -> ObjectKey {
        ObjectKey { namespace: Some("default".into()), name: format!("task-{number}") }
    }

    fn task(number: usize, state: &str) -> Arc<EtcdOperatorTask> {
        let task = json!({
            "metadata": {"name": format!("task-{number}"), "namespace": "default"},
            "spec": {"type": "Compact", "etcdReference": {"name": format!("etcd-{number}")}},
            "status": {
                "state": state,
                "initiatedAt": "2026-11-17T00:00:00Z",
                "lastOperation": {"state": "Completed", "lastTransitionTime": "2026-11-17T00:00:09Z"},
            },
        });
        Arc::new(serde_json::from_value(task).unwrap())
    }

    fn count_task_series(text: &str) -> usize {
        text.lines().filter(|line| line.starts_with("messina_etcd_task_info{")).count()
    }

    #[test]
    fn unknown_types_and_codes_create_no_series() {
        let metrics = Metrics::default();
        let task_metrics = TaskMetrics::new(&metrics);
        let odd = |number: usize, state: Option<&str>| -> Option<Arc<EtcdOperatorTask>> {
            let error = json!({"code": format!("odd {number}"), "description": "x"});
            let task = json!({
                "metadata": {"name": format!("task-{number}"), "namespace": "default"},
                "spec": {"type": format!("type-{number}"), "etcdReference": {"name": format!("etcd-{number}")}},
                "status": {"state": state, "lastErrors": state.map(|_| [error])},
            });
            Some(Arc::new(serde_json::from_value(task).unwrap()))
        };
        let lines = || metrics.text().unwrap().lines().filter(|line| line.starts_with("messina_etcd_")).count();
        let churn = |numbers: std::ops::Range<usize>| {
            for number in numbers {
                let steps = [None, odd(number, None), odd(number, Some("Rejected")), None];
                for step in steps.windows(2) {
                    task_metrics.apply_change(&Change::new(key(number), step[0].clone(), step[1].clone()), |_| true);
                }
            }
        };
        churn(0..1);
        let few = lines();
        churn(1..10_000);
        assert_eq!(lines(), few);
        let text = metrics.text().unwrap();
        assert!(text.contains(r#"messina_etcd_task_errors_total{type="Other",code="Other"} 10000"#), "{text}");
    }

    #[test]
    fn series_of_tasks_and_etcds_are_limited_and_removed() {
        let metrics = Metrics::default();
        let task_metrics = TaskMetrics::new(&metrics);
        for number in 0..MAX_LABELLED_TASKS + 5 {
            task_metrics.apply_change(&Change::new(key(number), None, Some(task(number, "InProgress"))), |_| true);
            let (before, after) = (task(number, "InProgress"), task(number, "Succeeded"));
            task_metrics.apply_change(&Change::new(key(number), Some(before), Some(after)), |_| true);
        }
        let text = metrics.text().unwrap();
        assert_eq!(count_task_series(&text), MAX_LABELLED_TASKS);
        assert!(text.contains("messina_etcd_tasks_without_series 5"), "{text}");
        let together = r#"finished_total{type="Compact",state="Succeeded",namespace="",etcd=""} 5"#;
        assert!(text.contains(together), "{text}");
        let ran = r#"messina_etcd_task_duration_seconds{namespace="default",task="task-7",type="Compact",etcd_namespace="default",etcd="etcd-7",state="Succeeded"} 9.0"#;
        assert!(text.contains(ran), "{text}");

        for number in 0..MAX_LABELLED_TASKS {
            task_metrics.apply_change(&Change::new(key(number), Some(task(number, "Succeeded")), None), |_| true);
            task_metrics.remove_etcd(&ObjectKey { namespace: Some("default".into()), name: format!("etcd-{number}") });
        }
        let text = metrics.text().unwrap();
        assert_eq!(count_task_series(&text), 0);
        assert!(!text.contains(r#"etcd="etcd-"#), "{text}");
        // The remaining tasks get series when they change.
        let last = MAX_LABELLED_TASKS + 4;
        let after = Some(task(last, "Failed"));
        task_metrics.apply_change(&Change::new(key(last), Some(task(last, "Succeeded")), after), |_| true);
        let text = metrics.text().unwrap();
        assert_eq!(count_task_series(&text), 1);
        assert!(text.contains("messina_etcd_tasks_without_series 4"), "{text}");
        task_metrics.forget_tasks();
        assert_eq!(count_task_series(&metrics.text().unwrap()), 0);
    }

    #[test]
    fn finished_tasks_of_deleted_etcds_create_no_series() {
        let metrics = Metrics::default();
        let task_metrics = TaskMetrics::new(&metrics);
        for number in 0..3 {
            let (before, after) = (task(number, "InProgress"), task(number, "Failed"));
            task_metrics
                .apply_change(&Change::new(key(number), Some(before), Some(after)), |etcd| etcd.name == "etcd-0");
        }
        let text = metrics.text().unwrap();
        let together = r#"finished_total{type="Compact",state="Failed",namespace="",etcd=""} 2"#;
        assert!(text.contains(together) && text.contains(r#"etcd="etcd-0""#), "{text}");
        assert!(
            !text.contains(r#"finished_total{type="Compact",state="Failed",namespace="default",etcd="etcd-1""#),
            "{text}"
        );
        task_metrics.forget_tasks();
        let text = metrics.text().unwrap();
        assert!(text.contains(together) && !text.contains(r#"etcd="etcd-0""#), "{text}");
    }
}
