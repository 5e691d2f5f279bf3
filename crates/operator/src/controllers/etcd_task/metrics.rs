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

use super::{lines::etcd_of, type_of};

/// Seconds at which buckets of durations end.
const BUCKETS: [f64; 10] = [0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 10_800.0];
/// At most this many tasks have series of their own, so that a flood of tasks is not a flood of series.
const NAMED_TASKS: usize = 1000;
/// At most this many Etcds are named by counters. The others are counted together, with empty labels.
const NAMED_ETCDS: usize = 1000;

/// At most this many codes of errors are labels.
const NAMED_CODES: usize = 100;

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

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfTask {
    namespace: String,
    task: String,
    r#type: String,
    etcd_namespace: String,
    etcd: String,
    state: String,
}

/// The objects that labels name.
#[derive(Debug, Default)]
struct Named {
    /// Number of tasks, also of those without series.
    count: usize,
    tasks: HashMap<ObjectKey, OfTask>,
    etcds: HashMap<ObjectKey, HashSet<Finished>>,
    codes: HashSet<String>,
}

/// Metrics of tasks. Clones share them.
#[derive(Clone, Debug)]
pub struct Counts {
    tasks: Family<OfType, Gauge>,
    finished: Family<Finished, Counter>,
    seconds: Family<OfType, Histogram, fn() -> Histogram>,
    errors: Family<ByCode, Counter>,
    info: Family<OfTask, Gauge>,
    duration: Family<OfTask, Gauge<f64, AtomicU64>>,
    without_series: Gauge,
    named: Arc<Mutex<Named>>,
}

impl Counts {
    /// To be made once for each process.
    pub fn new(metrics: &Metrics) -> Self {
        let counts = Self {
            tasks: Family::default(),
            finished: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            errors: Family::default(),
            info: Family::default(),
            duration: Family::default(),
            without_series: Gauge::default(),
            named: Arc::default(),
        };
        metrics.register(|registry| {
            registry.register("etcd_tasks", "Tasks on etcd clusters, by state", counts.tasks.clone());
            registry.register("etcd_tasks_finished", "Tasks that came to their end", counts.finished.clone());
            registry.register("etcd_task_seconds", "How long tasks ran", counts.seconds.clone());
            registry.register("etcd_task_errors", "Errors of tasks", counts.errors.clone());
            registry.register("etcd_task_info", "1 for each task, with its state", counts.info.clone());
            registry.register(
                "etcd_task_duration_seconds",
                "How long a finished task ran, while it exists",
                counts.duration.clone(),
            );
            registry.register(
                "etcd_tasks_without_series",
                "Tasks beyond the number of those that have series of their own",
                counts.without_series.clone(),
            );
        });
        counts
    }

    /// Removes the gauges and the series of Etcds: another process may lead now, and which Etcds are deleted meanwhile is not
    /// known here.
    pub(super) fn forget_tasks(&self) {
        self.tasks.clear();
        self.info.clear();
        self.duration.clear();
        self.without_series.set(0);
        let mut named = self.named();
        named.count = 0;
        named.tasks.clear();
        for labels in named.etcds.drain().flat_map(|(_, series)| series) {
            self.finished.remove(&labels);
        }
    }

    /// Counts a change of a task. `has_etcd` says whether an Etcd exists: series of one that is deleted would never be removed.
    pub(super) fn take_in(&self, change: &Change<EtcdOperatorTask>, has_etcd: impl Fn(&ObjectKey) -> bool) {
        if let Some(before) = change.before.as_deref() {
            self.tasks.get_or_create(&of_type(before)).dec();
        }
        self.name_task(change);
        let Some(after) = change.after.as_deref() else { return };
        self.tasks.get_or_create(&of_type(after)).inc();
        let Some(before) = change.before.as_deref() else { return };
        let (empty, before_status) = (EtcdOperatorTaskStatus::default(), before.status.as_ref());
        let (before_status, status) = (before_status.unwrap_or(&empty), after.status.as_ref().unwrap_or(&empty));
        self.count_errors(after, before_status, status);
        if is_finished(status.state.as_ref()) && !is_finished(before_status.state.as_ref()) {
            self.count_finished(after, has_etcd);
            if let Some(duration) = duration(status) {
                self.seconds.get_or_create(&of_type(after)).observe(duration.as_secs_f64());
            }
        }
    }

