//! Defragment and Compact: etcd's own maintenance.

use std::time::Duration;

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use messina_api::druid::v1alpha1::{MemberOutcome, TaskProgress};
use messina_clients::etcd;
use messina_plan::etcd_task::{
    TaskError, Findings, Options, TaskResult, compact,
    defragment::{self, Member, NextMember, display_name, may_serve_at, turn},
};
use messina_runtime::error::chain;
use serde_json::Value;

use super::{
    handler::{Handler, Subject},
    tools::{Members, of_etcd},
};

/// Members that are asked at once: as many as most clusters have.
const AT_ONCE: usize = 3;

/// Gives space back to the members' machines, one member after the other.
pub(super) struct Defragment;

impl Handler for Defragment {
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError> {
        defragment::Config::read(config).map(|config| Options { deadline: config.deadline })
    }

    fn admit<'a>(&'a self, _: &'a Subject) -> BoxFuture<'a, TaskResult> {
        async { TaskResult::done("Admitted; the members are being looked at.") }.boxed()
    }

    fn run<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, TaskResult> {
        async { next_member(subject).await.unwrap_or_else(|result| result) }.boxed()
    }
}

/// Does the next member.
async fn next_member(subject: &Subject) -> Result<TaskResult, TaskResult> {
    let at_most = defragment::Config::read(subject.config()).map_err(TaskResult::failed)?.member;
    let way = subject.tools.members(&subject.etcd).await?;
    let listed = way.any().map_err(|error| of_etcd(&error))?.members().await.map_err(|error| of_etcd(&error))?;
    let namespace = subject.etcd.metadata.namespace.as_deref().unwrap_or_default();
    let statuses: Vec<_> =
        listed.iter().map(|member| look(&way, member, namespace, subject.tools.reach.domain())).collect();
    let mut seen: Vec<(Member, Option<i64>)> = stream::iter(statuses).buffered(AT_ONCE).collect().await;
    add_alarms(&way, &mut seen).await?;
    let mut outcomes = subject.status().members.unwrap_or_default();
    let members: Vec<Member> = seen.iter().map(|(member, _)| member.clone()).collect();
    let id = match turn(&members, &outcomes) {
        NextMember::Over => return Ok(TaskResult::done(sum(&outcomes))),
        NextMember::NotNow(why) => {
            let description = format!("No member is defragmented at present, because {why}.");
            return Err(TaskResult::retry(TaskError::new("ERR_MEMBER_NOT_HEALTHY", description)));
        }
        NextMember::Of(id) => id,
    };
    let Some(((member, size_before), listed)) = seen.iter().zip(&listed).find(|((member, _), _)| member.id == id)
    else {
        return Err(TaskResult::retry(TaskError::new("ERR_MEMBERS_CHANGED", "The members of etcd have changed.")));
    };
    let client = client(&way, listed).map_err(|error| of_etcd(&error))?;
    if !subject.tools.fence.is_open() {
        return Ok(TaskResult::in_progress("This process leads no longer.", Duration::from_secs(1)));
    }
    client.defragment(at_most).await.map_err(|error| of_etcd(&error))?;
    let size_after = client.status().await.map(|status| status.db_size).ok();
    outcomes.push(MemberOutcome { name: Some(display_name(member)), size_before: *size_before, size_after });
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let progress = TaskProgress { done: Some(count(outcomes.len())), total: Some(count(members.len())) };
    let description =
        format!("{} of {} members are defragmented, last {}.", outcomes.len(), members.len(), display_name(member));
    Ok(TaskResult::in_progress(description, Duration::ZERO).with(Findings {
        progress: Some(progress),
        members: Some(outcomes),
        ..Findings::default()
    }))
}

