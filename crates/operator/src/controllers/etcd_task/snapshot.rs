//! OnDemandSnapshot: exactly one snapshot for each task.
//!
//! Before a task begins it is written down which snapshots there are. A request whose answer is not known is repeated only
//! when none has come since, and not before it must have ended.

use std::time::Duration;

use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use messina_api::druid::v1alpha1::{Etcd, SnapshotType, TakenSnapshot};
use messina_clients::backup_restore::{self, Snapshot, SnapshotKind};
use messina_plan::etcd_task::{
    TaskError, Findings, Options, TaskResult, code,
    snapshot::{SnapshotState, Config, NewestSnapshots, check_snapshot},
};
use messina_runtime::error::chain;
use serde_json::Value;

use super::handler::{Handler, Subject};

/// How often it is looked whether a snapshot has come that may be under way.
const LOOK: Duration = Duration::from_secs(1);

/// Takes a snapshot now.
pub(super) struct OnDemandSnapshot;

impl Handler for OnDemandSnapshot {
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError> {
        Config::read(config).map(|config| Options { deadline: config.deadline })
    }

    fn admit<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, TaskResult> {
        async {
            if subject.etcd.spec.backup.as_ref().and_then(|backup| backup.store.as_ref()).is_none() {
                return TaskResult::failed(TaskError::new(
                    code::PRECONDITION,
                    "The Etcd has no store for snapshots: set spec.backup.store there, then create another task",
                ));
            }
            match latest(subject).await {
                Ok(latest) => TaskResult::done("Admitted; the snapshot is being taken.")
                    .with(Findings { before: Some(latest.names()), ..Findings::default() }),
                // Trouble with the sidecar is no reason to reject the task: that shows when it runs.
                Err(retry) => TaskResult { is_completed: false, ..retry },
            }
        }
        .boxed()
    }

    fn run<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, TaskResult> {
        async { run(subject).await.unwrap_or_else(|result| result) }.boxed()
    }
}

async fn run(subject: &Subject) -> Result<TaskResult, TaskResult> {
    let config = Config::read(subject.config()).map_err(TaskResult::failed)?;
    is_ready(&subject.etcd)?;
    let status = subject.status();
    let Some(before) = status.before else {
        let before = latest(subject).await?.names();
        return Ok(TaskResult::in_progress("The snapshot is being taken.", Duration::ZERO)
            .with(Findings { before: Some(before), ..Findings::default() }));
    };
    if subject.is_repeated || subject.in_doubt_since.is_some() {
        let unconfirmed_for = subject.in_doubt_since.map(|since| since.elapsed());
        match check_snapshot(&config, &before, &latest(subject).await?, unconfirmed_for) {
            SnapshotState::Taken(taken) => return Ok(done(taken)),
            SnapshotState::MayBeInProgress => {
                let description = "A request for the snapshot may be under way, of which no answer came; it is looked \
                                   whether the snapshot appears.";
                return Ok(TaskResult::in_progress(description, LOOK));
            }
            SnapshotState::NotTaken => {}
        }
    }
    let sidecar = subject.tools.sidecar(&subject.etcd).await?;
    if !subject.tools.fence.is_open() {
        // Whoever leads now goes on.
        return Ok(TaskResult::in_progress("This process leads no longer.", LOOK));
    }
    let kind = match config.kind {
        SnapshotType::Full => SnapshotKind::Full,
        SnapshotType::Delta => SnapshotKind::Delta,
    };
    match sidecar.take(kind, config.is_final, config.deadline.saturating_sub(subject.spent())).await {
        Ok(Some(snapshot)) => Ok(done(taken(&snapshot))),
        Ok(None) => Ok(TaskResult::done("Nothing has changed since the last snapshot, so none was taken.")),
        Err(error) => Err(TaskResult { is_outcome_unknown: may_go_on(&error), ..retry(&error) }),
    }
}

/// Whether the snapshot may be under way. One that failed has ended, whatever it left behind; one that was passed on and
/// lost may go on.
fn may_go_on(error: &backup_restore::Error) -> bool {
    let has_ended = matches!(error, backup_restore::Error::Answered { status, .. } if status.as_u16() == 500);
    error.may_have_been_carried_out() && !has_ended
}

fn is_ready(etcd: &Etcd) -> Result<(), TaskResult> {
    if etcd.ready_replicas() < 1 {
        let description = "No member of the etcd cluster is ready, so that no snapshot can be taken.";
        return Err(TaskResult::retry(TaskError::new("ERR_PRECONDITION_CHECK_ON_DEMAND_SNAPSHOT", description)));
    }
    Ok(())
}

async fn latest(subject: &Subject) -> Result<NewestSnapshots, TaskResult> {
    let sidecar = subject.tools.sidecar(&subject.etcd).await?;
    let latest = sidecar.latest().await.map_err(|error| retry(&error))?;
    Ok(NewestSnapshots { full: latest.full.as_ref().map(taken), delta: latest.delta.as_ref().map(taken) })
}

fn retry(error: &backup_restore::Error) -> TaskResult {
    let error = TaskError::new(error.code(), chain(error));
    if error.is_final() { TaskResult::failed(error) } else { TaskResult::retry(error) }
}

fn done(taken: TakenSnapshot) -> TaskResult {
    let name = taken.name.clone().unwrap_or_default();
    let revision = taken.revision.unwrap_or_default();
    TaskResult::done(format!("The snapshot {name} was taken, up to revision {revision}."))
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
