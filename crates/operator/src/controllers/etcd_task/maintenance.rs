//! Defragment and Compact: maintenance through etcd's own API.

use std::time::Duration;

use futures::{FutureExt, StreamExt, future::BoxFuture, stream};
use messina_api::druid::v1alpha1::{MemberOutcome, TaskProgress};
use messina_clients::etcd;
use messina_plan::etcd_task::{
    Findings, Options, TaskError, TaskResult, compact,
    defragment::{self, MemberHealth, NextMember, display_name, may_serve_at, next_member},
};
use messina_runtime::error::chain;
use serde_json::Value;

use super::{
    dependencies::{MemberConnector, result_of_error},
    handler::{Handler, HandlerContext},
};

/// Maximum number of members that are called at the same time: as many as most clusters have.
const CONCURRENT_CALLS: usize = 3;

/// Defragments the databases of all members, one member after the other.
pub(super) struct Defragment;

impl Handler for Defragment {
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError> {
        defragment::Config::read(config).map(|config| Options { deadline: config.deadline })
    }

    fn admit<'a>(&'a self, _: &'a HandlerContext) -> BoxFuture<'a, TaskResult> {
        async { TaskResult::done("Admitted: the operator checks the health of the members.") }.boxed()
    }

    fn run<'a>(&'a self, context: &'a HandlerContext) -> BoxFuture<'a, TaskResult> {
        async { defragment_next(context).await.unwrap_or_else(|result| result) }.boxed()
    }
}

/// Defragments the next member.
async fn defragment_next(context: &HandlerContext) -> Result<TaskResult, TaskResult> {
    let timeout = defragment::Config::read(context.config()).map_err(TaskResult::failed)?.member;
    let connector = context.dependencies.members(&context.etcd).await?;
    let listed = connector
        .any_member()
        .map_err(|error| result_of_error(&error))?
        .members()
        .await
        .map_err(|error| result_of_error(&error))?;
    let namespace = context.etcd.metadata.namespace.as_deref().unwrap_or_default();
    let statuses: Vec<_> = listed
        .iter()
        .map(|member| observe_member(&connector, member, namespace, context.dependencies.resolver.domain()))
        .collect();
    let mut observed: Vec<(MemberHealth, Option<i64>)> =
        stream::iter(statuses).buffered(CONCURRENT_CALLS).collect().await;
    add_alarms(&connector, &mut observed).await?;
    let mut outcomes = context.status().members.unwrap_or_default();
    let members: Vec<MemberHealth> = observed.iter().map(|(member, _)| member.clone()).collect();
    let id = match next_member(&members, &outcomes) {
        NextMember::Done => return Ok(TaskResult::done(summarize_sizes(&outcomes))),
        NextMember::Blocked(why) => {
            let description = format!("No member can be defragmented at present: {why}. The operator retries it.");
            return Err(TaskResult::retry(TaskError::new("ERR_MEMBER_NOT_HEALTHY", description)));
        }
        NextMember::Defragment(id) => id,
    };
    let Some(((member, size_before), listed)) = observed.iter().zip(&listed).find(|((member, _), _)| member.id == id)
    else {
        return Err(TaskResult::retry(TaskError::new(
            "ERR_MEMBERS_CHANGED",
            "The members of etcd have changed. The operator retries the defragmentation.",
        )));
    };
    let client = client(&connector, listed).map_err(|error| result_of_error(&error))?;
    if !context.dependencies.fence.is_open() {
        return Ok(TaskResult::in_progress("This operator process is no longer the leader.", Duration::from_secs(1)));
    }
    client.defragment(timeout).await.map_err(|error| result_of_error(&error))?;
    let size_after = client.status().await.map(|status| status.db_size).ok();
    outcomes.push(MemberOutcome { name: Some(display_name(member)), size_before: *size_before, size_after });
    let (done, total) = (outcomes.len(), members.iter().filter(|member| !member.is_learner).count());
    let count = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
    let progress = TaskProgress { done: Some(count(done)), total: Some(count(total)) };
    let last = display_name(member);
    let description = format!("{done} of {total} members are defragmented, the last one was {last}.");
    Ok(TaskResult::in_progress(description, Duration::ZERO).with(Findings {
        progress: Some(progress),
        members: Some(outcomes),
        ..Findings::default()
    }))
}

