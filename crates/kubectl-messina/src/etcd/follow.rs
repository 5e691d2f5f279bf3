//! Watches a task until it is finished.

use std::{fmt, time::Duration};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kube::{
    Api, ResourceExt,
    api::{WatchEvent, WatchParams},
};
use messina_api::druid::v1alpha1::EtcdOperatorTask;
use messina_plan::etcd_task::is_finished;
use messina_text::Backoff;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    TASK,
    messages::{self, TaskLine},
};
use crate::cluster::{Error, sanitize};

/// The API server ends a watch after this many seconds; it is then reopened at the last resourceVersion.
const WATCH_SECONDS: u32 = 60;
/// The read timeout of a watch, longer than a watch lasts: a connection without data for this long is broken.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(75);
/// How long the API server may be unreachable before following a task fails.
const UNREACHABLE_LIMIT: Duration = Duration::from_secs(60);
/// How long the operator may leave a new task without a state before the user is told.
const UNSEEN_LIMIT: Duration = Duration::from_secs(10);
/// A watch that ends sooner than this is not reopened at once.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// Delays before a watch that failed is reopened.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(8) };

/// How following a task ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The task is finished.
    Finished(Box<EtcdOperatorTask>),
    /// The task was deleted before it was finished.
    Deleted,
    /// The user has pressed Ctrl-C.
    Interrupted,
}

/// Follows a task from its last known resourceVersion. Calls `show` each time that its line changes.
pub(super) async fn follow(
    api: &Api<EtcdOperatorTask>,
    mut task: EtcdOperatorTask,
    namespace: &str,
    mut show: impl FnMut(&TaskLine),
) -> Result<Outcome, Error> {
    let mut watch = TaskWatch::from_task(api, &task, namespace);
    let deadline = Instant::now() + UNSEEN_LIMIT;
    let (mut is_unseen_for_long, mut is_unreachable) = (false, false);
    let mut shown = None;
    loop {
        let state = task.status.as_ref().and_then(|status| status.state.as_ref());
        if is_finished(state) {
            return Ok(Outcome::Finished(Box::new(task)));
        }
        let is_unseen = state.is_none() && !is_unseen_for_long;
        let task_line = if is_unreachable {
            messages::unreachable(&task)
        } else {
            messages::task_line(&task, is_unseen_for_long.then_some(UNSEEN_LIMIT))
        };
        if shown.as_ref() != Some(&task_line) {
            show(&task_line);
            shown = Some(task_line);
        }
        tokio::select! {
            change = watch.next() => match change? {
                TaskChange::Updated(updated) => task = *updated,
                TaskChange::Deleted => return Ok(Outcome::Deleted),
                TaskChange::Unreachable => is_unreachable = true,
                TaskChange::Reachable => is_unreachable = false,
            },
            () = sleep_until(deadline), if is_unseen => is_unseen_for_long = true,
        }
    }
}

/// A change that a watch reports.
enum TaskChange {
    Updated(Box<EtcdOperatorTask>),
    Deleted,
    /// The API server does not answer.
    Unreachable,
    /// The API server answers again.
    Reachable,
}

type Events = BoxStream<'static, kube::Result<WatchEvent<EtcdOperatorTask>>>;

/// A watch of a task. It begins at the last known resourceVersion, so that no change is missed, not even the end of a task
/// that is deleted a moment later.
struct TaskWatch<'a> {
    api: &'a Api<EtcdOperatorTask>,
    namespace: &'a str,
    name: String,
    uid: Option<String>,
    version: String,
    watch: Option<(Events, Instant)>,
    /// Since when the API server does not answer.
    unreachable_since: Option<Instant>,
    failures: u32,
}

impl fmt::Debug for TaskWatch<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TaskWatch")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

