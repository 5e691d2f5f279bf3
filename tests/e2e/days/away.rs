//! An API server that is away, does not know a kind, or does not know us.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use messina_e2e::{in_a_namespace, light_kubeconfig};
use messina_testbed::{demo, harness};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{Own, apply, datacenter, holds, is_made, is_tended, program::Operator, way::Credentials};

/// How long the API server is stopped; longer where somebody wants to measure it.
fn absence() -> Duration {
    let wanted = std::env::var("MESSINA_TEST_ABSENCE_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(wanted.unwrap_or(15))
}

/// Waits until the API server of a cluster runs, and gives its process.
pub(crate) async fn api_server(folder: &Path) -> Pid {
    process(folder, "kube-apiserver").await
}

/// Waits until a program of a cluster runs, and gives its process.
pub(super) async fn process(folder: &Path, name: &str) -> Pid {
    let folder = format!("{}/", folder.display());
    let mut found = None;
    holds(&format!("a process of {name}"), async || {
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
async fn a_kind_that_is_not_installed_is_waited_for() {
    let Some(own) = Own::up("days-crd").await else { return };
    let namespace = harness::namespace(&own.client, "days").await.unwrap();
    let mut operator = Operator::start_for_all(&own.cluster().kubeconfig(), &namespace, &[]);
    let wanted = BTreeSet::from(["EtcdOperatorTask", "ScyllaDBDatacenter"].map(String::from));
    // Each watch finds out for itself, so one may tell before the other.
    holds("both kinds to be told", async || match missing(&operator) {
        told if told.is_superset(&wanted) => Ok(()),
        told => Err(format!("{told:?}")),
    })
    .await;
    is_ready(&operator, (503, "waiting for etcdoperatortasks, scylladbdatacenters\n")).await;

    demo::install_definitions(&own.client).await.unwrap();
    apply(&own.client, &namespace, &datacenter("dc")).await;
    is_made(&own.client, &namespace, "dc").await;
    is_ready(&operator, (200, "ready\n")).await;
    // The kind Etcd need not be there, which is no reason to warn; nor is anything told twice.
    assert_eq!(missing(&operator), wanted);
    // An API server that has just learned a kind may take a while until it serves it.
    let warnings = operator.warnings(0).into_iter().filter(|warning| !warning.contains("storage is (re)initializing"));
    let warnings: Vec<String> = warnings.collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    operator.goes_on();
}

/// Waits until the operator says this of its readiness.
async fn is_ready(operator: &Operator, wanted: (u16, &str)) {
    holds(&format!("readiness: {wanted:?}"), async || match operator.asked("/readyz").await {
        (code, text) if (code, text.as_str()) == wanted => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

/// The kinds of which the operator said that something is wrong with them.
fn missing(operator: &Operator) -> BTreeSet<String> {
    let logged = operator.logged(0);
    let warnings = logged.iter().filter(|line| line["level"] == "WARN");
    warnings.filter_map(|line| Some(line["kind"].as_str()?.to_owned())).collect()
}

#[tokio::test]
async fn an_api_server_that_is_away_is_told_once_and_waited_for() {
    let Some(own) = Own::up("days-away").await else { return };
    demo::install_definitions(&own.client).await.unwrap();
    let namespace = harness::namespace(&own.client, "days").await.unwrap();
    let kubeconfig = own.cluster().kubeconfig();
    let folder = kubeconfig.parent().unwrap().parent().unwrap();
    apply(&own.client, &namespace, &datacenter("dc")).await;
    let mut operator = Operator::start_for_all(&kubeconfig, &namespace, &["--lease-seconds=6"]);
    is_made(&own.client, &namespace, "dc").await;

    eprintln!("it is killed, and started again");
    let mark = operator.mark();
    kill(api_server(folder).await, Signal::SIGKILL).unwrap();
    operator.says(mark, "the API server cannot be reached").await;
    operator.says(mark, "the API server answers again").await;
    // The test's own client has to find it too.
    holds("the API server", async || own.client.apiserver_version().await.map(drop).map_err(|error| error.to_string()))
        .await;
    is_tended(&own.client, &namespace, "dc").await;
    few_words(&operator.warnings(mark), 2);
    operator.goes_on();

    eprintln!("it stops answering for longer than the lease lasts");
    operator.counts("messina_leading", "1").await;
    let mark = operator.mark();
    let process = api_server(folder).await;
    kill(process, Signal::SIGSTOP).unwrap();
    operator.says(mark, "the lease is lost").await;
    operator.counts("messina_leading", "0").await;
    tokio::time::sleep(absence()).await;
    assert!(operator.logged(mark).iter().all(|line| line["message"] != "leading"), "nobody can have said so");
    kill(process, Signal::SIGCONT).unwrap();
    operator.says(mark, "the API server answers again").await;
    operator.says(mark, "leading").await;
    is_tended(&own.client, &namespace, "dc").await;
    few_words(&operator.warnings(mark), 2);
    eprintln!("{} lines in all: {:#?}", operator.logged(mark).len(), operator.logged(mark));
    operator.goes_on();
}

/// Nothing is said twice, and not much in all.
fn few_words(warnings: &[String], most: usize) {
    let mut different = warnings.to_vec();
    different.sort();
    different.dedup();
    assert!(different.len() == warnings.len() && warnings.len() <= most, "{warnings:#?}");
}

#[tokio::test]
async fn a_certificate_that_runs_out_is_told_once_and_read_again_when_it_is_replaced() {
    in_a_namespace("days-expired", async |client, namespace| {
        let Some(credentials) = Credentials::new(&light_kubeconfig(), namespace) else { return };
        credentials.certify("days-operator", Duration::from_secs(20));
        let mut operator = Operator::start(&credentials.kubeconfig(None), namespace, &[]);
        apply(client, namespace, &datacenter("dc")).await;
        is_made(client, namespace, "dc").await;
        let told = operator.says(0, "the API server rejects this client").await;
        assert!(told["message"].as_str().unwrap().contains("Replace it"), "{told}");
        // A renewal of the lease fails a few times more; nothing more is said of it.
        let refused = "messina_api_requests_total{verb=\"update\",resource=\"leases\",code=\"401\"}";
        holds("more refusals", async || {
            let (_, text) = operator.asked("/metrics").await;
            let count = text.lines().find_map(|line| line.strip_prefix(refused)?.trim().parse::<u32>().ok());
            if count > Some(2) { Ok(()) } else { Err(format!("{count:?}")) }
        })
        .await;
        assert_eq!(operator.warnings(0).len(), 1, "{:?}", operator.warnings(0));

        credentials.certify("days-operator", Duration::from_secs(3600));
        operator.says(0, "the API server accepts this client again").await;
        is_tended(client, namespace, "dc").await;
        few_words(&operator.warnings(0), 2);
        operator.goes_on();
    })
    .await;
}
