//! The list and watch of one kind, which keep a [`Store`] in sync with the API server.
//!
//! The initial list is streamed as part of the watch if the API server supports that, and is always a consistent read.
//! A watch that ends resumes at its last resource version; if that has expired, it begins with a new list. Lists that
//! are older than the cache are refused, and watch events that are older than the cached object are ignored.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{AsyncBufRead, AsyncBufReadExt};
use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Client, Resource,
    api::{ListParams, ObjectMeta, Request, WatchParams},
    core::Status,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::{
    connectivity::is_reported_elsewhere,
    queue::{ObjectKey, chance},
    shared_context::SharedContext,
    store::{Entry, Kind, Outdated, Store, Unreadable, Version, key_of, version_of},
};

/// `timeoutSeconds` of a watch, after which the API server ends it and the operator starts another one.
const TIMEOUT_SECONDS: u32 = 290;
/// A connection without data for longer than a watch lasts is dead.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(TIMEOUT_SECONDS as u64 + 10);
/// Retry interval for a kind that is not installed, where the operator may not read CustomResourceDefinitions.
const NOT_SERVED_RETRY: Duration = Duration::from_secs(30);
/// How long lists may be older than the cache, as those of an API server that lags behind another.
const OUTDATED_LIMIT: Duration = Duration::from_secs(60);
/// The buffer for lines is reused up to this size.
const LINE: usize = 256 * 1024;
/// Objects per page, where lists are not streamed.
const PAGE: u32 = 500;

/// Which objects of a kind are watched, and whether only their metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only those in this namespace.
    pub namespace: Option<String>,
    /// Only those that this label selector matches.
    pub labels: Option<String>,
    /// Only those with this name.
    pub name: Option<String>,
    /// Only their metadata, for a store of [`kube::core::PartialObjectMeta`].
    pub is_metadata_only: bool,
}

impl Scope {
    fn fields(&self) -> Option<String> {
        self.name.as_ref().map(|name| format!("metadata.name={name}"))
    }
}

/// Why a watch ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("the API server closed the watch")]
    Closed,
    #[error("the resource version of the watch has expired")]
    Expired,
    #[error("the API server does not serve this kind: its CustomResourceDefinition is not installed")]
    NotServed,
    #[error("no data for {} s", IDLE_TIMEOUT.as_secs())]
    Silent,
    #[error(transparent)]
    Outdated(#[from] Outdated),
    #[error("the API server refused the watch: {}", .0.message)]
    Refused(Box<Status>),
    #[error("a watch event cannot be decoded")]
    Malformed(#[source] serde_json::Error),
    #[error("the watch was interrupted")]
    Interrupted(#[source] std::io::Error),
    #[error("the watch cannot be started")]
    Failed(#[source] kube::Error),
}

impl Ended {
    fn reason(&self) -> &'static str {
        match self {
            Self::Closed => "Closed",
            Self::Expired => "Expired",
            Self::NotServed => "NotServed",
            Self::Silent => "Silent",
            Self::Outdated(_) => "Outdated",
            Self::Refused(_) => "Refused",
            Self::Malformed(_) => "Malformed",
            Self::Interrupted(_) => "Interrupted",
            Self::Failed(_) => "Failed",
        }
    }
}

impl Ended {
    /// Whether the end needs no warning for this watch: it is normal, or is reported once for the whole process. A
    /// watch that was interrupted is restarted, and only a failure of that needs a warning.
    fn is_reported_elsewhere(&self) -> bool {
        match self {
            Self::Closed | Self::Expired | Self::Silent | Self::Interrupted(_) => true,
            Self::Refused(status) => status.code == StatusCode::UNAUTHORIZED,
            Self::Failed(error) => is_reported_elsewhere(error),
            Self::NotServed | Self::Outdated(_) | Self::Malformed(_) => false,
        }
    }
}

impl From<kube::Error> for Ended {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == StatusCode::GONE => Self::Expired,
            kube::Error::Api(status) if status.code == StatusCode::NOT_FOUND => Self::NotServed,
            kube::Error::Api(status) => Self::Refused(status),
            other => Self::Failed(other),
        }
    }
}

