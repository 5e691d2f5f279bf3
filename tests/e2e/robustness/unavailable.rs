//! An API server that is unavailable, lacks a definition, or rejects the operator's certificate.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use messina_e2e::{in_a_namespace, light_kubeconfig};
use messina_testbed::{demo, harness};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    Own, apply, await_created, await_repair, await_that, datacenter, operator_process::Operator, proxy::Credentials,
};

/// How long the API server is stopped; a variable can set a longer time, for measurements.
fn absence() -> Duration {
    let wanted = std::env::var("MESSINA_TEST_ABSENCE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(wanted.unwrap_or(15))
}

/// Waits until the API server of a cluster runs, and returns its process.
pub(crate) async fn api_server(folder: &Path) -> Pid {
    process(folder, "kube-apiserver").await
}

/// Waits until a program of a cluster runs, and returns its process.
pub(super) async fn process(folder: &Path, name: &str) -> Pid {
    let folder = format!("{}/", folder.display());
    let mut found = None;
    await_that(&format!("a process of {name}"), async || {
        let numbers =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        found = numbers.into_iter().find(|number: &i32| {
            let command = fs::read_to_string(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let program = command.split('\0').next().unwrap_or_default();
            program.ends_with(&format!("/{name}")) && command.contains(&folder)
        });
        found.map(drop).ok_or_else(|| "none".into())
    })
    .await;
    Pid::from_raw(found.unwrap())
}

#[tokio::test]
async fn operator_waits_for_missing_definitions() {
    let Some(own) = Own::up("days-crd").await else { return };
    let namespace = harness::namespace(&own.client, "days").await.unwrap();
    let mut operator = Operator::start_for_all(&own.cluster().kubeconfig(), &namespace, &[]);
    let wanted = BTreeSet::from(["EtcdOperatorTask", "ScyllaDBDatacenter"].map(String::from));
    // Each watch fails by itself, so one kind may be reported before the other.
    await_that("both kinds to be reported", async || match missing(&operator) {
        found if found.is_superset(&wanted) => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .await;
    is_ready(&operator, (503, "waiting for etcdoperatortasks, scylladbdatacenters\n")).await;

    demo::install_definitions(&own.client).await.unwrap();
    apply(&own.client, &namespace, &datacenter("dc")).await;
    await_created(&own.client, &namespace, "dc").await;
    is_ready(&operator, (200, "ready\n")).await;
    // The kind Etcd is optional, so there is no warning about it, and no warning is repeated.
    assert_eq!(missing(&operator), wanted);
    let warnings = operator.warnings(0).into_iter().filter(|warning| !warning.contains(INITIALIZING));
    let warnings: Vec<String> = warnings.collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    operator.check_running();
}

/// Waits until the operator's readiness endpoint has this response.
async fn is_ready(operator: &Operator, wanted: (u16, &str)) {
    await_that(&format!("readiness: {wanted:?}"), async || match operator.get("/readyz").await {
        (code, text) if (code, text.as_str()) == wanted => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// The API server refuses watches of a new kind with this message for a moment.
const INITIALIZING: &str = "storage is (re)initializing";

/// The kinds that the operator has warned about.
fn missing(operator: &Operator) -> BTreeSet<String> {
    let logged = operator.logged(0);
    let is_warning = |line: &&serde_json::Value| line["level"] == "WARN" && !line.to_string().contains(INITIALIZING);
    let warnings = logged.iter().filter(is_warning);
    warnings.filter_map(|line| Some(line["kind"].as_str()?.to_owned())).collect()
}

#[tokio::test]
async fn unavailable_api_server_is_reported_once_and_awaited() {
    let Some(own) = Own::up("days-away").await else { return };
    demo::install_definitions(&own.client).await.unwrap();
    let namespace = harness::namespace(&own.client, "days").await.unwrap();
    let kubeconfig = own.cluster().kubeconfig();
    let folder = kubeconfig.parent().unwrap().parent().unwrap();
    apply(&own.client, &namespace, &datacenter("dc")).await;
    let mut operator = Operator::start_for_all(&kubeconfig, &namespace, &["--lease-seconds=6"]);
    await_created(&own.client, &namespace, "dc").await;

    eprintln!("the API server is killed and restarted");
    let mark = operator.mark();
    kill(api_server(folder).await, Signal::SIGKILL).unwrap();
    operator.await_log(mark, "the API server cannot be reached").await;
    operator.await_log(mark, "the API server answers again").await;
    // The test's own client has to reach it, too.
    await_that("the API server", async || {
        own.client.apiserver_version().await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    await_repair(&own.client, &namespace, "dc").await;
    check_few_warnings(&operator.warnings(mark), 2);
    operator.check_running();

    eprintln!("the API server does not answer for longer than the lease lasts");
    operator.await_metric("messina_leading", "1").await;
    let mark = operator.mark();
    let process = api_server(folder).await;
    kill(process, Signal::SIGSTOP).unwrap();
    operator.await_log(mark, "the lease is lost").await;
    operator.await_metric("messina_leading", "0").await;
    tokio::time::sleep(absence()).await;
    assert!(
        operator.logged(mark).iter().all(|line| line["message"] != "leading"),
        "no operator can have acquired the lease"
    );
    kill(process, Signal::SIGCONT).unwrap();
    operator.await_log(mark, "the API server answers again").await;
    operator.await_log(mark, "leading").await;
    await_repair(&own.client, &namespace, "dc").await;
    check_few_warnings(&operator.warnings(mark), 2);
    eprintln!("{} lines in all: {:#?}", operator.logged(mark).len(), operator.logged(mark));
    operator.check_running();
}

/// Checks that there are at most this many warnings, and none twice.
fn check_few_warnings(warnings: &[String], most: usize) {
    let mut different = warnings.to_vec();
    different.sort();
    different.dedup();
    assert!(different.len() == warnings.len() && warnings.len() <= most, "{warnings:#?}");
}

#[tokio::test]
async fn expired_certificate_is_reported_once_and_reloaded() {
    in_a_namespace("days-expired", async |client, namespace| {
        let Some(credentials) = Credentials::new(&light_kubeconfig(), namespace) else { return };
        credentials.certify("days-operator", Duration::from_secs(20));
        let mut operator = Operator::start(&credentials.kubeconfig(None), namespace, &[]);
        apply(client, namespace, &datacenter("dc")).await;
        await_created(client, namespace, "dc").await;
        let reported = operator.await_log(0, "the API server rejects this client").await;
        assert!(reported["message"].as_str().unwrap().contains("Replace it"), "{reported}");
        // The renewal of the lease fails a few times more, without further warnings.
        let refused = "messina_api_requests_total{verb=\"update\",resource=\"leases\",code=\"401\"}";
        await_that("more refusals", async || {
            let (_, text) = operator.get("/metrics").await;
            let count = text.lines().find_map(|line| line.strip_prefix(refused)?.trim().parse::<u32>().ok());
            if count > Some(2) { Ok(()) } else { Err(format!("{count:?}")) }
        })
        .await;
        assert_eq!(operator.warnings(0).len(), 1, "{:?}", operator.warnings(0));

        credentials.certify("days-operator", Duration::from_secs(3600));
        operator.await_log(0, "the API server accepts this client again").await;
        await_repair(client, namespace, "dc").await;
        check_few_warnings(&operator.warnings(0), 2);
        operator.check_running();
    })
    .await;
}
