//! The controller of EtcdOperatorTasks: one way for all types, which are told apart by their handlers.
//!
//! What handlers do takes place beside the workers, as errands. Their answers are part of what is observed, so that every
//! step of a task is decided by the same pure function, written down, and only then taken.

mod counts;
mod handler;
mod jobs;
mod lines;
mod maintenance;
mod snapshot;
mod tools;

use std::{
    collections::HashMap,
    future::{Future, ready},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub use counts::Counts;
pub use handler::{Handler, Registry, Subject};
use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use messina_api::{
    druid::v1alpha1::{Etcd, EtcdOperatorTask, EtcdOperatorTaskType, TaskState},
    names::finalizer,
};
use messina_clients::Reach;
use messina_plan::etcd_task::{
    self, DeletionStep, Fault, Next, Options, Plan, Sight, Stage, StageState, TaskResult, code, decide_deletion,
    is_finished, is_old_enough, line::created,
};
use messina_runtime::{
    apply::{Applied, ComponentPlan, Deletion},
    background_tasks::{BackgroundTaskState, BackgroundTasks},
    caches::Caches,
    controller::{Controller, Finalize, FinalizeStep, Running, reference},
    error::Error,
    events::{Events, Note},
    fence::Fence,
    queue::{Backoff, ObjectKey},
    status::Report,
    store::{Change, Store, controller_of, key_of},
};
use tokio::time::Instant;
pub use tools::{Members, Tools};
use tracing::warn;

use self::lines::{Lines, etcd_of};
use super::trim;

/// The place of a task in line is written again after this time at the earliest, if nothing else has changed.
const REFRESH: Duration = Duration::from_secs(120);

/// What is the same for all tasks.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What types there are.
    pub registry: Registry,
    /// How names of etcd clusters are found.
    pub reach: Reach,
    /// Whether this process leads.
    pub fence: Fence,
    /// The image of etcd-backup-restore for Jobs, where the Etcd names none.
    pub backup_restore_image: String,
    /// What is counted.
    pub counts: Counts,
}

/// Runs tasks on etcd clusters.
pub struct TaskController {
    registry: Registry,
    tools: Arc<Tools>,
    etcds: Arc<Store<Etcd>>,
    /// The one namespace whose Etcds are seen; none for all.
    namespace: Option<String>,
    lines: Arc<Lines>,
    background_tasks: Arc<BackgroundTasks<(Stage, TaskResult)>>,
    memories: Arc<Memories>,
    counts: Counts,
    events: Events,
}

impl Drop for TaskController {
    fn drop(&mut self) {
        // Whoever leads now counts them.
        self.counts.forget_tasks();
    }
}

/// What is remembered of a task while this process leads.
#[derive(Debug, Default)]
struct Memory {
    /// Whether it began here. What another process has asked for is not known.
    began_here: bool,
    /// Since when a request may be under way of which nobody knows what came.
    in_doubt_since: Option<Instant>,
    /// Whether its handler was asked to run already.
    has_run: bool,
    /// What its handler was last asked for.
    stage: Option<Stage>,
    /// How often its handler was asked in vain.
    failures: u32,
    /// When its handler is to be asked again.
    rests_until: Option<Instant>,
    /// Whether something has changed that its handler waits for, since it was last asked. What it answers may be from before.
    is_woken: bool,
    /// When its place in line was last said.
    placed: Option<Instant>,
    /// When a deletion that failed is retried.
    deletion_retry_at: Option<Instant>,
}

impl Memory {
    /// Its handler is asked for this now.
    fn begin(&mut self, stage: Stage) {
        self.stage = Some(stage);
        self.rests_until = None;
        self.is_woken = false;
    }

    /// How long its handler is really left alone.
    fn rest(&self, time: Duration) -> Duration {
        if self.is_woken { Duration::ZERO } else { time }
    }
}

/// By UID.
#[derive(Debug, Default)]
struct Memories(Mutex<HashMap<String, Memory>>);