/// A watch event.
#[derive(Deserialize)]
struct Line<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
struct OnlyMetadata {
    #[serde(default)]
    metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct List<'a> {
    metadata: ListMetadata,
    #[serde(borrow, default)]
    items: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

/// Whether an object is stored.
pub(crate) type Filter = Box<dyn Fn(&ObjectKey) -> bool + Send + Sync>;

/// Removes fields of an object that the operator does not read.
pub(crate) type Trim<K> = Box<dyn Fn(&mut K) + Send + Sync>;

type Objects<K> = HashMap<ObjectKey, Entry<K>>;

/// The watch of one kind.
pub(crate) struct Watch<K> {
    pub(crate) store: Arc<Store<K>>,
    pub(crate) scope: Scope,
    pub(crate) client: Client,
    pub(crate) trim: Trim<K>,
    /// Whether an object is stored; none for all.
    pub(crate) filter: Option<Filter>,
    pub(crate) context: Arc<SharedContext>,
    /// Whether the API server streams lists; true until it refuses that.
    pub(crate) streams_lists: bool,
}

impl<K: Kind> Watch<K> {
    /// Keeps the store in sync. Ends only if the API server has returned lists older than the cache for
    /// [`OUTDATED_LIMIT`]: then its storage was restored from a backup, and the caches contain changes that the restore
    /// has reverted.
    pub(crate) async fn run(mut self) {
        // The resource version at which the watch resumes; zero to begin with a list.
        let mut position: Version = 0;
        let mut failures = 0;
        let mut last_warning = String::new();
        let mut outdated_since: Option<Instant> = None;
        loop {
            let began = Instant::now();
            let ended = match self.follow(&mut position).await {
                Ok(never) => match never {},
                Err(ended) => ended,
            };
            self.context.metrics.watch_ended(&K::plural(&()), ended.reason());
            if matches!(&ended, Ended::Refused(status) if status.code == StatusCode::FORBIDDEN) {
                self.store.set_forbidden(true);
                // Changes are missed from now on, so the watch begins with a list once it is allowed again.
                position = 0;
            }
            let is_outdated = matches!(ended, Ended::Outdated(_));
            if is_outdated && outdated_since.get_or_insert_with(Instant::now).elapsed() > OUTDATED_LIMIT {
                let what = "the API server shows an older state than before, as after a restore of its storage";
                warn!(kind = %K::kind(&()), problem = %ended, "{what}");
                return;
            }
            if !is_outdated && position > 0 {
                // A list was stored meanwhile.
                outdated_since = None;
            }
            if matches!(ended, Ended::Expired | Ended::NotServed | Ended::Outdated(_) | Ended::Malformed(_)) {
                position = 0;
            }
            if began.elapsed() > Duration::from_secs(60) {
                // The watch worked for a while, so the same failure is worth a warning again.
                failures = 0;
                last_warning.clear();
            }
            match ended {
                // A watch that lasted resumes at once; one that ended soon is retried with backoff.
                Ended::Closed | Ended::Expired if began.elapsed() > Duration::from_secs(5) => failures = 0,
                Ended::NotServed => {
                    failures += 1;
                    self.store.set_not_served();
                    self.store.set_forbidden(false);
                    let warning = ended.to_string();
                    if warning != last_warning {
                        if self.store.is_missing() {
                            info!(kind = %K::kind(&()), "{ended}. It is optional");
                        } else {
                            warn!(kind = %K::kind(&()), "{ended}. Waiting for it: install it");
                        }
                        last_warning = warning;
                    }
                    self.wait_until_served().await;
                    // A definition is established a little before its objects are served.
                    sleep(self.context.backoff.wait(failures, chance())).await;
                }
                ended => {
                    failures += 1;
                    let warning = crate::error::chain(&ended);
                    if ended.is_reported_elsewhere() || warning == last_warning {
                        debug!(kind = %K::kind(&()), problem = warning, "the watch ended; retrying");
                    } else {
                        warn!(kind = %K::kind(&()), problem = warning, "the watch ended; retrying");
                        last_warning = warning;
                    }
                    sleep(self.context.backoff.wait(failures, chance())).await;
                }
            }
        }
    }

