//! Updates the status of every Etcd of the testbed as etcd-druid does: it watches the pods, and asks the members which
//! of them leads. It ignores other Etcds.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, future, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        WatchStreamExt,
        reflector::{self, Store},
        watcher,
    },
};
use messina_api::druid::v1alpha1::Etcd;
use serde_json::{Value, json};

use super::{
    Credentials, Member, Shape, definition,
    objects::{MANAGED, PART_OF, Plan},
};
use crate::{
    error::{Doing, Result},
    harness,
};

/// The conditions that are updated.
pub const CONDITIONS: [&str; 3] = ["Ready", "AllMembersReady", "BackupReady"];

/// How often members are asked which of them leads: there is no event for that.
const INTERVAL: Duration = Duration::from_secs(2);
/// The timeout of a request to a member.
const ANSWER: Duration = Duration::from_secs(1);

/// Updates the statuses in the cluster in `folder`, for ever.
pub async fn run(folder: &Path) -> Result<()> {
    keep(harness::client(&folder.join("pki/admin.kubeconfig")).await?).await
}

/// Waits for the definition, then updates the statuses for ever.
pub async fn keep(client: Client) -> Result<()> {
    definition::await_served(&client, Duration::from_secs(3600)).await?;
    let (etcds, etcd_writer) = reflector::store();
    let (pods, pod_writer) = reflector::store();
    let ours = watcher::Config::default().labels(MANAGED);
    let etcd_watch = watcher::watcher(Api::<Etcd>::all(client.clone()), ours.clone());
    let pod_watch = watcher::watcher(Api::<Pod>::all(client.clone()), ours);
    let etcd_events = reflector::reflector(etcd_writer, etcd_watch.default_backoff()).map(|event| event.map(drop));
    let pod_events = reflector::reflector(pod_writer, pod_watch.default_backoff()).map(|event| event.map(drop));
    let mut events = stream::select(etcd_events.boxed(), pod_events.boxed());
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut keeper = Keeper { client, pods, members: HashMap::new() };
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            _ = ticks.tick() => Some(Ok(())),
        };
        match event {
            None => return Ok(()),
            Some(Err(error)) => eprintln!("watching: {error}"),
            Some(Ok(())) => {}
        }
        // Many events arrive at once and are handled together.
        while let Some(Some(_)) = events.next().now_or_never() {}
        keeper.drop_stale_connections();
        for etcd in etcds.state() {
            if let Err(error) = keeper.reconcile(&etcd).await {
                eprintln!("{}: {error}", etcd.name_any());
            }
        }
    }
}

struct Keeper {
    client: Client,
    pods: Store<Pod>,
    /// Connections, by the pod's UID and address.
    members: HashMap<(String, String), Member>,
}

/// The observed state of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    name: String,
    is_ready: bool,
    /// Its member ID, if it answers.
    id: Option<u64>,
    leads: bool,
}

impl Keeper {
    async fn reconcile(&mut self, etcd: &Etcd) -> Result<()> {
        let (namespace, name) = (etcd.namespace().unwrap_or_default(), etcd.name_any());
        let tls = etcd.spec.etcd.as_ref().is_some_and(|etcd| etcd.client_url_tls.is_some());
        let members = etcd.spec.replicas.and_then(|replicas| u8::try_from(replicas).ok()).unwrap_or(0);
        let plan = Plan { namespace: &namespace, name: &name, shape: Shape { members, tls } };
        let mut pods = self.pods.state_filter(|pod| {
            pod.namespace().as_deref() == Some(&namespace) && pod.labels().get(PART_OF) == Some(&name)
        });
        pods.sort_by_key(|pod| pod.name_any());
        let observed = self.observe(&plan, &pods).await;
        let leader = observed.iter().find(|(seen, _)| seen.leads).and_then(|(_, member)| member.as_ref());
        let backed_up = match leader {
            Some(leader) => has_snapshots(leader).await,
            None => false,
        };
        let seen: Vec<Seen> = observed.iter().map(|(seen, _)| seen.clone()).collect();
        let before = serde_json::to_value(&etcd.status).unwrap_or_default();
        let generation = etcd.metadata.generation.unwrap_or_default();
        // To the second, as the API server stores times.
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = status(&seen, members.into(), backed_up, generation, &before, &now);
        if is_same(&before, &status) {
            return Ok(());
        }
        let api: Api<Etcd> = Api::namespaced(self.client.clone(), &namespace);
        let patch = Patch::Merge(json!({"status": status}));
        match api.patch_status(&name, &PatchParams::default(), &patch).await {
            // The Etcd was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            written => written.map(drop).doing(|| format!("writing the status of {namespace}/{name}")),
        }
    }