impl Memories {
    fn locked(&self) -> MutexGuard<'_, HashMap<String, Memory>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has changed that its handler waits for.
    fn wake(&self, uid: &str) {
        if let Some(memory) = self.locked().get_mut(uid) {
            memory.is_woken = true;
            memory.rests_until = memory.rests_until.map(|_| Instant::now());
        }
    }
}

/// What is known of a task.
pub struct Observed {
    task: Arc<EtcdOperatorTask>,
    etcd: Option<Arc<Etcd>>,
    handler: Option<Arc<dyn Handler>>,
    known: etcd_task::Observed,
}

/// What is watched, and who is looked at when it changes. Jobs are watched already.
pub fn start(caches: &mut Caches, jobs: &Arc<Store<Job>>, settings: Settings) -> Arc<Running<TaskController>> {
    let tasks = caches.watch::<EtcdOperatorTask>(None, trim);
    let etcds = caches.watch_if_served::<Etcd>(trim);
    let Settings { registry, reach, fence, backup_restore_image, counts } = settings;
    let client = caches.client().clone();
    let (lines, memories, background_tasks) =
        (Arc::<Lines>::default(), Arc::<Memories>::default(), Arc::<BackgroundTasks<_>>::default());
    let tools = Arc::new(Tools { client, reach, fence, backup_restore_image, jobs: Arc::clone(jobs) });
    let (own_registry, own_tools) = (registry.clone(), Arc::clone(&tools));
    let needs_cleanup = move |task: &EtcdOperatorTask| {
        own_registry.find(&type_of(task)).is_ok_and(|handler| handler.cleanup(task, &own_tools).is_some())
    };
    let controller = TaskController {
        registry,
        tools,
        etcds: Arc::clone(&etcds),
        namespace: caches.namespace().map(str::to_owned),
        lines: Arc::clone(&lines),
        background_tasks: Arc::clone(&background_tasks),
        memories: Arc::clone(&memories),
        counts: counts.clone(),
        events: caches.events().clone(),
    };
    // Before anything is looked at because of a change, the change is taken in.
    let (own_lines, own_memories, events) = (Arc::clone(&lines), Arc::clone(&memories), caches.events().clone());
    let (own_tasks, own_counts, own_etcds) = (Arc::downgrade(&background_tasks), counts.clone(), Arc::clone(&etcds));
    tasks.on_change(move |change| {
        own_lines.take_in(change, &needs_cleanup);
        own_counts.take_in(change, |etcd| own_etcds.get(etcd).map_or(true, |etcd| etcd.is_some()));
        tell(&events, change);
        // Whatever another task of the same name asks for, this one's answer is not its own.
        let uid = |metadata: Option<&ObjectMeta>| metadata.and_then(|metadata| metadata.uid.clone());
        let after = uid(change.metadata_after());
        if let Some(gone) = uid(change.metadata_before()).filter(|before| after.as_ref() != Some(before)) {
            own_memories.locked().remove(&gone);
            own_tasks.upgrade().into_iter().for_each(|background_tasks| background_tasks.forget(&change.key));
        }
    });
    let own_memories = Arc::clone(&memories);
    jobs.on_change(move |change| {
        for owner in change.metadata().filter_map(controller_of) {
            own_memories.wake(&owner.uid);
        }
    });
    let own_lines = Arc::clone(&lines);
    etcds.on_change(move |change| {
        if change.is_gone() {
            counts.remove_etcd(&change.key);
        }
        // Much of an Etcd changes all the time, and says nothing of whether another attempt makes sense.
        let ready = |etcd: &Option<Arc<Etcd>>| etcd.as_ref().map_or(0, |etcd| etcd.ready_replicas());
        if ready(&change.before) != ready(&change.after) {
            own_lines.uids_of(&change.key).iter().for_each(|uid| memories.wake(uid));
        }
    });
    let running = Running::new(caches, controller, Arc::clone(&tasks), Backoff::default());
    running.on_task_done(&background_tasks);
    let of_etcd = Arc::clone(&lines);
    running.watch_changes(&tasks, move |change| {
        if change.unreadable_before.is_some() {
            // It was in a line, and which one is not known any more.
            return lines.all();
        }
        let versions = [&change.before, &change.after].into_iter().flatten();
        versions.filter_map(|task| etcd_of(task)).flat_map(|etcd| lines.of(&etcd)).collect()
    });
    running.watches(&etcds, move |etcd| of_etcd.of(&key_of(etcd)));
    running.owns(jobs);
    running
}

