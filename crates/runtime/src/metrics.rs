//! Metrics for Prometheus.

use std::{
    fmt::{self, Debug},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Upper bounds of the histogram buckets, in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reconcile {
    controller: String,
    result: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByController {
    controller: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct QueueState {
    controller: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Request {
    verb: &'static str,
    resource: String,
    code: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByVerb {
    verb: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByResource {
    resource: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WatchEnd {
    resource: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByResult {
    result: &'static str,
}

type Seconds = Family<ByController, Histogram, fn() -> Histogram>;
type RequestSeconds = Family<ByVerb, Histogram, fn() -> Histogram>;
type Refresh = Box<dyn Fn(&Metrics) + Send + Sync>;

fn histogram() -> Histogram {
    Histogram::new(BUCKETS)
}

/// The metrics of a process. Clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    /// Update gauges before they are read.
    refreshes: Mutex<Vec<Refresh>>,
    reconciles: Family<Reconcile, Counter>,
    reconcile_seconds: Seconds,
    queue: Family<QueueState, Gauge>,
    queue_age: Family<ByController, Gauge<f64, AtomicU64>>,
    requests: Family<Request, Counter>,
    request_seconds: RequestSeconds,
    cached: Family<ByResource, Gauge>,
    unreadable: Family<ByResource, Gauge>,
    unreadable_seen: Family<ByResource, Counter>,
    watch_ends: Family<WatchEnd, Counter>,
    leading: Gauge,
    events: Family<ByResult, Counter>,
    panics: Family<ByController, Counter>,
}

impl Debug for Metrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let inner = Inner {
            registry: Mutex::new(Registry::with_prefix("messina")),
            refreshes: Mutex::default(),
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(histogram),
            queue: Family::default(),
            queue_age: Family::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(histogram),
            cached: Family::default(),
            unreadable: Family::default(),
            unreadable_seen: Family::default(),
            watch_ends: Family::default(),
            leading: Gauge::default(),
            events: Family::default(),
            panics: Family::default(),
        };
        inner.register();
        Self(Arc::new(inner))
    }
}

impl Inner {
    fn register(&self) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register("reconciles", "Reconciles, by result and reason", self.reconciles.clone());
        registry.register("reconcile_seconds", "Duration of reconciles", self.reconcile_seconds.clone());
        registry.register("queue_objects", "Objects that are queued or being reconciled, by state", self.queue.clone());
        registry.register("queue_age_seconds", "Time that the oldest queued object has waited", self.queue_age.clone());
        registry.register("api_requests", "Requests to the API server, by code", self.requests.clone());
        registry.register("api_request_seconds", "Duration of API server requests", self.request_seconds.clone());
        registry.register("cache_objects", "Objects in the caches", self.cached.clone());
        registry.register("cache_unreadable_objects", "Cached objects that cannot be read", self.unreadable.clone());
        let help = "Times that a watch has shown an object that cannot be read";
        registry.register("unreadable_objects_seen", help, self.unreadable_seen.clone());
        registry.register("watch_ends", "Watches that ended and were restarted, by reason", self.watch_ends.clone());
        registry.register("leading", "1 while this process holds the lease", self.leading.clone());
        registry.register("panics", "Panics of the operator, by controller", self.panics.clone());
        registry.register("events", "Events about objects, by result", self.events.clone());
    }
}

impl Metrics {
    /// Returns all metrics in the OpenMetrics text format.
    pub fn text(&self) -> Result<String, fmt::Error> {
        for refresh in self.0.refreshes.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            refresh(self);
        }
        let mut text = String::new();
        encode(&mut text, &self.0.registry.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(text)
    }

    /// Registers the metrics of a controller.
    pub fn register(&self, register: impl FnOnce(&mut Registry)) {
        register(&mut self.0.registry.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Calls `refresh` before gauges are read.
    pub(crate) fn on_read(&self, refresh: impl Fn(&Self) + Send + Sync + 'static) {
        self.0.refreshes.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(refresh));
    }

    /// Drops all `refresh` functions: they belong to a term as the leader that is over.
    pub(crate) fn forget_refreshes(&self) {
        self.0.refreshes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn reconciled(&self, controller: &str, result: &'static str, reason: &'static str, took: Duration) {
        let controller = controller.to_owned();
        self.0
            .reconcile_seconds
            .get_or_create(&ByController { controller: controller.clone() })
            .observe(took.as_secs_f64());
        self.0.reconciles.get_or_create(&Reconcile { controller, result, reason }).inc();
    }

    pub(crate) fn queue(&self, controller: &str, load: crate::queue::Load) {
        let controller = controller.to_owned();
        for (state, count) in [("ready", load.ready), ("later", load.later), ("running", load.running)] {
            let labels = QueueState { controller: controller.clone(), state };
            self.0.queue.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        self.0.queue_age.get_or_create(&ByController { controller }).set(load.age.as_secs_f64());
    }

    pub(crate) fn request(&self, verb: &'static str, resource: String, code: String, took: Option<Duration>) {
        if let Some(took) = took {
            self.0.request_seconds.get_or_create(&ByVerb { verb }).observe(took.as_secs_f64());
        }
        self.0.requests.get_or_create(&Request { verb, resource, code }).inc();
    }

    pub(crate) fn cached(&self, resource: &str, objects: usize, unreadable: usize) {
        let labels = ByResource { resource: resource.to_owned() };
        self.0.cached.get_or_create(&labels).set(i64::try_from(objects).unwrap_or(i64::MAX));
        self.0.unreadable.get_or_create(&labels).set(i64::try_from(unreadable).unwrap_or(i64::MAX));
    }

    pub(crate) fn unreadable(&self, resource: &str) {
        self.0.unreadable_seen.get_or_create(&ByResource { resource: resource.to_owned() }).inc();
    }

    pub(crate) fn watch_ended(&self, resource: &str, reason: &'static str) {
        self.0.watch_ends.get_or_create(&WatchEnd { resource: resource.to_owned(), reason }).inc();
    }

    pub(crate) fn leading(&self, is_leading: bool) {
        self.0.leading.set(is_leading.into());
    }

    pub(crate) fn panicked(&self, controller: &str) {
        self.0.panics.get_or_create(&ByController { controller: controller.to_owned() }).inc();
    }

    pub(crate) fn event(&self, result: &'static str) {
        self.0.events.get_or_create(&ByResult { result }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_all_metrics() -> Result<(), fmt::Error> {
        let metrics = Metrics::default();
        metrics.reconciled("datacenter", "failed", "Conflict", Duration::from_millis(3));
        metrics.request("patch", "services".into(), "200".into(), None);
        metrics.on_read(|metrics| metrics.cached("services", 3, 1));
        let text = metrics.text()?;
        for line in [
            r#"messina_reconciles_total{controller="datacenter",result="failed",reason="Conflict"} 1"#,
            r#"messina_api_requests_total{verb="patch",resource="services",code="200"} 1"#,
            r#"messina_cache_objects{resource="services"} 3"#,
            r#"messina_cache_unreadable_objects{resource="services"} 1"#,
            "messina_leading 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        Ok(())
    }
}