    /// Observes all members concurrently.
    async fn observe(&mut self, plan: &Plan<'_>, pods: &[Arc<Pod>]) -> Vec<(Seen, Option<Member>)> {
        let mut members = vec![];
        for pod in pods {
            members.push(self.member(plan, pod).await);
        }
        let observations = pods.iter().zip(members).map(async |(pod, member)| {
            let answer = match &member {
                Some(member) => member.status_within(ANSWER).await.ok(),
                None => None,
            };
            let seen = Seen {
                name: pod.name_any(),
                is_ready: is_ready(pod),
                id: answer.map(|answer| answer.id),
                leads: answer.is_some_and(|answer| answer.leads()),
            };
            (seen, member)
        });
        future::join_all(observations).await
    }

    fn drop_stale_connections(&mut self) {
        let there: HashSet<String> = self.pods.state().iter().filter_map(|pod| pod.uid()).collect();
        self.members.retain(|(pod, _), _| there.contains(pod));
    }

    /// The connection to a member whose pod has an address.
    async fn member(&mut self, plan: &Plan<'_>, pod: &Pod) -> Option<Member> {
        let address = pod.status.as_ref()?.pod_ip.clone()?;
        let key = (pod.uid()?, address);
        if let Some(member) = self.members.get(&key) {
            return Some(member.clone());
        }
        let credentials = if plan.shape.tls {
            Some(Credentials::read(&self.client, plan.namespace, plan.name).await.ok()?)
        } else {
            None
        };
        let member = Member::of(plan, pod, credentials.as_ref()).await.ok()?;
        self.members.insert(key, member.clone());
        Some(member)
    }
}

/// Whether a sidecar reports a full snapshot.
async fn has_snapshots(leader: &Member) -> bool {
    let answer = leader.sidecar("GET", "/snapshot/latest", ANSWER).await;
    let latest = answer.ok().filter(|answer| answer.code == 200).map(|answer| answer.text).unwrap_or_default();
    serde_json::from_str::<Value>(&latest).is_ok_and(|latest| latest["fullSnapshot"].is_object())
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The desired status of an Etcd.
fn status(seen: &[Seen], wanted: usize, backed_up: bool, generation: i64, before: &Value, now: &str) -> Value {
    let ready = seen.iter().filter(|member| member.is_ready).count();
    let quorum = wanted / 2 + 1;
    let all = wanted > 0 && ready >= wanted;
    let condition = |name: &str, holds: bool, reasons: [&str; 2], message: String| {
        let state = if holds { "True" } else { "False" };
        let reason = reasons[usize::from(!holds)];
        let old = condition_of(before, name);
        let since = old.filter(|old| old["status"] == state).map(|old| old["lastTransitionTime"].clone());
        json!({
            "type": name, "status": state, "reason": reason, "message": message,
            "lastTransitionTime": since.unwrap_or_else(|| now.into()), "lastUpdateTime": now,
        })
    };
    let of_all = format!("{ready} of {wanted} members are ready");
    let backup =
        if backed_up { "the leading sidecar has a full snapshot" } else { "no sidecar has a full snapshot to show" };
    json!({
        "observedGeneration": generation,
        "replicas": seen.len(),
        // etcd-druid omits a zero. In a merge patch, null removes the field.
        "readyReplicas": (ready > 0).then_some(ready),
        "ready": all,
        "conditions": [
            condition("Ready", wanted > 0 && ready >= quorum, ["Quorate", "QuorumLost"], of_all.clone()),
            condition("AllMembersReady", all, ["AllMembersReady", "NotAllMembersReady"], of_all),
            condition("BackupReady", backed_up, ["BackupSucceeded", "BackupFailed"], backup.into()),
        ],
        "members": seen.iter().map(Seen::describe).collect::<Vec<_>>(),
    })
}

impl Seen {
    fn describe(&self) -> Value {
        let mut member = json!({"name": self.name, "status": if self.is_ready { "Ready" } else { "NotReady" }});
        if let Some(id) = self.id {
            member["id"] = format!("{id:x}").into();
            member["role"] = if self.leads { "Leader" } else { "Member" }.into();
        }
        member
    }
}

/// The condition of this name.
fn condition_of<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == name)
}