/// People are told when a task did not do what it was asked to do.
fn tell(events: &Events, change: &Change<EtcdOperatorTask>) {
    let state = |task: &Option<Arc<EtcdOperatorTask>>| task.as_ref().and_then(|task| task.status.clone()?.state);
    let (Some(task), Some(_)) = (&change.after, &change.before) else { return };
    let (before, now) = (state(&change.before), state(&change.after));
    if before == now {
        return;
    }
    let reason = match now {
        Some(TaskState::Failed) => "TaskFailed",
        Some(TaskState::Rejected) => "TaskRejected",
        _ => return,
    };
    let said = task.status.as_ref().and_then(|status| status.last_operation.as_ref()?.description.clone());
    events.emit(reference(task.as_ref()), Note::warning(reason, said.unwrap_or_default()));
}

fn type_of(task: &EtcdOperatorTask) -> String {
    let name = task.spec.task_type.as_ref().map(|known| match known {
        EtcdOperatorTaskType::Other(name) => name.clone(),
        known => serde_json::to_value(known).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default(),
    });
    name.unwrap_or_default()
}

impl TaskController {
    fn observed(&self, task: &Arc<EtcdOperatorTask>) -> Observed {
        let handler = self.registry.find(&type_of(task));
        let needs_cleanup = handler.as_ref().is_ok_and(|handler| handler.cleanup(task, &self.tools).is_some());
        let options = handler.clone().and_then(|handler| handler.options(task.spec.config.as_ref()));
        let (options, etcd, sight) = self.sight(task, options);
        let key = key_of(&task.metadata);
        let status = task.status.clone().unwrap_or_default();
        let uid = task.metadata.uid.clone().unwrap_or_default();
        let is_over = is_finished(status.state.as_ref());
        let now = Timestamp::now();
        let may_begin = is_old_enough(created(task), now);
        let ahead = if is_over || options.is_err() { Vec::new() } else { self.lines.ahead(task, may_begin) };
        let mut memories = self.memories.locked();
        let memory = memories.entry(uid).or_default();
        let stage_state = match (self.background_tasks.state(&key), memory.rests_until) {
            (BackgroundTaskState::Done((stage, result)), _) => StageState::Done(stage, result),
            (BackgroundTaskState::Running, _) => StageState::Running(memory.stage.unwrap_or(Stage::Run)),
            (BackgroundTaskState::None, Some(until)) => {
                StageState::Waiting(until.saturating_duration_since(Instant::now()))
            }
            (BackgroundTaskState::None, None) => StageState::None,
        };
        let known = etcd_task::Observed {
            status,
            generation: task.metadata.generation,
            created: created(task),
            time_to_live: task
                .spec
                .ttl_seconds_after_finished
                .map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or_default())),
            options,
            needs_cleanup,
            etcd: sight,
            ahead,
            may_refresh: memory.placed.is_none_or(|placed| placed.elapsed() >= REFRESH),
            stage_state,
            failures: memory.failures,
            now,
        };
        Observed { task: Arc::clone(task), etcd, handler: handler.ok(), known }
    }

    fn sight(
        &self,
        task: &EtcdOperatorTask,
        options: Result<Options, Fault>,
    ) -> (Result<Options, Fault>, Option<Arc<Etcd>>, Sight) {
        let Some(key) = etcd_of(task) else {
            let description = "spec.etcdReference.name: say which Etcd the task is for";
            let fault = Fault::new(code::NO_ETCD, description);
            return (options.and(Err(fault)), None, Sight::There);
        };
        if self.etcds.is_missing() {
            return (options, None, Sight::NotServed);
        }
        if let Some(watched) = self.namespace.as_ref().filter(|watched| key.namespace.as_ref() != Some(*watched)) {
            return (options, None, Sight::OutOfSight(key.to_string(), watched.clone()));
        }
        let etcd = match self.etcds.get(&key) {
            Ok(etcd) => etcd.filter(|etcd| etcd.metadata.deletion_timestamp.is_none()),
            // No error: the deadline of the task goes on, and its status says what it waits for.
            Err(unreadable) => return (options, None, Sight::Unreadable(unreadable.to_string())),
        };
        let sight = if etcd.is_some() { Sight::There } else { Sight::Missing(key.to_string()) };
        (options, etcd, sight)
    }

    /// Asks the handler, beside the workers.
    fn ask(&self, key: ObjectKey, observed: &Observed, stage: Stage, memory: &mut Memory) {
        let Some(handler) = observed.handler.clone() else { return };
        if stage == Stage::CleanUp {
            memory.begin(stage);
            // What is still under way for a task that is finished is of no use.
            self.background_tasks.forget(&key);
            let (task, tools) = (Arc::clone(&observed.task), Arc::clone(&self.tools));
            let cleanup = async move { (stage, clean_up(handler.as_ref(), &task, &tools).await) };
            self.background_tasks.start(key, cleanup, panicked(stage));
            return;
        }
        let Some(etcd) = observed.etcd.clone() else { return };
        if stage == Stage::Run && !memory.began_here && !memory.has_run {
            // Another process may have asked for something a moment ago.
            memory.in_doubt_since = Some(Instant::now());
        }
        let subject = Subject {
            task: Arc::clone(&observed.task),
            etcd,
            tools: Arc::clone(&self.tools),
            in_doubt_since: memory.in_doubt_since,
            is_repeated: memory.has_run,
        };
        memory.has_run |= stage == Stage::Run;
        memory.begin(stage);
        let asking = async move {
            let result = match stage {
                Stage::Admit => handler.admit(&subject).await,
                Stage::Run => handler.run(&subject).await,
                Stage::CleanUp => clean_up(handler.as_ref(), &subject.task, &subject.tools).await,
            };
            (stage, result)
        };
        self.background_tasks.start(key, asking, panicked(stage));
    }

    fn report_failed_cleanup(&self, task: &EtcdOperatorTask, result: &TaskResult) {
        if let Some(fault) = &result.error {
            warn!(code = fault.code, problem = fault.description, "the cleanup of the task failed");
            self.events.emit(reference(task), Note::warning("CleanupFailed", fault.description.clone()));
        }
    }
}