    async fn follow(&mut self, position: &mut Version) -> Result<std::convert::Infallible, Ended> {
        if *position == 0 && !self.streams_lists {
            let (objects, version) = self.list().await?;
            self.store.replace(objects, version)?;
            self.store.set_forbidden(false);
            *position = version;
        }
        // The objects of the streamed list so far; none once it is complete.
        let mut listed: Option<Objects<K>> = (*position == 0).then(HashMap::new);
        let mut lines = match self.open_stream(*position).await {
            Err(Ended::Refused(status)) if listed.is_some() && is_about_streaming(&status) => {
                info!(kind = %K::kind(&()), "the API server does not stream lists; listing in pages");
                self.streams_lists = false;
                return Err(Ended::Closed);
            }
            other => other?,
        };
        let mut line = Vec::new();
        loop {
            line.clear();
            line.shrink_to(LINE);
            let length = timeout(IDLE_TIMEOUT, lines.read_until(b'\n', &mut line)).await.map_err(|_| Ended::Silent)?;
            if length.map_err(Ended::Interrupted)? == 0 || !line.ends_with(b"\n") {
                return Err(Ended::Closed);
            }
            let Line { r#type, object } = serde_json::from_slice(&line).map_err(Ended::Malformed)?;
            match (r#type, &mut listed) {
                ("ADDED" | "MODIFIED", Some(listed)) => {
                    let (key, entry) = self.read(object)?;
                    if self.is_kept(&key) {
                        listed.insert(key, entry);
                    }
                }
                ("ADDED" | "MODIFIED", None) => {
                    let (key, entry) = self.read(object)?;
                    *position = entry.version;
                    match self.is_kept(&key) {
                        true => self.store.put(key, entry),
                        false => self.store.advance(entry.version),
                    }
                }
                ("DELETED", listed) => {
                    let metadata = metadata_of(object)?;
                    match listed {
                        Some(listed) => drop(listed.remove(&key_of(&metadata))),
                        None => {
                            *position = version_of(&metadata);
                            self.store.remove(key_of(&metadata), version_of(&metadata));
                        }
                    }
                }
                ("BOOKMARK", pending) => {
                    let metadata = metadata_of(object)?;
                    let version = version_of(&metadata);
                    let annotations = metadata.annotations.unwrap_or_default();
                    let is_end_of_list = annotations.get("k8s.io/initial-events-end").is_some_and(|end| end == "true");
                    match pending {
                        Some(objects) if is_end_of_list => {
                            self.store.replace(std::mem::take(objects), version)?;
                            self.store.set_forbidden(false);
                            listed = None;
                            *position = version;
                        }
                        Some(_) => {}
                        None => {
                            self.store.advance(version);
                            *position = version;
                        }
                    }
                }
                ("ERROR", _) => {
                    let status: Status = serde_json::from_str(object.get()).map_err(Ended::Malformed)?;
                    return Err(if status.code == StatusCode::GONE {
                        Ended::Expired
                    } else {
                        Ended::Refused(status.boxed())
                    });
                }
                // An unknown type of event.
                _ => {}
            }
        }
    }

    async fn open_stream(&self, position: Version) -> Result<impl AsyncBufRead + Unpin + use<K>, Ended> {
        let parameters = WatchParams {
            label_selector: self.scope.labels.clone(),
            field_selector: self.scope.fields(),
            timeout: Some(TIMEOUT_SECONDS),
            send_initial_events: position == 0,
            ..WatchParams::default()
        };
        // Without a resource version, the list is a consistent read.
        let from = if position == 0 { String::new() } else { position.to_string() };
        let request = match self.scope.is_metadata_only {
            true => self.request().watch_metadata(&parameters, &from),
            false => self.request().watch(&parameters, &from),
        };
        let request = request.map_err(kube::Error::BuildRequest)?;
        Ok(Box::pin(self.client.request_stream(request).await?))
    }

    async fn list(&self) -> Result<(Objects<K>, Version), Ended> {
        let mut parameters = ListParams {
            label_selector: self.scope.labels.clone(),
            field_selector: self.scope.fields(),
            limit: Some(PAGE),
            ..ListParams::default()
        };
        let mut objects = HashMap::new();
        loop {
            let request = match self.scope.is_metadata_only {
                true => self.request().list_metadata(&parameters),
                false => self.request().list(&parameters),
            };
            let request = request.map_err(kube::Error::BuildRequest)?;
            let text = self.client.request_text(request).await?;
            let List { metadata, items } = serde_json::from_str(&text).map_err(Ended::Malformed)?;
            for item in items {
                let (key, entry) = self.read(item)?;
                if self.is_kept(&key) {
                    objects.insert(key, entry);
                }
            }
            parameters.continue_token = metadata.r#continue.filter(|token| !token.is_empty());
            if parameters.continue_token.is_none() {
                let version = metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or_default();
                return Ok((objects, version));
            }
        }
    }

    fn request(&self) -> Request {
        Request::new(K::url_path(&(), self.scope.namespace.as_deref()))
    }

    fn is_kept(&self, key: &ObjectKey) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(key))
    }

