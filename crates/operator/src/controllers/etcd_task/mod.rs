//! The controller of EtcdOperatorTasks, which is the same for all types; a [`Handler`] does the work of each type.
//!
//! Handlers run as background tasks. Their results are part of the observed state, so that one pure function decides
//! every step of a task. The operator writes the decision to the status first and takes the step only then.

mod dependencies;
mod handler;
mod jobs;
mod maintenance;
mod metrics;
mod queues;
mod snapshot;

use std::{
    collections::HashMap,
    future::{Future, ready},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub use dependencies::{Dependencies, MemberConnector};
pub use handler::{Handler, HandlerContext, Registry};
use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use messina_api::{
    druid::v1alpha1::{Etcd, EtcdOperatorTask, EtcdOperatorTaskType, TaskState},
    names::finalizer,
};
use messina_clients::Resolver;
use messina_plan::etcd_task::{
    self, EtcdAvailability, NextStep, Options, Plan, Stage, StageState, TaskError, TaskResult, code, is_finished,
    is_old_enough, queue::created_at,
};
use messina_runtime::{
    apply::{Applied, ComponentPlan, Deletion},
    background_tasks::{BackgroundTaskState, BackgroundTasks},
    cluster::{Cluster, Selection},
    controller::{Controller, ControllerBuilder, Running, reference},
    error::Error,
    events::{Events, Note},
    fence::Fence,
    queue::ObjectKey,
    status::Report,
    store::{Change, Store, controller_of, key_of},
};
pub use metrics::TaskMetrics;
use tokio::time::Instant;
use tracing::warn;

use self::queues::{TaskQueues, etcd_of};
use super::{jobs as all_jobs, reasons};

/// Minimum time between two writes of the status of a task if only its position in the queue has changed.
const REFRESH: Duration = Duration::from_secs(120);

/// Settings of the controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The handlers by type.
    pub registry: Registry,
    /// Resolver of the names of etcd members and sidecars.
    pub resolver: Resolver,
    /// Whether this process is the leader.
    pub fence: Fence,
    /// The image of etcd-backup-restore for Jobs, unless the Etcd sets one.
    pub backup_restore_image: String,
    /// Metrics of tasks.
    pub task_metrics: TaskMetrics,
}

/// The controller of EtcdOperatorTasks.
pub struct TaskController {
    registry: Registry,
    dependencies: Arc<Dependencies>,
    etcds: Arc<Store<Etcd>>,
    /// The namespace that the operator watches; none for all.
    namespace: Option<String>,
    queues: TaskQueues,
    background_tasks: BackgroundTasks<(Stage, TaskResult)>,
    records: TaskRecords,
    task_metrics: TaskMetrics,
    events: Events,
}

impl Drop for TaskController {
    fn drop(&mut self) {
        // The current leader exports the metrics of tasks.
        self.task_metrics.forget_tasks();
    }
}

/// What the operator keeps in memory about a task while it is the leader.
#[derive(Debug, Default)]
struct TaskRecord {
    /// Whether this process started the task. Requests of another process are unknown here.
    started_here: bool,
    /// When a request may have been sent whose outcome is unknown.
    unconfirmed_since: Option<Instant>,
    /// Whether this process has called `run` of the handler.
    has_run: bool,
    /// The stage of the last call of the handler.
    stage: Option<Stage>,
    /// Number of consecutive calls of the handler that failed.
    failures: u32,
    /// When the handler is called again.
    call_at: Option<Instant>,
    /// Whether an object that the handler waits for has changed since the last call began. Its result may be outdated
    /// then.
    is_call_due: bool,
    /// When the position in the queue was last reported.
    position_reported_at: Option<Instant>,
}

impl TaskRecord {
    /// Records that a call of the handler begins.
    fn begin(&mut self, stage: Stage) {
        self.stage = Some(stage);
        self.call_at = None;
        self.is_call_due = false;
    }

    /// Returns the delay before the next call of the handler, which is zero if a call is due.
    fn effective_delay(&self, time: Duration) -> Duration {
        if self.is_call_due { Duration::ZERO } else { time }
    }
}