/// Returns the health of a member and the size of its database.
async fn observe_member(
    connector: &MemberConnector,
    member: &etcd::ClusterMember,
    namespace: &str,
    domain: Option<&str>,
) -> (MemberHealth, Option<i64>) {
    let mut observed = MemberHealth {
        id: member.id,
        name: member.name.clone(),
        is_learner: member.is_learner,
        leader: 0,
        problem: None,
    };
    if let Some(address) = member.client_urls.first().filter(|address| !may_serve_at(address, namespace, domain)) {
        let problem = format!(
            "its client URL {address:?} is not a name in namespace {namespace}, so the operator does not connect to it"
        );
        observed.problem = Some(problem);
        return (observed, None);
    }
    let asked = match client(connector, member) {
        Ok(client) => client.status().await,
        Err(error) => Err(error),
    };
    match asked {
        Ok(status) if status.member_id != member.id => {
            observed.problem = Some("another member responds at its client URL".into());
            (observed, None)
        }
        Ok(status) => {
            observed.leader = status.leader.unwrap_or_default();
            observed.problem = status.errors.first().cloned();
            (observed, Some(status.db_size))
        }
        Err(error) => {
            observed.problem = Some(chain(&error));
            (observed, None)
        }
    }
}

/// Marks members that have raised an alarm as unhealthy, except for the alarm NOSPACE, which defragmentation helps
/// against.
async fn add_alarms(
    connector: &MemberConnector,
    observed: &mut [(MemberHealth, Option<i64>)],
) -> Result<(), TaskResult> {
    let client = connector.any_member().map_err(|error| result_of_error(&error))?;
    for alarm in client.alarms().await.map_err(|error| result_of_error(&error))? {
        if alarm.kind == etcd::AlarmKind::NoSpace {
            continue;
        }
        for (member, _) in observed.iter_mut().filter(|(member, _)| member.id == alarm.member_id) {
            member.problem = Some(format!("it raised the alarm {:?}", alarm.kind));
        }
    }
    Ok(())
}

fn client(connector: &MemberConnector, member: &etcd::ClusterMember) -> Result<etcd::Etcd, etcd::Error> {
    match member.client_urls.first() {
        Some(address) => connector.member_at(address),
        None => connector.member_at(""),
    }
}

fn summarize_sizes(outcomes: &[MemberOutcome]) -> String {
    let total = |size: fn(&MemberOutcome) -> Option<i64>| outcomes.iter().filter_map(size).sum::<i64>();
    let (before, after) = (total(|one| one.size_before), total(|one| one.size_after));
    format!("All {} members are defragmented: {before} bytes before, {after} after.", outcomes.len())
}

/// Compacts old revisions of all keys.
pub(super) struct Compact;

impl Handler for Compact {
    fn options(&self, config: Option<&Value>) -> Result<Options, TaskError> {
        compact::Config::read(config).map(|config| Options { deadline: config.deadline })
    }

    fn admit<'a>(&'a self, _: &'a HandlerContext) -> BoxFuture<'a, TaskResult> {
        async { TaskResult::done("Admitted: the operator compacts old revisions.") }.boxed()
    }

    fn run<'a>(&'a self, context: &'a HandlerContext) -> BoxFuture<'a, TaskResult> {
        async { compact_revisions(context).await.unwrap_or_else(|result| result) }.boxed()
    }
}

async fn compact_revisions(context: &HandlerContext) -> Result<TaskResult, TaskResult> {
    let config = compact::Config::read(context.config()).map_err(TaskResult::failed)?;
    let client =
        context.dependencies.members(&context.etcd).await?.any_member().map_err(|error| result_of_error(&error))?;
    let revision = client.status().await.map_err(|error| result_of_error(&error))?.revision;
    let Some(target_revision) = config.target_revision(revision) else {
        let kept = config.retained;
        let description =
            format!("Nothing to compact: etcd is at revision {revision}, and the last {kept} revisions are kept.");
        return Ok(TaskResult::done(description));
    };
    if !context.dependencies.fence.is_open() {
        return Ok(TaskResult::in_progress("This operator process is no longer the leader.", Duration::from_secs(1)));
    }
    let description = match client.compact(target_revision, config.physical).await {
        Ok(()) => format!("Revisions before {target_revision} are compacted; etcd is at revision {revision}."),
        Err(etcd::Error::AlreadyCompacted { .. }) => {
            format!("Revisions before {target_revision} were already compacted.")
        }
        Err(error) => return Err(result_of_error(&error)),
    };
    Ok(TaskResult::done(description)
        .with(Findings { compacted_revision: Some(target_revision), ..Findings::default() }))
}
