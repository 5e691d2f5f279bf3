//! `testbed bench`: measures the operator with many datacenters of one node, on Kubernetes nodes that KWOK simulates.
//!
//! Requests are counted by the operator's own metrics and by the audit log, which have to agree. A loader that creates
//! the same objects over as many connections as the operator has workers shows how fast the API server is.

mod audit;
mod load;
mod process;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use jiff::Timestamp;

use crate::{
    cluster::{self, Cluster, ClusterSpec, Kind},
    demo,
    error::{Error, Result},
    harness,
    progress::Steps,
};
use audit::Requests;
use process::Operator;

/// The name of the cluster.
const CLUSTER: &str = "bench";
/// How many objects the operator and the loader handle at once.
const WORKERS: usize = 8;
/// The timeout of each step, on a busy host.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Measure {
    /// The program `messina`.
    pub operator: PathBuf,
    /// The number of datacenters.
    pub datacenters: usize,
    /// For how long an idle operator may send no request.
    pub idle: Duration,
}

/// One line of the table.
#[derive(Debug)]
struct Line {
    what: String,
    value: f64,
    unit: &'static str,
    limit: Option<f64>,
}

impl Line {
    fn is_missed(&self) -> bool {
        self.limit.is_some_and(|limit| self.value > limit)
    }
}

#[derive(Debug, Default)]
struct Table(Vec<Line>);

impl Table {
    fn add(&mut self, what: impl Into<String>, value: f64, unit: &'static str, limit: impl Into<Option<f64>>) {
        self.0.push(Line { what: what.into(), value, unit, limit: limit.into() });
    }

    fn print(&self) {
        println!("{:<62} {:>10} {:<9} {:>8}", "", "measured", "", "at most");
        for line in &self.0 {
            let digits = if line.value.fract() == 0.0 { 0 } else { 2 };
            let limit = line.limit.map(|limit| limit.to_string()).unwrap_or_default();
            let mark = if line.is_missed() { "  EXCEEDED" } else { "" };
            println!("{:<62} {:>10.digits$} {:<9} {limit:>8}{mark}", line.what, line.value, line.unit);
        }
    }

    fn missed(&self) -> Vec<&str> {
        self.0.iter().filter(|line| line.is_missed()).map(|line| line.what.as_str()).collect()
    }
}

/// Measures, prints a table, and fails if a limit is exceeded. The cluster is removed afterwards.
pub async fn run(measure: &Measure, steps: &Steps) -> Result<()> {
    let (port, kubeconfig, etcd) = (None, None, None);
    let spec =
        ClusterSpec { name: CLUSTER.into(), kind: Kind::Light, nodes: 1, fake_nodes: 10, port, kubeconfig, etcd };
    let cluster = cluster::up(&spec, steps).await?;
    let measured = measure_on(&cluster, measure, steps).await;
    cluster::down(CLUSTER, steps)?;
    let table = measured?;
    table.print();
    let missed = table.missed();
    if missed.is_empty() { Ok(()) } else { Err(Error::refused(format!("limits are exceeded: {}", missed.join("; ")))) }
}

