//! The metric of when certificates expire.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use messina_api::names::{annotation::certificate, label};
use messina_runtime::{metrics::Metrics, store::Change};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
};

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SecretLabels {
    namespace: String,
    datacenter: String,
    secret: String,
}

/// When the certificates of datacenters expire. Clones share the same metric.
#[derive(Clone, Debug)]
pub struct Expiry(Family<SecretLabels, Gauge>);

impl Expiry {
    /// Registers the metric. Call it once per process.
    pub fn new(metrics: &Metrics) -> Self {
        let expiry = Self(Family::default());
        metrics.register(|registry| {
            let help = "Expiry of a certificate, in seconds since 1970";
            registry.register("certificate_expiry_timestamp_seconds", help, expiry.0.clone());
        });
        expiry
    }

    pub(super) fn observe_change(&self, change: &Change<Secret>) {
        if let Some((labels, _)) = change.before.as_deref().and_then(expiry_of) {
            self.0.remove(&labels);
        }
        if let Some((labels, time)) = change.after.as_deref().and_then(expiry_of) {
            self.0.get_or_create(&labels).set(time.as_second());
        }
    }

    /// Removes all series, when this process is no longer the leader.
    pub(super) fn clear(&self) {
        self.0.clear();
    }
}

/// Returns when the certificate in a Secret of a datacenter expires, from the Secret's annotation.
fn expiry_of(secret: &Secret) -> Option<(SecretLabels, Timestamp)> {
    let metadata = &secret.metadata;
    let labels = SecretLabels {
        namespace: metadata.namespace.clone()?,
        datacenter: metadata.labels.as_ref()?.get(label::CLUSTER)?.clone(),
        secret: metadata.name.clone()?,
    };
    Some((labels, metadata.annotations.as_ref()?.get(certificate::NOT_AFTER)?.parse().ok()?))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::sync::Arc;

    use messina_runtime::queue::ObjectKey;
    use serde_json::json;

    use super::*;

    #[test]
    fn expiry_is_exported_while_the_secret_exists() {
        let metrics = Metrics::default();
        let expiry = Expiry::new(&metrics);
        let secret = |end: &str| -> Option<Arc<Secret>> {
            Some(Arc::new(
                serde_json::from_value(json!({"metadata": {
                    "name": "orders-local-serving-certs", "namespace": "shop", "labels": {label::CLUSTER: "orders"},
                    "annotations": {certificate::NOT_AFTER: end},
                }}))
                .unwrap(),
            ))
        };
        let key = ObjectKey { namespace: Some("shop".into()), name: "orders-local-serving-certs".into() };
        let mut before = None;
        for (after, expected) in [
            (secret("2026-12-15T12:00:00Z"), Some(1_797_336_000)),
            (secret("2027-01-04T12:00:00Z"), Some(1_799_064_000)),
            (secret("sometime"), None),
            (secret("2027-01-04T12:00:00Z"), Some(1_799_064_000)),
            (None, None),
        ] {
            expiry.observe_change(&Change::new(key.clone(), before.clone(), after.clone()));
            before = after;
            let text = metrics.text().unwrap();
            let line = text.lines().find(|line| line.starts_with("messina_certificate_expiry_timestamp_seconds{"));
            let labels = r#"{namespace="shop",datacenter="orders",secret="orders-local-serving-certs"}"#;
            let expected = expected.map(|time| format!("messina_certificate_expiry_timestamp_seconds{labels} {time}"));
            assert_eq!(line.map(str::to_owned), expected);
        }
    }
}
