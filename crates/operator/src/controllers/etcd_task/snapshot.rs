//! OnDemandSnapshot: takes exactly one snapshot for each task.
//!
//! Before a task starts, the operator writes the latest snapshots to `status.before`. It repeats a request whose
//! outcome is unknown only if there is no newer snapshot and the request cannot be in progress any more.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use messina_api::druid::v1alpha1::{Etcd, SnapshotType, TakenSnapshot};
use messina_clients::backup_restore::{self, Snapshot, SnapshotKind};
use messina_plan::etcd_task::{
    Findings, Options, TaskError, TaskResult, code,
    snapshot::{Config, NewestSnapshots, SnapshotState, check_snapshot},
};
use messina_runtime::error::chain;
use serde_json::Value;

use super::handler::{Handler, HandlerContext};

/// How often the operator checks for a snapshot that may be in progress.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Takes a full or delta snapshot.
pub(super) struct OnDemandSnapshot;

impl Handler for OnDemandSnapshot {
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError> {
        Config::read(config).map(|config| Options { deadline: config.deadline })
    }

    fn admit<'a>(&'a self, context: &'a HandlerContext) -> BoxFuture<'a, TaskResult> {
        async {
            if context.etcd.spec.backup.as_ref().and_then(|backup| backup.store.as_ref()).is_none() {
                return TaskResult::failed(TaskError::new(
                    code::PRECONDITION,
                    "The Etcd has no store for snapshots: set spec.backup.store of the Etcd, then create another task",
                ));
            }
            match latest(context).await {
                Ok(latest) => TaskResult::done("Admitted: the operator requests the snapshot.")
                    .with(Findings { before: Some(latest.names()), ..Findings::default() }),
                // An error of the sidecar does not reject the task: it may be gone when the task runs.
                Err(result) => TaskResult { is_completed: false, ..result },
            }
        }
        .boxed()
    }

    fn run<'a>(&'a self, context: &'a HandlerContext) -> BoxFuture<'a, TaskResult> {
        async { run(context).await.unwrap_or_else(|result| result) }.boxed()
    }
}

async fn run(context: &HandlerContext) -> Result<TaskResult, TaskResult> {
    let config = Config::read(context.config()).map_err(TaskResult::failed)?;
    check_ready(&context.etcd)?;
    let status = context.status();
    let Some(before) = status.before else {
        let before = latest(context).await?.names();
        return Ok(TaskResult::in_progress("The operator requests the snapshot.", Duration::ZERO)
            .with(Findings { before: Some(before), ..Findings::default() }));
    };
    if context.is_repeated || context.unconfirmed_since.is_some() {
        let unconfirmed_for = context.unconfirmed_since.map(|since| since.elapsed());
        match check_snapshot(&config, &before, &latest(context).await?, unconfirmed_for) {
            SnapshotState::Taken(taken) => return Ok(done(taken)),
            SnapshotState::MayBeInProgress => {
                let description = "A request for the snapshot got no response and may still be in progress. The \
                                   operator checks whether the snapshot appears.";
                return Ok(TaskResult::in_progress(description, POLL_INTERVAL));
            }
            SnapshotState::NotTaken => {}
        }
    }
    let sidecar = context.dependencies.sidecar(&context.etcd).await?;
    if !context.dependencies.fence.is_open() {
        // The current leader continues the task.
        return Ok(TaskResult::in_progress("This operator process is no longer the leader.", POLL_INTERVAL));
    }
    let kind = match config.kind {
        SnapshotType::Full => SnapshotKind::Full,
        SnapshotType::Delta => SnapshotKind::Delta,
    };
    match sidecar.take_snapshot(kind, config.is_final, config.deadline.saturating_sub(context.elapsed())).await {
        Ok(Some(snapshot)) => Ok(done(taken(&snapshot))),
        Ok(None) => Ok(TaskResult::done("No snapshot was taken: nothing has changed since the last one.")),
        Err(error) => Err(TaskResult { is_outcome_unknown: may_be_in_progress(&error), ..result_of_error(&error) }),
    }
}

/// Whether the snapshot may still be in progress. A request that failed with 500 has ended, even if it left a
/// snapshot; one that a sidecar forwarded to its leader without getting a response may still be executed.
fn may_be_in_progress(error: &backup_restore::Error) -> bool {
    let has_ended = matches!(error, backup_restore::Error::ErrorResponse { status, .. } if status.as_u16() == 500);
    error.may_have_been_carried_out() && !has_ended
}

fn check_ready(etcd: &Etcd) -> Result<(), TaskResult> {
    if etcd.ready_replicas() < 1 {
        let description = "No snapshot can be taken: no member of the etcd cluster is ready. The operator retries it.";
        return Err(TaskResult::retry(TaskError::new("ERR_PRECONDITION_CHECK_ON_DEMAND_SNAPSHOT", description)));
    }
    Ok(())
}

async fn latest(context: &HandlerContext) -> Result<NewestSnapshots, TaskResult> {
    let sidecar = context.dependencies.sidecar(&context.etcd).await?;
    let latest = sidecar.latest_snapshots().await.map_err(|error| result_of_error(&error))?;
    Ok(NewestSnapshots { full: latest.full.as_ref().map(taken), delta: latest.delta.as_ref().map(taken) })
}

/// Returns the result of a task whose call to the sidecar failed.
fn result_of_error(error: &backup_restore::Error) -> TaskResult {
    let task_error = TaskError::new(error.code(), chain(error));
    if error.is_permanent() { TaskResult::failed(task_error) } else { TaskResult::retry(task_error) }
}

fn done(taken: TakenSnapshot) -> TaskResult {
    let name = taken.name.clone().unwrap_or_default();
    let revision = taken.revision.unwrap_or_default();
    TaskResult::done(format!("Snapshot {name} was taken, up to revision {revision}."))
        .with(Findings { snapshot: Some(taken), ..Findings::default() })
}

fn taken(snapshot: &Snapshot) -> TakenSnapshot {
    let kind = snapshot.kind.map(|kind| match kind {
        SnapshotKind::Full => "Full",
        SnapshotKind::Delta => "Incr",
    });
    TakenSnapshot {
        name: Some(snapshot.name.clone()),
        kind: kind.map(str::to_owned),
        revision: Some(snapshot.last_revision),
        is_final: Some(snapshot.is_final),
        created_on: Some(Time(snapshot.created_on)),
    }
}