    /// Removes the series of an Etcd that is deleted.
    pub(super) fn remove_etcd(&self, etcd: &ObjectKey) {
        for labels in self.named().etcds.remove(etcd).into_iter().flatten() {
            self.finished.remove(&labels);
        }
    }

    /// Brings the series of one task up to date, and removes those of one that is gone.
    fn name_task(&self, change: &Change<EtcdOperatorTask>) {
        let mut named = self.named();
        let had_series = named.tasks.remove(&change.key);
        if let Some(labels) = &had_series {
            self.info.remove(labels);
            self.duration.remove(labels);
        }
        // One that was rejected has done nothing, and whoever creates many of them gets no series for it.
        let is_rejected = |task: &&EtcdOperatorTask| state_label(task) == "Rejected";
        let before = change.before.as_deref().filter(|task| !is_rejected(task));
        let after = change.after.as_deref().filter(|task| !is_rejected(task));
        match (before, after) {
            (None, Some(_)) => named.count += 1,
            (Some(_), None) => named.count = named.count.saturating_sub(1),
            _ => {}
        }
        if let Some(task) = after.filter(|_| named.tasks.len() < NAMED_TASKS) {
            let labels = of_task(task, &change.key);
            self.info.get_or_create(&labels).set(1);
            if let Some(duration) = task.status.as_ref().and_then(duration) {
                self.duration.get_or_create(&labels).set(duration.as_secs_f64());
            }
            named.tasks.insert(change.key.clone(), labels);
        }
        let without = named.count.saturating_sub(named.tasks.len());
        self.without_series.set(i64::try_from(without).unwrap_or(i64::MAX));
    }