/// What a handler that panicked has answered. A request of it may be under way.
fn panicked(stage: Stage) -> impl FnOnce(String) -> (Stage, TaskResult) {
    move |problem| {
        let description =
            format!("The operator failed with an internal error: {problem}. It tries again; please report this.");
        let result = TaskResult::trouble(Fault::new("ERR_INTERNAL", description));
        (stage, TaskResult { is_unanswered: stage == Stage::Run, ..result })
    }
}

async fn clean_up(handler: &dyn Handler, task: &EtcdOperatorTask, tools: &Tools) -> TaskResult {
    match handler.cleanup(task, tools) {
        Some(cleanup) => cleanup.await,
        None => nothing_to_remove(),
    }
}

fn nothing_to_remove() -> TaskResult {
    TaskResult::done("The task left nothing to remove.")
}

impl Controller for TaskController {
    type Object = EtcdOperatorTask;
    type Observed = Observed;
    type Plan = Plan;
    const NAME: &'static str = "etcd-task";
    const FINALIZER: Option<&'static str> = Some(finalizer::ETCD_OPERATOR_TASK);
    const HAS_CONDITIONS: bool = false;

    fn observe(&self, object: &Arc<EtcdOperatorTask>) -> impl Future<Output = Result<Observed, Error>> + Send {
        ready(Ok(self.observed(object)))
    }

    fn plan(&self, observed: &Observed) -> Plan {
        etcd_task::decide(&observed.known)
    }

    fn components(&self, observed: &Observed, plan: &Plan) -> Result<Vec<ComponentPlan>, Error> {
        let deletions = match plan.next {
            Next::Delete => vec![Deletion::new(observed.task.as_ref())],
            _ => Vec::new(),
        };
        Ok(vec![ComponentPlan { name: "Task", deletions, ..ComponentPlan::default() }])
    }