/// Whether two statuses are equal, apart from times and fields that are not read back.
fn is_same(before: &Value, after: &Value) -> bool {
    fn said(status: &Value) -> Value {
        match status {
            Value::Array(entries) => entries.iter().map(said).collect(),
            Value::Object(fields) => {
                let is_said = |key: &str, value: &Value| key != "id" && !key.ends_with("Time") && !value.is_null();
                let kept = fields.iter().filter(|(key, value)| is_said(key, value));
                Value::Object(kept.map(|(key, value)| (key.clone(), said(value))).collect())
            }
            other => other.clone(),
        }
    }
    said(before) == said(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u64, is_ready: bool, leads: bool) -> Seen {
        Seen { name: format!("main-{number}"), is_ready, id: is_ready.then_some(number + 1), leads }
    }

    fn conditions(status: &Value) -> Vec<&str> {
        CONDITIONS.iter().filter_map(|name| condition_of(status, name)?["status"].as_str()).collect()
    }

    #[test]
    fn etcd_is_ready_while_it_has_a_quorum() {
        let cases = [
            (vec![], vec!["False", "False", "False"]),
            (vec![true], vec!["False", "False", "False"]),
            (vec![true, true], vec!["True", "False", "True"]),
            (vec![true, true, false], vec!["True", "False", "True"]),
            (vec![true, true, true], vec!["True", "True", "True"]),
        ];
        for (ready, expected) in cases {
            let seen: Vec<Seen> =
                (0..).zip(&ready).map(|(number, ready)| member(number, *ready, number == 0)).collect();
            let backed_up = ready.len() > 1;
            let status = status(&seen, 3, backed_up, 1, &Value::Null, "now");
            assert_eq!(conditions(&status), expected, "{ready:?}");
            assert_eq!(status["ready"], ready == [true, true, true], "{ready:?}");
        }
    }

    #[test]
    fn member_without_an_answer_has_no_role() {
        let seen = [member(0, true, true), member(1, true, false), member(2, false, false)];
        let status = status(&seen, 3, true, 7, &Value::Null, "now");
        let roles: Vec<&Value> = (0..3).map(|number| &status["members"][number]["role"]).collect();
        assert_eq!(roles, [&json!("Leader"), &json!("Member"), &Value::Null]);
        assert_eq!(status["members"][2]["status"], "NotReady");
        assert_eq!((&status["readyReplicas"], &status["observedGeneration"]), (&json!(2), &json!(7)));
    }

    #[test]
    fn zero_ready_replicas_are_omitted() {
        let status = status(&[member(0, false, false)], 1, false, 1, &Value::Null, "now");
        assert_eq!((&status["replicas"], &status["readyReplicas"]), (&json!(1), &Value::Null));
        let mut read_back = status.clone();
        if let Some(fields) = read_back.as_object_mut() {
            fields.remove("readyReplicas");
        }
        assert!(is_same(&read_back, &status), "the same status is not written again");
    }

    #[test]
    fn transition_times_change_only_with_their_condition() {
        let all = [member(0, true, true)];
        let first = status(&all, 1, false, 1, &Value::Null, "first");
        let second = status(&all, 1, true, 1, &first, "second");
        assert!(!is_same(&first, &second));
        assert_eq!(second["conditions"][0]["lastTransitionTime"], "first");
        assert_eq!(second["conditions"][2]["lastTransitionTime"], "second");
        assert!(is_same(&second, &status(&all, 1, true, 1, &second, "third")));
    }
}