    /// Decodes an object. One that does not match its type is stored and reported as unreadable.
    fn read(&self, object: &RawValue) -> Result<(ObjectKey, Entry<K>), Ended> {
        match serde_json::from_str::<K>(object.get()) {
            Ok(mut read) => {
                (self.trim)(&mut read);
                let metadata = read.meta();
                Ok((key_of(metadata), Entry { version: version_of(metadata), object: Ok(Arc::new(read)) }))
            }
            Err(problem) => {
                let mut metadata = metadata_of(object)?;
                // Managed fields are most of the metadata, and are not used for an object that cannot be read.
                metadata.managed_fields = None;
                let (key, version) = (key_of(&metadata), version_of(&metadata));
                let unreadable =
                    Arc::new(Unreadable { kind: K::kind(&()).into_owned(), metadata, problem: problem.to_string() });
                warn!(kind = unreadable.kind, object = %key, problem = unreadable.problem, "the object cannot be read");
                self.context.report_unreadable::<K>(&unreadable);
                Ok((key, Entry { version, object: Err(unreadable) }))
            }
        }
    }

    /// Waits until the CustomResourceDefinition of the kind is established, by a watch instead of polling.
    async fn wait_until_served(&self) {
        let name = format!("{}.{}", K::plural(&()), K::group(&()));
        let request = Request::new(CustomResourceDefinition::url_path(&(), None));
        let parameters = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(TIMEOUT_SECONDS);
        let mut failures = 0;
        loop {
            // Without a resource version, the watch begins with the existing definition.
            match self.is_established(request.watch(&parameters, "")).await {
                Ok(true) => return,
                Ok(false) => failures = 0,
                // Without permission to read definitions, the kind itself is polled.
                Err(Ended::Refused(status)) if status.code == StatusCode::FORBIDDEN => {
                    return sleep(NOT_SERVED_RETRY).await;
                }
                Err(_) => failures += 1,
            }
            sleep(self.context.backoff.wait(failures, chance())).await;
        }
    }

    async fn is_established(
        &self,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<bool, Ended> {
        let request = request.map_err(kube::Error::BuildRequest)?;
        let mut lines = Box::pin(self.client.request_stream(request).await?);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).await.map_err(Ended::Interrupted)? > 0 {
            let Line { r#type, object } = serde_json::from_slice(&line).map_err(Ended::Malformed)?;
            if matches!(r#type, "ADDED" | "MODIFIED") {
                let definition: CustomResourceDefinition =
                    serde_json::from_str(object.get()).map_err(Ended::Malformed)?;
                let conditions = definition.status.and_then(|status| status.conditions).unwrap_or_default();
                if conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True") {
                    return Ok(true);
                }
            }
            line.clear();
        }
        Ok(false)
    }
}

fn metadata_of(object: &RawValue) -> Result<ObjectMeta, Ended> {
    serde_json::from_str(object.get()).map(|only: OnlyMetadata| only.metadata).map_err(Ended::Malformed)
}

/// Whether the API server refused a request because it does not stream lists.
fn is_about_streaming(status: &Status) -> bool {
    (status.code == StatusCode::UNPROCESSABLE_ENTITY || status.code == StatusCode::BAD_REQUEST)
        && (status.message.contains("sendInitialEvents") || status.message.contains("resourceVersionMatch"))
}