    fn count_finished(&self, task: &EtcdOperatorTask, has_etcd: impl Fn(&ObjectKey) -> bool) {
        let OfType { r#type, state } = of_type(task);
        // Held until the series is there: an Etcd that is deleted meanwhile has it removed.
        let mut named = self.named();
        // What a rejected task names need not exist.
        let has_room = named.etcds.len() < NAMED_ETCDS && state != "Rejected";
        let is_named = |key: &ObjectKey| (has_room && has_etcd(key)) || named.etcds.contains_key(key);
        let labels = match etcd_of(task).filter(is_named) {
            None => Finished { r#type, state, namespace: String::new(), etcd: String::new() },
            Some(key) => {
                let namespace = key.namespace.clone().unwrap_or_default();
                let labels = Finished { r#type, state, namespace, etcd: key.name.clone() };
                named.etcds.entry(key).or_default().insert(labels.clone());
                labels
            }
        };
        self.finished.get_or_create(&labels).inc();
    }

    fn count_errors(&self, task: &EtcdOperatorTask, before: &EtcdOperatorTaskStatus, now: &EtcdOperatorTaskStatus) {
        let known = before.last_errors.as_deref().unwrap_or_default();
        for error in now.last_errors.iter().flatten().filter(|error| !known.contains(error)) {
            let code = self.code_label(error.code.as_deref().unwrap_or_default());
            self.errors.get_or_create(&ByCode { r#type: type_label(task), code }).inc();
        }
    }

    /// The code of an error. Ours are few; whoever can write statuses can write others.
    fn code_label(&self, code: &str) -> String {
        let mut named = self.named();
        if !named.codes.contains(code) {
            let is_code = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
            if named.codes.len() >= NAMED_CODES || !is_code {
                return "Other".to_owned();
            }
            named.codes.insert(code.to_owned());
        }
        code.to_owned()
    }

    fn named(&self) -> MutexGuard<'_, Named> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The type of a task. What the operator does not know is not a label: users may write anything there.
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

fn of_type(task: &EtcdOperatorTask) -> OfType {
    OfType { r#type: type_label(task), state: state_label(task).to_owned() }
}

fn of_task(task: &EtcdOperatorTask, key: &ObjectKey) -> OfTask {
    let (etcd_namespace, etcd) = task.etcd().unwrap_or_default();
    OfTask {
        namespace: key.namespace.clone().unwrap_or_default(),
        task: key.name.clone(),
        r#type: type_label(task),
        etcd_namespace,
        etcd,
        state: state_label(task).to_owned(),
    }
}

/// How long a finished task ran. None for one that was rejected, and for one whose end the deletion has overwritten.
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

    fn named_tasks(text: &str) -> usize {
        text.lines().filter(|line| line.starts_with("messina_etcd_task_info{")).count()
    }

    #[test]
    fn users_text_makes_no_series() {
        let metrics = Metrics::default();
        let counts = Counts::new(&metrics);
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
                    counts.take_in(&Change::new(key(number), step[0].clone(), step[1].clone()), |_| true);
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
    fn series_of_tasks_and_etcds_are_bounded_and_removed() {
        let metrics = Metrics::default();
        let counts = Counts::new(&metrics);
        for number in 0..NAMED_TASKS + 5 {
            counts.take_in(&Change::new(key(number), None, Some(task(number, "InProgress"))), |_| true);
            let (before, after) = (task(number, "InProgress"), task(number, "Succeeded"));
            counts.take_in(&Change::new(key(number), Some(before), Some(after)), |_| true);
        }
        let text = metrics.text().unwrap();
        assert_eq!(named_tasks(&text), NAMED_TASKS);
        assert!(text.contains("messina_etcd_tasks_without_series 5"), "{text}");
        let together = r#"finished_total{type="Compact",state="Succeeded",namespace="",etcd=""} 5"#;
        assert!(text.contains(together), "{text}");
        let ran = r#"messina_etcd_task_duration_seconds{namespace="default",task="task-7",type="Compact",etcd_namespace="default",etcd="etcd-7",state="Succeeded"} 9.0"#;
        assert!(text.contains(ran), "{text}");

        for number in 0..NAMED_TASKS {
            counts.take_in(&Change::new(key(number), Some(task(number, "Succeeded")), None), |_| true);
            counts.remove_etcd(&ObjectKey { namespace: Some("default".into()), name: format!("etcd-{number}") });
        }
        let text = metrics.text().unwrap();
        assert_eq!(named_tasks(&text), 0);
        assert!(!text.contains(r#"etcd="etcd-"#), "{text}");
        // There is room again for those that are left, once they change.
        let last = NAMED_TASKS + 4;
        let after = Some(task(last, "Failed"));
        counts.take_in(&Change::new(key(last), Some(task(last, "Succeeded")), after), |_| true);
        let text = metrics.text().unwrap();
        assert_eq!(named_tasks(&text), 1);
        assert!(text.contains("messina_etcd_tasks_without_series 4"), "{text}");
        counts.forget_tasks();
        assert_eq!(named_tasks(&metrics.text().unwrap()), 0);
    }

    #[test]
    fn finished_tasks_of_deleted_etcds_leave_no_series_of_their_own() {
        let metrics = Metrics::default();
        let counts = Counts::new(&metrics);
        for number in 0..3 {
            let (before, after) = (task(number, "InProgress"), task(number, "Failed"));
            counts.take_in(&Change::new(key(number), Some(before), Some(after)), |etcd| etcd.name == "etcd-0");
        }
        let text = metrics.text().unwrap();
        let together = r#"finished_total{type="Compact",state="Failed",namespace="",etcd=""} 2"#;
        assert!(text.contains(together) && text.contains(r#"etcd="etcd-0""#), "{text}");
        assert!(
            !text.contains(r#"finished_total{type="Compact",state="Failed",namespace="default",etcd="etcd-1""#),
            "{text}"
        );
        counts.forget_tasks();
        let text = metrics.text().unwrap();
        assert!(text.contains(together) && !text.contains(r#"etcd="etcd-0""#), "{text}");
    }
}