impl<'a> TaskWatch<'a> {
    fn from_task(api: &'a Api<EtcdOperatorTask>, task: &EtcdOperatorTask, namespace: &'a str) -> Self {
        Self {
            api,
            namespace,
            name: task.name_any(),
            uid: task.uid(),
            version: task.resource_version().unwrap_or_default(),
            watch: None,
            unreachable_since: None,
            failures: 0,
        }
    }

    /// Waits for the next change. It is cancel safe.
    async fn next(&mut self) -> Result<TaskChange, Error> {
        loop {
            let outcome = match &mut self.watch {
                None => self.open().await,
                Some((events, _)) => {
                    let event = events.try_next().await;
                    self.handle_event(event).await
                }
            };
            let change = match outcome {
                Ok(change) => change,
                Err(error) => self.handle_error(error)?,
            };
            if let Some(change) = change {
                return Ok(change);
            }
        }
    }

    async fn open(&mut self) -> kube::Result<Option<TaskChange>> {
        if self.failures > 0 {
            sleep(BACKOFF.delay(self.failures)).await;
        }
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(WATCH_SECONDS);
        let events = match self.api.watch(&only, &self.version).await {
            Ok(events) => events,
            Err(kube::Error::Api(answer)) if answer.code == 410 => return self.refetch().await,
            Err(error) => return Err(error),
        };
        self.watch = Some((events.boxed(), Instant::now()));
        Ok(self.unreachable_since.take().map(|_| TaskChange::Reachable))
    }

    async fn handle_event(
        &mut self,
        event: kube::Result<Option<WatchEvent<EtcdOperatorTask>>>,
    ) -> kube::Result<Option<TaskChange>> {
        match event? {
            Some(WatchEvent::Added(task) | WatchEvent::Modified(task)) => Ok(Some(self.update_from(sanitize(task)?))),
            Some(WatchEvent::Deleted(task)) => Ok((task.uid() == self.uid).then_some(TaskChange::Deleted)),
            Some(WatchEvent::Bookmark(bookmark)) => {
                self.version = bookmark.metadata.resource_version;
                Ok(None)
            }
            // The API server no longer has the changes since this resourceVersion.
            Some(WatchEvent::Error(answer)) if answer.code == 410 => self.refetch().await,
            Some(WatchEvent::Error(answer)) => Err(kube::Error::Api(answer)),
            None => {
                let duration = self.watch.take().map(|(_, opened)| opened.elapsed());
                let is_short = duration.is_some_and(|duration| duration < SHORT_WATCH);
                self.failures = if is_short { self.failures + 1 } else { 0 };
                Ok(None)
            }
        }
    }

    async fn refetch(&mut self) -> kube::Result<Option<TaskChange>> {
        self.watch = None;
        match self.api.get_opt(&self.name).await? {
            Some(task) => Ok(Some(self.update_from(sanitize(task)?))),
            None => Ok(Some(TaskChange::Deleted)),
        }
    }

    fn update_from(&mut self, task: EtcdOperatorTask) -> TaskChange {
        if task.uid() != self.uid {
            // The task was deleted, and another one has its name.
            return TaskChange::Deleted;
        }
        self.version = task.resource_version().unwrap_or_default();
        self.failures = 0;
        self.unreachable_since = None;
        TaskChange::Updated(Box::new(task))
    }

    /// Returns an error that the user has to resolve at once, and any other error when the API server is unreachable for too
    /// long.
    fn handle_error(&mut self, error: kube::Error) -> Result<Option<TaskChange>, Error> {
        self.watch = None;
        self.failures += 1;
        let is_final = matches!(&error, kube::Error::Api(answer) if matches!(answer.code, 401 | 403 | 404));
        let was_reachable = self.unreachable_since.is_none();
        let since = *self.unreachable_since.get_or_insert_with(Instant::now);
        if is_final || since.elapsed() >= UNREACHABLE_LIMIT {
            return Err(Error::from_request(error, "watch", TASK, None, Some(self.namespace)));
        }
        Ok(was_reachable.then_some(TaskChange::Unreachable))
    }
}

#[cfg(test)]
mod tests;
