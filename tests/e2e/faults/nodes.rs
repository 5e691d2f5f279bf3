//! Simulates the nodes of a namespace and their sidecars: KWOK reports their pods as running, and nothing runs in them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{
    FutureExt, Stream, StreamExt,
    future::{join_all, ready},
    stream,
};
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, Service},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    core::NamespaceResourceScope,
    runtime::{WatchStreamExt, watcher},
};
use messina_api::names::{
    self,
    label::{self, REPLACING_NODE_HOST_ID},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinHandle;

use super::ring::{Ring, ServiceWrite};

/// The pause after a failed write: the next event may bring what was missing, or the API server was not available.
const PAUSE: Duration = Duration::from_millis(200);

/// The nodes of a namespace.
pub(crate) struct Nodes {
    ring: Arc<Mutex<Ring>>,
    task: JoinHandle<()>,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Nodes {
    pub(crate) fn new(client: &Client, namespace: &str) -> Self {
        let ring = Arc::new(Mutex::new(Ring::new()));
        let sidecars = Sidecars {
            ring: Arc::clone(&ring),
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
            claims: Api::namespaced(client.clone(), namespace),
            seen: Seen::default(),
        };
        let jobs = Api::namespaced(client.clone(), namespace);
        Self { ring, task: tokio::spawn(sidecars.run(jobs)) }
    }

    /// Reads or changes the ring.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Ring) -> T) -> T {
        look(&mut self.ring.lock().unwrap())
    }
}

#[derive(Default)]
struct Seen {
    services: BTreeMap<String, Service>,
    pods: BTreeMap<String, Pod>,
    /// Cleanup Jobs, and whether they are running.
    jobs: BTreeMap<String, bool>,
}

/// An object as a watch reports it, and whether it exists.
enum WatchEvent {
    Service(Box<Service>, bool),
    Pod(Box<Pod>, bool),
    Claim(Box<PersistentVolumeClaim>, bool),
    Job(Box<Job>, bool),
}

struct Sidecars {
    ring: Arc<Mutex<Ring>>,
    pods: Api<Pod>,
    services: Api<Service>,
    claims: Api<PersistentVolumeClaim>,
    seen: Seen,
}

impl Sidecars {
    async fn run(mut self, jobs: Api<Job>) {
        let nodes = format!("{}={}", label::POD_TYPE, label::value::SCYLLADB_NODE);
        let members = format!("{}={}", label::SERVICE_TYPE, label::value::MEMBER);
        let mut event = stream::select_all([
            watched(self.services.clone(), &members, WatchEvent::Service).boxed(),
            watched(self.pods.clone(), &nodes, WatchEvent::Pod).boxed(),
            watched(self.claims.clone(), "", WatchEvent::Claim).boxed(),
            watched(jobs, "", WatchEvent::Job).boxed(),
        ]);
        loop {
            let is_at_rest = self.advance().await;
            let next = tokio::time::timeout(if is_at_rest { Duration::MAX } else { PAUSE }, event.next());
            if let Ok(Some(one)) = next.await {
                self.handle(one);
            }
            // Events that have already arrived are handled together.
            while let Some(Some(one)) = event.next().now_or_never() {
                self.handle(one);
            }
        }
    }

    fn handle(&mut self, event: WatchEvent) {
        let mut ring = self.ring.lock().unwrap();
        match event {
            WatchEvent::Service(service, is_there) => {
                let name = service.name_any();
                let is_older = self.seen.services.get(&name).is_some_and(|known| version(known) > version(&service));
                if !is_there {
                    self.seen.services.remove(&name);
                } else if !is_older {
                    self.seen.services.insert(name, *service);
                }
            }
            WatchEvent::Pod(pod, is_there) => {
                let (name, uid) = (pod.name_any(), pod.uid().unwrap());
                if !is_there || pod.metadata.deletion_timestamp.is_some() {
                    ring.pod_deleted(&name, &uid);
                    self.seen.pods.remove(&name);
                } else {
                    self.seen.pods.insert(name, *pod);
                }
            }
            WatchEvent::Claim(claim, is_there) => {
                if !is_there || claim.metadata.deletion_timestamp.is_some() {
                    ring.claim_deleted(&claim.name_any(), &claim.uid().unwrap());
                }
            }
            WatchEvent::Job(job, is_there) => {
                let is_at_work = job.status.as_ref().is_none_or(|status| status.completion_time.is_none());
                let name = job.name_any();
                if !is_there {
                    self.seen.jobs.remove(&name);
                } else if self.seen.jobs.insert(name.clone(), is_at_work).is_none() && is_at_work {
                    ring.run_cleanup(&name);
                }
            }
        }
    }

    /// Lets all nodes and sidecars do what they can; returns whether nothing is left to do.
    async fn advance(&mut self) -> bool {
        loop {
            let Ok(has_started) = self.start().await else { return false };
            let jobs_at_work: Vec<String> =
                self.seen.jobs.iter().filter(|(_, is_at_work)| **is_at_work).map(|(name, _)| name.clone()).collect();
            let writes = self.ring.lock().unwrap().sidecar_writes(&self.seen.services, &jobs_at_work);
            match writes {
                Some(writes) => {
                    let written = join_all(writes.into_iter().map(|write| patch_service(&self.services, write))).await;
                    let has_failed = written.iter().any(Option::is_none);
                    let written = written.into_iter().flatten().map(|service| (service.name_any(), service));
                    self.seen.services.extend(written);
                    if has_failed {
                        return false;
                    }
                }
                None if has_started || self.ring.lock().unwrap().advance() => {}
                None => return true,
            }
        }
    }

    /// Starts nodes in running pods without a node; returns whether it started one.
    async fn start(&self) -> kube::Result<bool> {
        let is_idle = |(name, pod): &(&String, &Pod)| {
            let runs = pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
            runs && !self.ring.lock().unwrap().runs(name, &pod.uid().unwrap())
        };
        let mut has_started = false;
        for (name, pod) in self.seen.pods.iter().filter(is_idle) {
            // Read from the API server, because the watched state may be old. A pod that still exists has had this
            // claim.
            let claim = self.claims.get_opt(&names::datacenter::data_claim(name)).await?;
            let service = self.services.get_opt(name).await?;
            let now = self.pods.get_opt(name).await?;
            let (Some(claim), Some(service), Some(now)) = (claim, service, now) else { continue };
            if now.uid() != pod.uid() || now.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let replaces = service.labels().get(REPLACING_NODE_HOST_ID).map(String::as_str);
            let (pod, claim) = (pod.uid().unwrap(), claim.uid().unwrap());
            let mut ring = self.ring.lock().unwrap();
            ring.start(name, &pod, &claim, replaces);
            has_started |= ring.runs(name, &pod);
        }
        Ok(has_started)
    }
}

fn version(service: &Service) -> u64 {
    service.resource_version().and_then(|version| version.parse().ok()).unwrap_or(0)
}

/// Patches a Service as a sidecar does; returns the Service afterwards.
async fn patch_service(
    services: &Api<Service>,
    ServiceWrite { service, mut change, only_as_seen }: ServiceWrite,
) -> Option<Service> {
    change["metadata"]["uid"] = json!(service.metadata.uid);
    if only_as_seen {
        change["metadata"]["resourceVersion"] = json!(service.metadata.resource_version);
    }
    let parameters = PatchParams { field_manager: Some("messina-sidecar".to_owned()), ..PatchParams::default() };
    services.patch(&service.name_any(), &parameters, &Patch::Merge(change)).await.ok()
}

/// The events of a watch.
fn watched<K>(
    api: Api<K>,
    labels: &str,
    event: fn(Box<K>, bool) -> WatchEvent,
) -> impl Stream<Item = WatchEvent> + Send + use<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let config = watcher::Config::default().labels(labels).streaming_lists();
    let seen_event = move |seen| match seen {
        Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => Some(event(Box::new(object), true)),
        Ok(watcher::Event::Delete(object)) => Some(event(Box::new(object), false)),
        // The watcher retries by itself.
        _ => None,
    };
    watcher(api, config).default_backoff().filter_map(move |seen| ready(seen_event(seen)))
}
