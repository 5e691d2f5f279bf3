//! Watches a task until its end.

use std::{fmt, time::Duration};

use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use kube::{
    Api, ResourceExt,
    api::{WatchEvent, WatchParams},
};
use messina_api::druid::v1alpha1::EtcdOperatorTask;
use messina_plan::etcd_task::is_finished;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    TASK,
    words::{self, Sight},
};
use crate::cluster::{Error, fit};

/// The API server ends a watch after so many seconds, and it is made anew from where it was: ...
const WATCH: u32 = 60;
/// ... a connection that is silent for longer is dead.
pub(super) const SILENCE: Duration = Duration::from_secs(75);
/// How long the API server may be away.
const ABSENCE: Duration = Duration::from_secs(60);
/// When nobody has looked at a new task for so long, people are told.
const UNSEEN: Duration = Duration::from_secs(10);
/// A watch that lives shorter is not made anew at once.
const SHORT: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// How it ended.
#[derive(Debug)]
pub(super) enum Ending {
    /// The task is at its end.
    Finished(Box<EtcdOperatorTask>),
    /// The task was deleted before its end.
    Deleted,
    /// Nobody waits any longer.
    LeftAlone,
}

/// Follows a task from how it was last seen. Shows what is said of it, each time that it changes.
pub(super) async fn follow(
    api: &Api<EtcdOperatorTask>,
    mut task: EtcdOperatorTask,
    namespace: &str,
    mut show: impl FnMut(&Sight),
) -> Result<Ending, Error> {
    let mut news = News::since(api, &task, namespace);
    let unseen = Instant::now() + UNSEEN;
    let (mut is_ignored, mut is_away) = (false, false);
    let mut shown = None;
    loop {
        let state = task.status.as_ref().and_then(|status| status.state.as_ref());
        if is_finished(state) {
            return Ok(Ending::Finished(Box::new(task)));
        }
        let is_unseen = state.is_none() && !is_ignored;
        let sight = if is_away { words::away(&task) } else { words::sight(&task, is_ignored.then_some(UNSEEN)) };
        if shown.as_ref() != Some(&sight) {
            show(&sight);
            shown = Some(sight);
        }
        tokio::select! {
            next = news.next() => match next? {
                Next::Task(next) => task = *next,
                Next::Gone => return Ok(Ending::Deleted),
                Next::Away => is_away = true,
                Next::Done => is_away = false,
            },
            () = sleep_until(unseen), if is_unseen => is_ignored = true,
        }
    }
}

enum Next {
    Task(Box<EtcdOperatorTask>),
    Gone,
    /// The API server does not answer.
    Away,
    /// It answers again.
    Done,
}

type Events = BoxStream<'static, kube::Result<WatchEvent<EtcdOperatorTask>>>;

/// What becomes of a task. It is watched from the version that was seen last, so that nothing is missed, not even the end
/// of a task that is deleted a moment later.
struct News<'a> {
    api: &'a Api<EtcdOperatorTask>,
    namespace: &'a str,
    name: String,
    uid: Option<String>,
    version: String,
    watch: Option<(Events, Instant)>,
    /// Since when the API server does not answer.
    away_since: Option<Instant>,
    failures: u32,
}

impl fmt::Debug for News<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("News").field("name", &self.name).field("version", &self.version).finish_non_exhaustive()
    }
}

impl<'a> News<'a> {
    fn since(api: &'a Api<EtcdOperatorTask>, task: &EtcdOperatorTask, namespace: &'a str) -> Self {
        Self {
            api,
            namespace,
            name: task.name_any(),
            uid: task.uid(),
            version: task.resource_version().unwrap_or_default(),
            watch: None,
            away_since: None,
            failures: 0,
        }
    }

    /// The next thing to know. It can be given up at any time, and nothing is lost.
    async fn next(&mut self) -> Result<Next, Error> {
        loop {
            let outcome = match &mut self.watch {
                None => self.open().await,
                Some((events, _)) => {
                    let event = events.try_next().await;
                    self.take_in(event).await
                }
            };
            let next = match outcome {
                Ok(next) => next,
                Err(error) => self.fail(error)?,
            };
            if let Some(next) = next {
                return Ok(next);
            }
        }
    }

    async fn open(&mut self) -> kube::Result<Option<Next>> {
        if self.failures > 0 {
            let doubled = 1_u32.checked_shl(self.failures - 1).unwrap_or(u32::MAX);
            sleep(Duration::from_secs(1).saturating_mul(doubled).min(LONGEST_PAUSE)).await;
        }
        let only = WatchParams::default().fields(&format!("metadata.name={}", self.name)).timeout(WATCH);
        let events = match self.api.watch(&only, &self.version).await {
            Ok(events) => events,
            Err(kube::Error::Api(answer)) if answer.code == 410 => return self.look().await,
            Err(error) => return Err(error),
        };
        self.watch = Some((events.boxed(), Instant::now()));
        Ok(self.away_since.take().map(|_| Next::Done))
    }

    async fn take_in(
        &mut self,
        event: kube::Result<Option<WatchEvent<EtcdOperatorTask>>>,
    ) -> kube::Result<Option<Next>> {
        match event? {
            Some(WatchEvent::Added(task) | WatchEvent::Modified(task)) => Ok(Some(self.seen(fit(task)?))),
            Some(WatchEvent::Deleted(task)) => Ok((task.uid() == self.uid).then_some(Next::Gone)),
            Some(WatchEvent::Bookmark(bookmark)) => {
                self.version = bookmark.metadata.resource_version;
                Ok(None)
            }
            // The API server no longer knows what has happened since then.
            Some(WatchEvent::Error(answer)) if answer.code == 410 => self.look().await,
            Some(WatchEvent::Error(answer)) => Err(kube::Error::Api(answer)),
            None => {
                let lived = self.watch.take().map(|(_, opened)| opened.elapsed());
                let is_short = lived.is_some_and(|lived| lived < SHORT);
                self.failures = if is_short { self.failures + 1 } else { 0 };
                Ok(None)
            }
        }
    }

    async fn look(&mut self) -> kube::Result<Option<Next>> {
        self.watch = None;
        match self.api.get_opt(&self.name).await? {
            Some(task) => Ok(Some(self.seen(fit(task)?))),
            None => Ok(Some(Next::Gone)),
        }
    }

    fn seen(&mut self, task: EtcdOperatorTask) -> Next {
        if task.uid() != self.uid {
            // Another one of the same name.
            return Next::Gone;
        }
        self.version = task.resource_version().unwrap_or_default();
        self.failures = 0;
        self.away_since = None;
        Next::Task(Box::new(task))
    }

    /// What will not pass by itself is an error at once.
    fn fail(&mut self, error: kube::Error) -> Result<Option<Next>, Error> {
        self.watch = None;
        self.failures += 1;
        let is_final = matches!(&error, kube::Error::Api(answer) if matches!(answer.code, 401 | 403 | 404));
        let was_there = self.away_since.is_none();
        let since = *self.away_since.get_or_insert_with(Instant::now);
        if is_final || since.elapsed() >= ABSENCE {
            return Err(Error::of(error, "watch", TASK, None, Some(self.namespace)));
        }
        Ok(was_there.then_some(Next::Away))
    }
}

#[cfg(test)]
mod tests;
