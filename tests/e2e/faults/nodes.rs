//! Plays the nodes of a namespace and their sidecars: KWOK runs their pods, and nothing runs in them.

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

use super::ring::{Ring, Word};

/// After a write that failed: what is seen next may be what was missing, or the API server was away.
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
        let player = Player {
            ring: Arc::clone(&ring),
            pods: Api::namespaced(client.clone(), namespace),
            services: Api::namespaced(client.clone(), namespace),
            claims: Api::namespaced(client.clone(), namespace),
            seen: Seen::default(),
        };
        let jobs = Api::namespaced(client.clone(), namespace);
        Self { ring, task: tokio::spawn(player.play(jobs)) }
    }

    /// The truth.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut Ring) -> T) -> T {
        look(&mut self.ring.lock().unwrap())
    }
}

#[derive(Default)]
struct Seen {
    services: BTreeMap<String, Service>,
    pods: BTreeMap<String, Pod>,
    /// Cleanups, and whether they are at work.
    jobs: BTreeMap<String, bool>,
}

/// Something that was seen.
enum News {
    Service(Box<Service>, bool),
    Pod(Box<Pod>, bool),
    Claim(Box<PersistentVolumeClaim>, bool),
    Job(Box<Job>, bool),
}

struct Player {
    ring: Arc<Mutex<Ring>>,
    pods: Api<Pod>,
    services: Api<Service>,
    claims: Api<PersistentVolumeClaim>,
    seen: Seen,
}

impl Player {
    async fn play(mut self, jobs: Api<Job>) {
        let nodes = format!("{}={}", label::POD_TYPE, label::value::SCYLLADB_NODE);
        let members = format!("{}={}", label::SERVICE_TYPE, label::value::MEMBER);
        let mut news = stream::select_all([
            watched(self.services.clone(), &members, News::Service).boxed(),
            watched(self.pods.clone(), &nodes, News::Pod).boxed(),
            watched(self.claims.clone(), "", News::Claim).boxed(),
            watched(jobs, "", News::Job).boxed(),
        ]);
        loop {
            let is_at_rest = self.go_on().await;
            let next = tokio::time::timeout(if is_at_rest { Duration::MAX } else { PAUSE }, news.next());
            if let Ok(Some(one)) = next.await {
                self.hear(one);
            }
            // What is there already is one piece of news.
            while let Some(Some(one)) = news.next().now_or_never() {
                self.hear(one);
            }
        }
    }

    fn hear(&mut self, news: News) {
        let mut ring = self.ring.lock().unwrap();
        match news {
            News::Service(service, is_there) => {
                let name = service.name_any();
                let is_older = self.seen.services.get(&name).is_some_and(|known| version(known) > version(&service));
                if !is_there {
                    self.seen.services.remove(&name);
                } else if !is_older {
                    self.seen.services.insert(name, *service);
                }
            }
            News::Pod(pod, is_there) => {
                let (name, uid) = (pod.name_any(), pod.uid().unwrap());
                if !is_there || pod.metadata.deletion_timestamp.is_some() {
                    ring.pod_goes(&name, &uid);
                    self.seen.pods.remove(&name);
                } else {
                    self.seen.pods.insert(name, *pod);
                }
            }
            News::Claim(claim, is_there) => {
                if !is_there || claim.metadata.deletion_timestamp.is_some() {
                    ring.claim_goes(&claim.name_any(), &claim.uid().unwrap());
                }
            }
            News::Job(job, is_there) => {
                let is_at_work = job.status.as_ref().is_none_or(|status| status.completion_time.is_none());
                let name = job.name_any();
                if !is_there {
                    self.seen.jobs.remove(&name);
                } else if self.seen.jobs.insert(name.clone(), is_at_work).is_none() && is_at_work {
                    ring.cleanup_begins(&name);
                }
            }
        }
    }

    /// All do what there is to do; answers whether nothing is left.
    async fn go_on(&mut self) -> bool {
        loop {
            let Ok(has_started) = self.start().await else { return false };
            let jobs_at_work: Vec<String> =
                self.seen.jobs.iter().filter(|(_, is_at_work)| **is_at_work).map(|(name, _)| name.clone()).collect();
            let words = self.ring.lock().unwrap().tend(&self.seen.services, &jobs_at_work);
            match words {
                Some(words) => {
                    let written = join_all(words.into_iter().map(|word| say(&self.services, word))).await;
                    let has_failed = written.iter().any(Option::is_none);
                    let written = written.into_iter().flatten().map(|service| (service.name_any(), service));
                    self.seen.services.extend(written);
                    if has_failed {
                        return false;
                    }
                }
                None if has_started || self.ring.lock().unwrap().live() => {}
                None => return true,
            }
        }
    }

    /// Starts nodes in pods that run and have none; answers whether one did.
    async fn start(&self) -> kube::Result<bool> {
        let is_idle = |(name, pod): &(&String, &Pod)| {
            let runs = pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
            runs && !self.ring.lock().unwrap().runs(name, &pod.uid().unwrap())
        };
        let mut has_started = false;
        for (name, pod) in self.seen.pods.iter().filter(is_idle) {
            // As they are now, and not as they were last heard of. A pod that is still there has had this claim.
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

/// Writes as a sidecar does; answers what the Service is then.
async fn say(services: &Api<Service>, Word { service, mut change, only_as_seen }: Word) -> Option<Service> {
    change["metadata"]["uid"] = json!(service.metadata.uid);
    if only_as_seen {
        change["metadata"]["resourceVersion"] = json!(service.metadata.resource_version);
    }
    let parameters = PatchParams { field_manager: Some("messina-sidecar".to_owned()), ..PatchParams::default() };
    services.patch(&service.name_any(), &parameters, &Patch::Merge(change)).await.ok()
}

/// Objects as they come and change, each with whether it is there.
fn watched<K>(api: Api<K>, labels: &str, news: fn(Box<K>, bool) -> News) -> impl Stream<Item = News> + Send + use<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Send
        + 'static,
{
    let config = watcher::Config::default().labels(labels).streaming_lists();
    let told = move |event| match event {
        Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => Some(news(Box::new(object), true)),
        Ok(watcher::Event::Delete(object)) => Some(news(Box::new(object), false)),
        // It is watched again by itself.
        _ => None,
    };
    watcher(api, config).default_backoff().filter_map(move |event| ready(told(event)))
}