    fn report(&self, observed: &Observed, plan: &Plan, _: &[Applied]) -> Report {
        let mut memories = self.memories.locked();
        let memory = memories.entry(observed.task.metadata.uid.clone().unwrap_or_default()).or_default();
        let (before, now) = (observed.known.status.state.as_ref(), plan.status.state.as_ref());
        if before != now && now == Some(&TaskState::InProgress) {
            memory.began_here = true;
        }
        if before != now && is_finished(now) {
            // The cleanup does not wait for a retry of the execution.
            (memory.rests_until, memory.failures) = (None, 0);
        }
        if plan.status.place.is_some() && plan.status != observed.known.status {
            memory.placed = Some(Instant::now());
        }
        Report {
            status: serde_json::to_value(&plan.status).unwrap_or_default(),
            is_urgent: before != now,
            requeue_after: match plan.next {
                Next::Wait(time) => time,
                Next::Rest(time) => Some(memory.rest(time)),
                Next::Ask(_) | Next::Delete => None,
            },
            ..Report::default()
        }
    }

    fn act(&self, object: &Arc<EtcdOperatorTask>, observed: &Observed, plan: &Plan) {
        let key = key_of(&object.metadata);
        let mut memories = self.memories.locked();
        let memory = memories.entry(object.metadata.uid.clone().unwrap_or_default()).or_default();
        match plan.next {
            Next::Ask(stage) => self.ask(key, observed, stage, memory),
            Next::Rest(time) => {
                if let StageState::Done(stage, result) = &observed.known.stage_state {
                    if *stage == Stage::CleanUp {
                        self.report_failed_cleanup(object, result);
                    }
                    memory.failures = if result.error.is_some() { memory.failures + 1 } else { 0 };
                    if result.is_unanswered {
                        memory.in_doubt_since = Some(Instant::now());
                    }
                }
                memory.rests_until = Some(Instant::now() + memory.rest(time));
                self.background_tasks.forget(&key);
            }
            // What is still under way for a task that is at its end is of no use.
            Next::Wait(_)
                if is_finished(plan.status.state.as_ref())
                    && observed.known.stage_state != StageState::Running(Stage::CleanUp) =>
            {
                self.background_tasks.forget(&key);
            }
            Next::Wait(_) | Next::Delete => {}
        }
    }

    async fn finalize(&self, object: &Arc<EtcdOperatorTask>) -> Result<Finalize, Error> {
        self.background_tasks.forget(&key_of(&object.metadata));
        let status = object.status.clone().unwrap_or_default();
        let mut plan = decide_deletion(&status, None, Timestamp::now());
        if plan.step == DeletionStep::CleanUp && plan.status == status {
            let uid = object.metadata.uid.clone().unwrap_or_default();
            let retry_at = self.memories.locked().get(&uid).and_then(|memory| memory.deletion_retry_at);
            let pause = retry_at.map(|at| at.saturating_duration_since(Instant::now()));
            if let Some(pause) = pause.filter(|pause| !pause.is_zero()) {
                return Ok(Finalize { status: None, step: FinalizeStep::After(pause) });
            }
            // A task of a type that is not registered any more has left nothing that its owner references do not remove.
            let result = match self.registry.find(&type_of(object)) {
                Ok(handler) => clean_up(handler.as_ref(), object, &self.tools).await,
                Err(_) => nothing_to_remove(),
            };
            self.report_failed_cleanup(object, &result);
            plan = decide_deletion(&status, Some(&result), Timestamp::now());
            if let DeletionStep::Retry(pause) = plan.step {
                self.memories.locked().entry(uid).or_default().deletion_retry_at = Some(Instant::now() + pause);
            }
        }
        let step = match plan.step {
            DeletionStep::RemoveFinalizer => FinalizeStep::RemoveFinalizer,
            DeletionStep::Retry(pause) => FinalizeStep::After(pause),
            // Once the status is written.
            DeletionStep::CleanUp => FinalizeStep::After(Duration::ZERO),
        };
        Ok(Finalize { status: serde_json::to_value(&plan.status).ok(), step })
    }
}
