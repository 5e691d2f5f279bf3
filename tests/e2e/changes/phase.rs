//! The duration and the writes of a phase of a test.

use std::time::Instant;

use messina_e2e::{
    datacenter::TestDatacenter,
    observer::log::{Log, Write},
};

/// A phase of a test that has begun.
pub(super) struct Phase {
    name: String,
    datacenter: TestDatacenter,
    log: Log,
    began: Instant,
}

impl Phase {
    pub(super) fn begin(datacenter: &TestDatacenter, name: &str) -> Self {
        let log = datacenter.writes_from_now();
        Self { name: name.into(), datacenter: datacenter.clone(), log, began: Instant::now() }
    }

    /// Prints the duration and the number of writes, and returns the writes.
    pub(super) fn end(mut self) -> Vec<Write> {
        let writes = self.log.more();
        let count = |is: &dyn Fn(&Write) -> bool| writes.iter().filter(|write| is(write)).count();
        let is_operators = |write: &Write| self.datacenter.is_from_operator(write);
        let is_sidecars = |write: &Write| self.datacenter.is_from_sidecar(write);
        println!(
            "{}: {:.1} s, {} writes of the operator ({} of them events), {} of sidecars, {} conflicts",
            self.name,
            self.began.elapsed().as_secs_f64(),
            count(&is_operators),
            count(&|write| is_operators(write) && write.resource == "events"),
            count(&is_sidecars),
            count(&|write| write.code == 409 && (is_operators(write) || is_sidecars(write))),
        );
        writes
    }
}