/// The records of all tasks, by UID.
#[derive(Debug, Default)]
struct TaskRecords(Mutex<HashMap<String, TaskRecord>>);

impl TaskRecords {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, TaskRecord>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the handler of a task be called without delay, because an object that it waits for has changed.
    fn call_now(&self, uid: &str) {
        if let Some(record) = self.lock().get_mut(uid) {
            record.is_call_due = true;
            record.call_at = record.call_at.map(|_| Instant::now());
        }
    }
}

/// The observed state of a task.
pub struct Observed {
    task: Arc<EtcdOperatorTask>,
    etcd: Option<Arc<Etcd>>,
    handler: Option<Arc<dyn Handler>>,
    known: etcd_task::Observed,
}

/// Declares the controller: its tasks, and the changes that requeue them.
pub fn declare(cluster: &mut Cluster, settings: Settings) -> Arc<Running<TaskController>> {
    let controller = TaskController::new(cluster, settings);
    let mut builder = ControllerBuilder::new(cluster, controller, Selection::all());
    builder
        .observes(Selection::all(), TaskController::observe_task)
        .observes(etcds(), TaskController::observe_etcd)
        .observes(all_jobs(), TaskController::observe_job)
        .owns(all_jobs())
        .watches_changes(Selection::all(), TaskController::affected_by_task)
        .watches(etcds(), |controller, etcd| controller.queues.of(&key_of(etcd)))
        .requeued_by(|controller, requeue| controller.background_tasks.on_done(requeue));
    builder.build()
}

fn etcds() -> Selection<Etcd> {
    Selection::all().if_served()
}

/// Emits a warning event when a task fails or is rejected.
fn emit_warning(events: &Events, change: &Change<EtcdOperatorTask>) {
    let state = |task: &Option<Arc<EtcdOperatorTask>>| task.as_ref().and_then(|task| task.status.clone()?.state);
    let (Some(task), Some(_)) = (&change.after, &change.before) else { return };
    let (before, now) = (state(&change.before), state(&change.after));
    if before == now {
        return;
    }
    let reason = match now {
        Some(TaskState::Failed) => reasons::TASK_FAILED,
        Some(TaskState::Rejected) => reasons::TASK_REJECTED,
        _ => return,
    };
    let description = task.status.as_ref().and_then(|status| status.last_operation.as_ref()?.description.clone());
    events.emit(reference(task.as_ref()), Note::warning(reason, description.unwrap_or_default()));
}

fn type_of(task: &EtcdOperatorTask) -> String {
    let name = task.spec.task_type.as_ref().map(|known| match known {
        EtcdOperatorTaskType::Other(name) => name.clone(),
        known => serde_json::to_value(known).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default(),
    });
    name.unwrap_or_default()
}

impl TaskController {
    fn new(cluster: &mut Cluster, settings: Settings) -> Self {
        let Settings { registry, resolver, fence, backup_restore_image, task_metrics } = settings;
        let (client, jobs) = (cluster.client().clone(), cluster.store(all_jobs()));
        Self {
            registry,
            dependencies: Arc::new(Dependencies { client, resolver, fence, backup_restore_image, jobs }),
            etcds: cluster.store(etcds()),
            namespace: cluster.namespace().map(str::to_owned),
            queues: TaskQueues::default(),
            background_tasks: BackgroundTasks::default(),
            records: TaskRecords::default(),
            task_metrics,
            events: cluster.events().clone(),
        }
    }

    fn observe_task(&self, change: &Change<EtcdOperatorTask>) {
        self.queues.apply_change(change, |task| self.needs_cleanup(task));
        self.task_metrics.apply_change(change, |etcd| self.etcds.get(etcd).map_or(true, |etcd| etcd.is_some()));
        emit_warning(&self.events, change);
        // Another task of the same name must not get the result of the deleted one.
        let uid = |metadata: Option<&ObjectMeta>| metadata.and_then(|metadata| metadata.uid.clone());
        let after = uid(change.metadata_after());
        if change.begins_deletion() {
            // The task stops, and its cleanup does not wait for a retry of the execution.
            self.background_tasks.forget(&change.key);
            if let Some(record) = self.records.lock().get_mut(after.as_deref().unwrap_or_default()) {
                (record.call_at, record.failures) = (None, 0);
            }
        }
        if let Some(gone) = uid(change.metadata_before()).filter(|before| after.as_ref() != Some(before)) {
            self.records.lock().remove(&gone);
            self.background_tasks.forget(&change.key);
        }
    }