/// How a member stands, and how large its file is.
async fn look(way: &Members, member: &etcd::Member, namespace: &str, domain: Option<&str>) -> (Member, Option<i64>) {
    let mut seen =
        Member { id: member.id, name: member.name.clone(), is_learner: member.is_learner, leader: 0, retry: None };
    if let Some(address) = member.client_urls.first().filter(|address| !may_serve_at(address, namespace, domain)) {
        let retry =
            format!("its address {address:?} is not in namespace {namespace}, and the operator does not connect to it");
        seen.retry = Some(retry);
        return (seen, None);
    }
    let asked = match client(way, member) {
        Ok(client) => client.status().await,
        Err(error) => Err(error),
    };
    match asked {
        Ok(status) if status.member_id != member.id => {
            seen.retry = Some("another member answers at its address".into());
            (seen, None)
        }
        Ok(status) => {
            seen.leader = status.leader.unwrap_or_default();
            seen.retry = status.errors.first().cloned();
            (seen, Some(status.db_size))
        }
        Err(error) => {
            seen.retry = Some(chain(&error));
            (seen, None)
        }
    }
}

/// A member that has raised an alarm is not well, unless the alarm is that there is no space: that is what this helps with.
async fn add_alarms(way: &Members, seen: &mut [(Member, Option<i64>)]) -> Result<(), TaskResult> {
    let client = way.any().map_err(|error| of_etcd(&error))?;
    for alarm in client.alarms().await.map_err(|error| of_etcd(&error))? {
        if alarm.kind == etcd::AlarmKind::NoSpace {
            continue;
        }
        for (member, _) in seen.iter_mut().filter(|(member, _)| member.id == alarm.member_id) {
            member.retry = Some(format!("it has raised the alarm {:?}", alarm.kind));
        }
    }
    Ok(())
}

fn client(way: &Members, member: &etcd::Member) -> Result<etcd::Etcd, etcd::Error> {
    match member.client_urls.first() {
        Some(address) => way.at(address),
        None => way.at(""),
    }
}

fn sum(outcomes: &[MemberOutcome]) -> String {
    let total = |size: fn(&MemberOutcome) -> Option<i64>| outcomes.iter().filter_map(size).sum::<i64>();
    let (before, after) = (total(|one| one.size_before), total(|one| one.size_after));
    format!("All {} members are defragmented: {before} bytes before, {after} after.", outcomes.len())
}

/// Forgets old revisions of all keys.
pub(super) struct Compact;

impl Handler for Compact {
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError> {
        compact::Config::read(config).map(|config| Options { deadline: config.deadline })
    }

    fn admit<'a>(&'a self, _: &'a Subject) -> BoxFuture<'a, TaskResult> {
        async { TaskResult::done("Admitted; old revisions are being forgotten.") }.boxed()
    }

    fn run<'a>(&'a self, subject: &'a Subject) -> BoxFuture<'a, TaskResult> {
        async { forget_revisions(subject).await.unwrap_or_else(|result| result) }.boxed()
    }
}

async fn forget_revisions(subject: &Subject) -> Result<TaskResult, TaskResult> {
    let config = compact::Config::read(subject.config()).map_err(TaskResult::failed)?;
    let client = subject.tools.members(&subject.etcd).await?.any().map_err(|error| of_etcd(&error))?;
    let revision = client.status().await.map_err(|error| of_etcd(&error))?.revision;
    let Some(target_revision) = config.target_revision(revision) else {
        let kept = config.retained;
        let description =
            format!("There is nothing to forget: etcd is at revision {revision}, and the last {kept} are kept.");
        return Ok(TaskResult::done(description));
    };
    if !subject.tools.fence.is_open() {
        return Ok(TaskResult::in_progress("This process leads no longer.", Duration::from_secs(1)));
    }
    let description = match client.compact(target_revision, config.physical).await {
        Ok(()) => format!("Revisions before {target_revision} are forgotten; etcd is at {revision}."),
        Err(etcd::Error::AlreadyCompacted { .. }) => format!("Revisions before {target_revision} had been forgotten already."),
        Err(error) => return Err(of_etcd(&error)),
    };
    Ok(TaskResult::done(description).with(Findings { compacted_revision: Some(target_revision), ..Findings::default() }))
}
