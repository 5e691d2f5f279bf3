//! The operator as far as these tests are about it.

use std::sync::Arc;

use messina_operator::controllers::{self, datacenter};
use messina_plan::datacenter::Gates;
use messina_runtime::{caches::Caches, controller::AnyController, metrics::Metrics};

/// The controller of datacenters alone.
pub(crate) fn datacenters(caches: &mut Caches, _: &Metrics) -> Vec<Arc<dyn AnyController>> {
    let settings = datacenter::Settings {
        operator_image: "localhost/messina/operator:test".into(),
        node_exporter_image: "localhost/messina/node-exporter:test".into(),
        gates: Gates::default(),
    };
    let jobs = controllers::jobs(caches);
    vec![datacenter::start(caches, &jobs, settings)]
}
