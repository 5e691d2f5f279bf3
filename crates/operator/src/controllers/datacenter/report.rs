//! The status of a datacenter.

use std::time::Duration;

use jiff::Timestamp;
use messina_plan::datacenter::{self, Observed, Plan};
use messina_runtime::reasons::AS_EXPECTED;
use messina_runtime::status::{Report, condition};
use serde_json::json;

pub(super) fn report(observed: &Observed, plan: &Plan) -> Report {
    let datacenter::Report { status, available } = datacenter::report(observed);
    let (reason, message) = match &available {
        Ok(()) => (AS_EXPECTED, ""),
        Err(unavailable) => (unavailable.reason, unavailable.message.as_str()),
    };
    let name = format!("{}Available", datacenter::Component::StatefulSet.name());
    Report {
        status: json!(status),
        conditions: vec![condition(name, available.is_ok(), reason, message, Some(observed.datacenter().generation))],
        requeue_after: plan.requeue_at.map(|at| time_until(observed.now(), at)),
        ..Report::default()
    }
}

/// Returns the time until `then`, and at least a second.
fn time_until(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default().max(Duration::from_secs(1))
}