    fn observe_etcd(&self, change: &Change<Etcd>) {
        if change.is_gone() {
            self.task_metrics.remove_etcd(&change.key);
        }
        // Most changes of an Etcd do not affect whether a retry can succeed. The number of ready members does.
        let ready = |etcd: &Option<Arc<Etcd>>| etcd.as_ref().map_or(0, |etcd| etcd.ready_replicas());
        if ready(&change.before) != ready(&change.after) {
            self.queues.uids_of(&change.key).iter().for_each(|uid| self.records.call_now(uid));
        }
    }

    fn observe_job(&self, change: &Change<Job>) {
        for owner in change.metadata().filter_map(controller_of) {
            self.records.call_now(&owner.uid);
        }
    }

    /// Returns the tasks whose position in the queue a change of a task affects.
    fn affected_by_task(&self, change: &Change<EtcdOperatorTask>) -> Vec<ObjectKey> {
        if change.unreadable_before.is_some() {
            // The queue of a task that could not be decoded is unknown.
            return self.queues.all();
        }
        let versions = [&change.before, &change.after].into_iter().flatten();
        versions.filter_map(|task| etcd_of(task)).flat_map(|etcd| self.queues.of(&etcd)).collect()
    }

    fn needs_cleanup(&self, task: &EtcdOperatorTask) -> bool {
        let handler = self.registry.find(&type_of(task));
        handler.is_ok_and(|handler| handler.cleanup(task, &self.dependencies).is_some())
    }

