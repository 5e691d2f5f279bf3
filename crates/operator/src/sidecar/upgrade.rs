//! Snapshots for a change of the version.

use std::time::Duration;

use messina_clients::scylla::{Error, Keyspaces, Node};
use messina_plan::node::upgrade::{
    Failure, Kept, Snapshot, TAG_PREFIX, UpgradeAnswer, UpgradeStep, Work, disagreement,
};

use crate::kubernetes::chain;

/// How long a snapshot of one keyspace may take: what is in memory is written to disk first.
const PATIENCE: Duration = Duration::from_secs(600);

/// Takes and removes snapshots until those that are asked for are there, and no others; says how far that came.
pub(super) async fn carry_out(node: Node, work: Work) -> UpgradeAnswer {
    let mut kept = work.kept.clone();
    let outcome = reconcile_object(node, &work, &mut kept).await;
    UpgradeAnswer { host_id: work.request.host_id, to: work.request.to, kept, failed: outcome.err() }
}

async fn reconcile_object(node: Node, work: &Work, kept: &mut Kept) -> Result<(), Failure> {
    // What is there of a snapshot that is yet to be taken is of an attempt that was cut off.
    let stay = work.tags_to_keep();
    let found = node.snapshots().await.map_err(failed(UpgradeStep::Clearing))?;
    for tag in found.keys().filter(|tag| tag.starts_with(TAG_PREFIX) && !stay.contains(tag)) {
        node.clear_snapshot(tag, PATIENCE).await.map_err(failed(UpgradeStep::Clearing))?;
    }
    kept.retain(|one| work.request.keep.contains(one));
    for snapshot in work.to_take() {
        take(node, snapshot, &work.request.to).await?;
        kept.insert(snapshot);
    }
    Ok(())
}

async fn take(node: Node, snapshot: Snapshot, version: &str) -> Result<(), Failure> {
    let step = match snapshot {
        Snapshot::System => UpgradeStep::SystemSnapshot,
        Snapshot::Data => UpgradeStep::DataSnapshot,
    };
    if snapshot == Snapshot::System {
        let versions = node.schema_versions().await.map_err(failed(UpgradeStep::Schema))?;
        if let Some(why) = disagreement(&versions) {
            return Err(Failure { step: UpgradeStep::Schema, why });
        }
    }
    let tag = snapshot.tag(version);
    for keyspace in keyspaces(node, snapshot).await.map_err(failed(step))? {
        node.take_snapshot(&tag, &keyspace, PATIENCE).await.map_err(failed(step))?;
    }
    Ok(())
}

/// The keyspaces that a snapshot is of: those of the node alone, or all others.
async fn keyspaces(node: Node, snapshot: Snapshot) -> Result<Vec<String>, Error> {
    let spread = node.keyspaces(Keyspaces::NonLocal).await?;
    match snapshot {
        Snapshot::Data => Ok(spread),
        Snapshot::System => {
            let mut all = node.keyspaces(Keyspaces::All).await?;
            all.retain(|keyspace| !spread.contains(keyspace));
            Ok(all)
        }
    }
}

fn failed(step: UpgradeStep) -> impl Fn(Error) -> Failure {
    move |error| Failure { step, why: chain(&error) }
}
