//! From what was observed to how the datacenter stands.

use std::time::Duration;

use jiff::Timestamp;
use messina_plan::datacenter::{self, Observed, Plan};
use messina_runtime::status::{Report, condition};
use serde_json::json;

pub(super) fn report(observed: &Observed, plan: &Plan) -> Report {
    let datacenter::Report { status, conditions } = datacenter::report(observed, plan);
    // Those of the parts are told by what came of applying them; these are about more than that.
    let others = conditions.into_iter().filter(|one| one.condition_type.ends_with("Available"));
    let generation = Some(observed.datacenter.generation);
    Report {
        status: json!(status),
        conditions: others
            .map(|one| condition(one.condition_type, one.holds, &one.reason, &one.message, generation))
            .collect(),
        again_after: plan.again_at.map(|at| rest(observed.now, at)),
        ..Report::default()
    }
}

/// How long it is until then, and a moment at least.
fn rest(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(then.duration_since(now)).unwrap_or_default().max(Duration::from_secs(1))
}