    fn observed(&self, task: &Arc<EtcdOperatorTask>) -> Observed {
        let handler = self.registry.find(&type_of(task));
        let needs_cleanup = self.needs_cleanup(task);
        let options = handler.clone().and_then(|handler| handler.options(task.spec.config.as_ref()));
        let (options, etcd, availability) = self.availability(task, options);
        let key = key_of(&task.metadata);
        let status = task.status.clone().unwrap_or_default();
        let uid = task.metadata.uid.clone().unwrap_or_default();
        let is_over = is_finished(status.state.as_ref());
        let now = Timestamp::now();
        let may_start = is_old_enough(created_at(task), now);
        let is_being_deleted = task.metadata.deletion_timestamp.is_some();
        let ahead = if is_over || is_being_deleted || options.is_err() {
            Vec::new()
        } else {
            self.queues.ahead(task, may_start)
        };
        let mut records = self.records.lock();
        let record = records.entry(uid).or_default();
        let stage_state = match (self.background_tasks.state(&key), record.call_at) {
            (BackgroundTaskState::Done((stage, result)), _) => StageState::Done(stage, result),
            (BackgroundTaskState::Running, _) => StageState::Running(record.stage.unwrap_or(Stage::Run)),
            (BackgroundTaskState::None, Some(until)) => {
                StageState::Waiting(until.saturating_duration_since(Instant::now()))
            }
            (BackgroundTaskState::None, None) => StageState::None,
        };
        let known = etcd_task::Observed {
            status,
            generation: task.metadata.generation,
            created_at: created_at(task),
            is_being_deleted,
            time_to_live: task
                .spec
                .ttl_seconds_after_finished
                .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())),
            options,
            needs_cleanup,
            etcd: availability,
            ahead,
            may_refresh: record.position_reported_at.is_none_or(|reported_at| reported_at.elapsed() >= REFRESH),
            stage_state,
            failures: record.failures,
            now,
        };
        Observed { task: Arc::clone(task), etcd, handler: handler.ok(), known }
    }

    fn availability(
        &self,
        task: &EtcdOperatorTask,
        options: Result<Options, TaskError>,
    ) -> (Result<Options, TaskError>, Option<Arc<Etcd>>, EtcdAvailability) {
        let Some(key) = etcd_of(task) else {
            let description = "spec.etcdReference.name is required: set it to the Etcd that the task is for";
            let error = TaskError::new(code::NO_ETCD, description);
            return (options.and(Err(error)), None, EtcdAvailability::Found);
        };
        if self.etcds.is_missing() {
            return (options, None, EtcdAvailability::NotServed);
        }
        if let Some(watched) = self.namespace.as_ref().filter(|watched| key.namespace.as_ref() != Some(*watched)) {
            return (options, None, EtcdAvailability::NotWatched(key.to_string(), watched.clone()));
        }
        let etcd = match self.etcds.get(&key) {
            Ok(etcd) => etcd.filter(|etcd| etcd.metadata.deletion_timestamp.is_none()),
            // This is not an error of the reconcile: the deadline of the task still applies, and its status reports
            // the problem.
            Err(unreadable) => return (options, None, EtcdAvailability::Unreadable(unreadable.to_string())),
        };
        let availability =
            if etcd.is_some() { EtcdAvailability::Found } else { EtcdAvailability::NotFound(key.to_string()) };
        (options, etcd, availability)
    }

    /// Calls the handler in a background task.
    fn call_handler(&self, key: ObjectKey, observed: &Observed, stage: Stage, record: &mut TaskRecord) {
        let Some(handler) = observed.handler.clone() else { return };
        if stage == Stage::CleanUp {
            record.begin(stage);
            // Any other call for a finished task is obsolete.
            self.background_tasks.forget(&key);
            let (task, dependencies) = (Arc::clone(&observed.task), Arc::clone(&self.dependencies));
            let cleanup = async move { (stage, clean_up(handler.as_ref(), &task, &dependencies).await) };
            self.background_tasks.start(key, cleanup, panicked(stage));
            return;
        }
        let Some(etcd) = observed.etcd.clone() else { return };
        if stage == Stage::Run && !record.started_here && !record.has_run {
            // Another operator process may have sent a request shortly before.
            record.unconfirmed_since = Some(Instant::now());
        }
        let context = HandlerContext {
            task: Arc::clone(&observed.task),
            etcd,
            dependencies: Arc::clone(&self.dependencies),
            unconfirmed_since: record.unconfirmed_since,
            is_repeated: record.has_run,
        };
        record.has_run |= stage == Stage::Run;
        record.begin(stage);
        let call = async move {
            let result = match stage {
                Stage::Admit => handler.admit(&context).await,
                Stage::Run => handler.run(&context).await,
                Stage::CleanUp => clean_up(handler.as_ref(), &context.task, &context.dependencies).await,
            };
            (stage, result)
        };
        self.background_tasks.start(key, call, panicked(stage));
    }

    fn report_failed_cleanup(&self, task: &EtcdOperatorTask, result: &TaskResult) {
        if let Some(error) = &result.error {
            warn!(code = error.code, problem = error.description, "cleanup of the task failed");
            self.events.emit(reference(task), Note::warning(reasons::TASK_CLEANUP_FAILED, error.description.clone()));
        }
    }
}

/// Returns the result of a handler that panicked. It may have sent a request before.
fn panicked(stage: Stage) -> impl FnOnce(String) -> (Stage, TaskResult) {
    move |problem| {
        let description = format!(
            "The operator failed with an internal error: {problem}. It retries the task. Please report this bug."
        );
        let result = TaskResult::retry(TaskError::new("ERR_INTERNAL", description));
        (stage, TaskResult { is_outcome_unknown: stage == Stage::Run, ..result })
    }
}

async fn clean_up(handler: &dyn Handler, task: &EtcdOperatorTask, dependencies: &Dependencies) -> TaskResult {
    match handler.cleanup(task, dependencies) {
        Some(cleanup) => cleanup.await,
        None => TaskResult::done("There was nothing to clean up."),
    }
}