async fn measure_on(cluster: &Cluster, measure: &Measure, steps: &Steps) -> Result<Table> {
    let client = harness::client(&cluster.kubeconfig()).await?;
    demo::install_definitions(&client).await?;
    let credentials = process::credentials(&client, cluster).await?;
    let audit = |from: Timestamp| audit::since(&cluster.audit_log(), from);
    let mut table = Table::default();

    let step = steps.begin("measuring an idle operator without datacenters");
    let started = Instant::now();
    let operator = Operator::start(&measure.operator, &credentials, cluster)?;
    operator.leads().await?;
    table.add("ready, after its start", started.elapsed().as_secs_f64(), "s", 1.0);
    table.add("requests while idle without datacenters", idle(measure, &audit).await?, "", 0.0);
    table.add("memory while idle without datacenters", operator.memory()?, "MiB", 30.0);
    step.done("");

    let count = measure.datacenters;
    let step = steps.begin(format!("{count} datacenters of one node"));
    let namespaces = load::namespaces(&client, "operated", count).await?;
    let (before, from) = (operator.requests().await?, Timestamp::now());
    load::create_datacenters(&client, &namespaces).await?;
    load::datacenters_are_ready(&client, count).await?;
    let quiet = idle(measure, &audit).await?;
    let after = operator.requests().await?;
    let requests = audit(from)?;
    let (cpu, peak) = (operator.cpu_seconds()?, operator.peak_memory()?);
    operator.stops()?;
    step.done("");

    let step = steps.begin("creating the same objects with a loader");
    let bare = load::by_hand(&client, &namespaces, count).await?;
    step.done("");
    report(&mut table, &requests, after - before, bare)?;
    table.add(format!("requests in {} s after the last node is ready", measure.idle.as_secs()), quiet, "", 0.0);
    table.add("CPU time", cpu, "s", 6.0);
    table.add("memory, at its peak", peak, "MiB", 60.0);

    let step = steps.begin("measuring an operator that is started with half of the datacenters");
    load::delete_half(&client, &namespaces, count).await?;
    let from = Timestamp::now();
    let operator = Operator::start(&measure.operator, &credentials, cluster)?;
    operator.leads().await?;
    table.add(format!("requests while idle with {}", count.div_ceil(2)), idle(measure, &audit).await?, "", 0.0);
    table.add(format!("memory while idle with {}", count.div_ceil(2)), operator.memory()?, "MiB", 40.0);
    table.add("writes of an operator that is restarted", audit(from)?.writes() as f64, "", 0.0);
    step.done("");

    let half = count.div_ceil(2);
    let step = steps.begin(format!("{half} datacenters that each refer to two ConfigMaps and a Secret"));
    let from = Timestamp::now();
    load::name_settings(&client, &namespaces).await?;
    table.add("requests while idle with settings of users", idle(measure, &audit).await?, "", 0.0);
    table.add("memory while idle with settings of users", operator.memory()?, "MiB", 45.0);
    // Each referenced object once, and the preconditions of writes of StatefulSets.
    table.add("reads of single objects for these settings", audit(from)?.reads() as f64, "", half as f64 * 9.0);
    operator.stops()?;
    step.done("");
    Ok(table)
}

/// Counts requests while there is nothing to do.
async fn idle(measure: &Measure, audit: &impl Fn(Timestamp) -> Result<Requests>) -> Result<f64> {
    // Requests in flight end first.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let from = Timestamp::now();
    tokio::time::sleep(measure.idle).await;
    let requests = audit(from)?;
    if requests.len() > 0 {
        eprintln!("while idle: {}", requests.by_kind());
    }
    Ok(requests.len() as f64)
}

fn report(table: &mut Table, requests: &Requests, counted: u64, bare: load::Bare) -> Result<()> {
    let created = requests.created();
    if created == 0 {
        return Err(Error::refused("the operator created nothing"));
    }
    println!("{}", requests.by_kind());
    table.add("objects that the operator created", created as f64, "", None);
    table.add("objects that the loader created", bare.objects as f64, "", None);
    table.add("requests of the operator, by the audit log", requests.len() as f64, "", None);
    table.add("requests of the operator, by its metrics", counted as f64, "", None);
    let differ = (requests.len() as f64 - counted as f64).abs();
    table.add("difference between the two", differ, "", 0.0);
    table.add("requests for each object", requests.len() as f64 / created as f64, "", 1.4);
    table.add("conflicts", requests.conflicts() as f64, "", 0.0);
    table.add("last object of the operator", requests.until_last_creation(), "s", None);
    table.add("last write of the operator", requests.until_last_write(), "s", None);
    table.add("last object of the loader", bare.seconds, "s", None);
    table.add("the operator's time relative to the loader's", requests.until_last_creation() / bare.seconds, "", 1.5);
    Ok(())
}

/// A path as the text of an argument.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
