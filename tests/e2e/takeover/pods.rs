//! Marks pods as ready as soon as they are created: the light cluster has no Kubernetes nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::watcher::{self, Event},
};
use messina_e2e::SOON;
use messina_testbed::harness::{Seen, eventually};
use serde_json::json;
use tokio::task::JoinHandle;

/// The history of pods in a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    /// UIDs of the pods of each name.
    pub(super) pods: BTreeMap<String, Vec<String>>,
    ready: BTreeSet<String>,
    /// The maximum of pods that were missing at a time after all of them had been ready.
    pub(super) most_down: usize,
    /// The expected number of pods; none while they start for the first time.
    expected: Option<usize>,
}

impl History {
    fn note(&mut self) {
        let down = self.expected.map_or(0, |expected| expected.saturating_sub(self.ready.len()));
        self.most_down = self.most_down.max(down);
    }
}

/// Marks pods as ready, until this is dropped.
pub(super) struct Pods {
    history: Arc<Mutex<History>>,
    task: JoinHandle<()>,
}

impl Drop for Pods {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pods {
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let history = Arc::<Mutex<History>>::default();
        let task = tokio::spawn(run(pods, Arc::clone(&history)));
        Self { history, task }
    }

    pub(super) fn history(&self) -> History {
        self.history.lock().unwrap().clone()
    }

    /// Waits until this number of pods is ready, and counts missing ones from then on.
    pub(super) async fn are_ready(&self, number: usize) {
        let ready = eventually("pods to be ready", SOON, async || {
            let mut history = self.history.lock().unwrap();
            if history.ready.len() == number {
                history.expected = Some(number);
                return Ok(Seen::Ready(()));
            }
            Ok(Seen::NotYet(format!("{:?}", history.ready)))
        });
        ready.await.unwrap();
    }
}

async fn run(pods: Api<Pod>, history: Arc<Mutex<History>>) {
    let mut events = Box::pin(watcher::watcher(pods.clone(), watcher::Config::default()));
    // The watcher retries by itself.
    loop {
        let pod = match events.try_next().await {
            Ok(Some(Event::Apply(pod) | Event::InitApply(pod))) => pod,
            Ok(Some(Event::Delete(pod))) => {
                let mut history = history.lock().unwrap();
                history.ready.remove(&pod.name_any());
                history.note();
                continue;
            }
            Ok(Some(_)) | Err(_) => continue,
            Ok(None) => return,
        };
        let (name, uid) = (pod.name_any(), pod.uid().unwrap());
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        let number = {
            let mut history = history.lock().unwrap();
            let uids = history.pods.entry(name.clone()).or_default();
            if !uids.contains(&uid) {
                uids.push(uid.clone());
            }
            if is_ready && pod.metadata.deletion_timestamp.is_none() {
                history.ready.insert(name.clone());
            } else {
                history.ready.remove(&name);
            }
            history.note();
            history.pods.keys().position(|one| *one == name).unwrap_or_default() + 1
        };
        if is_ready || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (now, address) = (Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), format!("10.1.0.{number}"));
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let status = json!({"metadata": {"uid": uid}, "status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [condition("PodScheduled"), condition("Ready"), condition("ContainersReady")],
        }});
        // The pod may have been deleted meanwhile.
        let _ = pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(&status)).await;
    }
}