impl Controller for TaskController {
    type Object = EtcdOperatorTask;
    type Observed = Observed;
    type Plan = Plan;
    const NAME: &'static str = "etcd-task";
    const FIELD_MANAGER: &'static str = "messina-etcd-task";
    const FINALIZER: Option<&'static str> = Some(finalizer::ETCD_OPERATOR_TASK);
    const HAS_CONDITIONS: bool = false;

    fn observe(&self, object: &Arc<EtcdOperatorTask>) -> impl Future<Output = Result<Observed, Error>> + Send {
        ready(Ok(self.observed(object)))
    }

    fn plan(&self, observed: &Observed) -> Plan {
        match observed.known.is_being_deleted {
            true => etcd_task::decide_deletion(&observed.known),
            false => etcd_task::decide(&observed.known),
        }
    }

    fn components(&self, observed: &Observed, plan: &Plan) -> Result<Vec<ComponentPlan>, Error> {
        let deletions = match plan.next {
            NextStep::Delete => vec![Deletion::new(observed.task.as_ref())],
            _ => Vec::new(),
        };
        Ok(vec![ComponentPlan { name: "Task", deletions, ..ComponentPlan::default() }])
    }

    fn report(&self, observed: &Observed, plan: &Plan, _: &[Applied]) -> Report {
        let mut records = self.records.lock();
        let record = records.entry(observed.task.metadata.uid.clone().unwrap_or_default()).or_default();
        let (before, now) = (observed.known.status.state.as_ref(), plan.status.state.as_ref());
        if before != now && now == Some(&TaskState::InProgress) {
            record.started_here = true;
        }
        if before != now && is_finished(now) {
            // The cleanup does not wait for a retry of the execution.
            (record.call_at, record.failures) = (None, 0);
        }
        if plan.status.place.is_some() && plan.status != observed.known.status {
            record.position_reported_at = Some(Instant::now());
        }
        Report {
            status: serde_json::to_value(&plan.status).unwrap_or_default(),
            // A deletion has few steps, and the user waits for it.
            is_urgent: before != now || observed.known.is_being_deleted,
            requeue_after: match plan.next {
                NextStep::Wait(time) => time,
                NextStep::CallAgainAfter(time) => Some(record.effective_delay(time)),
                NextStep::CallHandler(_) | NextStep::Delete | NextStep::RemoveFinalizer => None,
            },
            ..Report::default()
        }
    }

    fn act(&self, object: &Arc<EtcdOperatorTask>, observed: &Observed, plan: &Plan) {
        let key = key_of(&object.metadata);
        let mut records = self.records.lock();
        let record = records.entry(object.metadata.uid.clone().unwrap_or_default()).or_default();
        match plan.next {
            NextStep::CallHandler(stage) => self.call_handler(key, observed, stage, record),
            NextStep::CallAgainAfter(time) => {
                if let StageState::Done(stage, result) = &observed.known.stage_state {
                    if *stage == Stage::CleanUp {
                        self.report_failed_cleanup(object, result);
                    }
                    record.failures = if result.error.is_some() { record.failures + 1 } else { 0 };
                    if result.is_outcome_unknown {
                        record.unconfirmed_since = Some(Instant::now());
                    }
                }
                record.call_at = Some(Instant::now() + record.effective_delay(time));
                self.background_tasks.forget(&key);
            }
            // Any other call for a finished task is obsolete.
            NextStep::Wait(_)
                if is_finished(plan.status.state.as_ref())
                    && observed.known.stage_state != StageState::Running(Stage::CleanUp) =>
            {
                self.background_tasks.forget(&key);
            }
            NextStep::RemoveFinalizer => {
                if let StageState::Done(Stage::CleanUp, result) = &observed.known.stage_state {
                    self.report_failed_cleanup(object, result);
                }
            }
            NextStep::Wait(_) | NextStep::Delete => {}
        }
    }

    fn is_finalized(&self, plan: &Plan) -> bool {
        plan.next == NextStep::RemoveFinalizer
    }
}
