//! One watch for one kind: keeps a [`Store`] as the API server says, whatever happens in between.
//!
//! The first list is streamed as part of the watch where the server can do that, and is always a consistent one. A watch
//! that ends is taken up where it ended; one whose place the server has forgotten begins with a new list. Lists older than
//! what is already known are refused, and so is what the watch says of an object out of order.

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
    contact::is_told,
    queue::{ObjectKey, chance},
    shared_context::SharedContext,
    store::{Entry, Kind, Outdated, Store, Unreadable, Version, key_of, version_of},
};

/// After this many seconds the server ends a watch, and another one takes its place.
const SECONDS: u32 = 290;
/// A connection that says nothing for longer than a watch lasts is dead.
pub(crate) const SILENCE: Duration = Duration::from_secs(SECONDS as u64 + 10);
/// A kind that is not installed is asked for this often, where definitions may not be read.
const UNDEFINED: Duration = Duration::from_secs(30);
/// Lists may be older than what is known for this time, as those of an API server that lags behind another.
const OUTDATED: Duration = Duration::from_secs(60);
/// Lines are read into the same memory, unless one was longer than this.
const LINE: usize = 256 * 1024;
/// Objects of a page, where lists are not streamed.
const PAGE: u32 = 500;

/// Which objects of a kind are watched, and how much of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only those of this namespace.
    pub namespace: Option<String>,
    /// Only those with these labels.
    pub labels: Option<String>,
    /// Only those of this name.
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
    #[error("the API server ended it")]
    Closed,
    #[error("the API server has forgotten where it was")]
    Expired,
    #[error("the API server does not know this kind: its CustomResourceDefinition is not installed")]
    NotServed,
    #[error("nothing was heard for {} s", SILENCE.as_secs())]
    Silent,
    #[error(transparent)]
    Outdated(#[from] Outdated),
    #[error("the API server says: {}", .0.message)]
    Refused(Box<Status>),
    #[error("a line of it cannot be read")]
    Malformed(#[source] serde_json::Error),
    #[error("it was interrupted")]
    Interrupted(#[source] std::io::Error),
    #[error("it cannot be begun")]
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
    /// Whether it is nothing to tell, or told elsewhere for all watches at once. One that was interrupted is begun anew,
    /// and only if that fails something is wrong.
    fn is_told(&self) -> bool {
        match self {
            Self::Closed | Self::Expired | Self::Silent | Self::Interrupted(_) => true,
            Self::Refused(status) => status.code == StatusCode::UNAUTHORIZED,
            Self::Failed(error) => is_told(error),
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

/// A line of a watch: what happened, and to what.
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

/// Which objects of a watch are kept.
pub(crate) type Filter = Box<dyn Fn(&ObjectKey) -> bool + Send + Sync>;

type Objects<K> = HashMap<ObjectKey, Entry<K>>;

/// The watch of one kind.
pub(crate) struct Watch<K> {
    pub(crate) store: Arc<Store<K>>,
    pub(crate) scope: Scope,
    pub(crate) client: Client,
    /// Takes away what nobody reads.
    pub(crate) trim: fn(&mut K),
    /// Which objects are kept; all where there is none.
    pub(crate) filter: Option<Filter>,
    pub(crate) context: Arc<SharedContext>,
    /// Whether the server streams lists; true until it says otherwise.
    pub(crate) streams_lists: bool,
}

impl<K: Kind> Watch<K> {
    /// Keeps the store as the API server says. Ends only when the API server has shown an older state than before for
    /// [`OUTDATED`]: then its storage was restored, and what is in the stores is of a future that was undone.
    pub(crate) async fn run(mut self) {
        // Where the watch is taken up again; zero when it is to begin anew.
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
                // From now on something may be missed, and the whole list is read when that is allowed again.
                position = 0;
            }
            let is_outdated = matches!(ended, Ended::Outdated(_));
            if is_outdated && outdated_since.get_or_insert_with(Instant::now).elapsed() > OUTDATED {
                let what = "the API server shows an older state than before, as after a restore of its storage";
                warn!(kind = %K::kind(&()), problem = %ended, "{what}");
                return;
            }
            if !is_outdated && position > 0 {
                // A list was taken in meanwhile.
                outdated_since = None;
            }
            if matches!(ended, Ended::Expired | Ended::NotServed | Ended::Outdated(_) | Ended::Malformed(_)) {
                position = 0;
            }
            if began.elapsed() > Duration::from_secs(60) {
                // All was well for a while, so that old trouble is news again.
                failures = 0;
                last_warning.clear();
            }
            match ended {
                // One that lasted is taken up at once; one that did not is not asked for without a pause.
                Ended::Closed | Ended::Expired if began.elapsed() > Duration::from_secs(5) => failures = 0,
                Ended::NotServed => {
                    failures += 1;
                    self.store.not_served();
                    self.store.set_forbidden(false);
                    let warning = ended.to_string();
                    if warning != last_warning {
                        if self.store.is_missing() {
                            info!(kind = %K::kind(&()), "{ended}; it need not be");
                        } else {
                            warn!(kind = %K::kind(&()), "{ended}; waiting for it");
                        }
                        last_warning = warning;
                    }
                    self.is_served().await;
                    // A definition is there a little before its objects are served.
                    sleep(self.context.backoff.wait(failures, chance())).await;
                }
                ended => {
                    failures += 1;
                    let warning = crate::error::chain(&ended);
                    if ended.is_told() || warning == last_warning {
                        debug!(kind = %K::kind(&()), problem = warning, "the watch ended; trying again");
                    } else {
                        warn!(kind = %K::kind(&()), problem = warning, "the watch ended; trying again");
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
        // What the streamed list has shown so far; none once it is complete.
        let mut listed: Option<Objects<K>> = (*position == 0).then(HashMap::new);
        let mut lines = match self.begin(*position).await {
            Err(Ended::Refused(status)) if listed.is_some() && is_about_streaming(&status) => {
                info!(kind = %K::kind(&()), "the API server does not stream lists; asking for pages");
                self.streams_lists = false;
                return Err(Ended::Closed);
            }
            other => other?,
        };
        let mut line = Vec::new();
        loop {
            line.clear();
            line.shrink_to(LINE);
            let length = timeout(SILENCE, lines.read_until(b'\n', &mut line)).await.map_err(|_| Ended::Silent)?;
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
                // Something that servers of today do not say.
                _ => {}
            }
        }
    }

    async fn begin(&self, position: Version) -> Result<impl AsyncBufRead + Unpin + use<K>, Ended> {
        let parameters = WatchParams {
            label_selector: self.scope.labels.clone(),
            field_selector: self.scope.fields(),
            timeout: Some(SECONDS),
            send_initial_events: position == 0,
            ..WatchParams::default()
        };
        // No version asks for a list that is no older than the request.
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

    /// An object, or what is wrong with it.
    fn read(&self, object: &RawValue) -> Result<(ObjectKey, Entry<K>), Ended> {
        match serde_json::from_str::<K>(object.get()) {
            Ok(mut read) => {
                (self.trim)(&mut read);
                let metadata = read.meta();
                Ok((key_of(metadata), Entry { version: version_of(metadata), object: Ok(Arc::new(read)) }))
            }
            Err(problem) => {
                let mut metadata = metadata_of(object)?;
                // Nobody asks who wrote what of an object that cannot be read, and that is most of it.
                metadata.managed_fields = None;
                let (key, version) = (key_of(&metadata), version_of(&metadata));
                let unreadable =
                    Arc::new(Unreadable { kind: K::kind(&()).into_owned(), metadata, problem: problem.to_string() });
                warn!(kind = unreadable.kind, object = %key, problem = unreadable.problem, "an object cannot be read");
                self.context.tell_of_unreadable::<K>(&unreadable);
                Ok((key, Entry { version, object: Err(unreadable) }))
            }
        }
    }

    /// Waits until the definition of the kind is there. Says so for itself: nothing is asked again and again.
    async fn is_served(&self) {
        let name = format!("{}.{}", K::plural(&()), K::group(&()));
        let request = Request::new(CustomResourceDefinition::url_path(&(), None));
        let parameters = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(SECONDS);
        let mut failures = 0;
        loop {
            // Without a version, the watch begins with what is there.
            match self.established(request.watch(&parameters, "")).await {
                Ok(true) => return,
                Ok(false) => failures = 0,
                // Who may not read definitions finds out by asking for the kind itself.
                Err(Ended::Refused(status)) if status.code == StatusCode::FORBIDDEN => {
                    return sleep(UNDEFINED).await;
                }
                Err(_) => failures += 1,
            }
            sleep(self.context.backoff.wait(failures, chance())).await;
        }
    }

    async fn established(
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

/// Whether a refusal says that lists are not streamed.
fn is_about_streaming(status: &Status) -> bool {
    (status.code == StatusCode::UNPROCESSABLE_ENTITY || status.code == StatusCode::BAD_REQUEST)
        && (status.message.contains("sendInitialEvents") || status.message.contains("resourceVersionMatch"))
}
