//! Objects are created and deleted repeatedly, most etcd servers are hostile, and the API server is killed: the
//! operator's memory, file descriptors, threads and metrics do not grow. It runs as the process that users run.
//!
//! The operator connects to names of the cluster's DNS only. It runs in a mount namespace with an /etc/hosts of the
//! test, in which these names lead to servers of the test.
//!
//! Not covered: ScyllaDB nodes, and tasks that run as Jobs, because a light cluster runs no pods; and TLS, because the
//! servers' behaviour does not depend on it.

mod figures;
mod round;
mod servers;

use std::{
    fs,
    time::{Duration, Instant},
};

use messina_e2e::clusters::{Started, cluster_named};
use messina_testbed::{
    demo,
    etcd::definition,
    exec,
    harness::{self, Seen, eventually},
};

use crate::robustness::operator_process::Operator;
use figures::{Figures, status_field};
use round::{Kill, NAMES, Round, Setup};
use servers::{Behaviour, Servers};

/// The timeout of each wait, while nothing changes.
const LIMIT: Duration = Duration::from_secs(120);
const CLUSTER: &str = "hostile";
/// How much the memory may grow in the short form besides the usual percentage, in KiB. Two rounds are a short
/// warm-up: with the allocator of glibc, the memory came from 47 MiB after one round and 52 MiB after two to 55 MiB
/// after eight and 56 MiB after fourteen.
const MEMORY_SLACK: u64 = 2 << 10;
/// Another time for the churn, in seconds.
const SECONDS_VARIABLE: &str = "MESSINA_HOSTILE_SECONDS";

/// The size of the test.
struct Sizes {
    datacenters: usize,
    etcds: usize,
    /// A round that has begun when this is over is the last one before the operator is measured.
    warm_up: Duration,
    /// The same for the rounds after that.
    churn: Duration,
    /// How much larger the memory may be besides the usual percentage, in KiB.
    memory_slack: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes an hour: `make soak-hostile` runs it"]
async fn operator_does_not_grow_in_an_hour_of_hostile_churn() {
    operator_does_not_grow(Sizes {
        datacenters: 100,
        etcds: 50,
        warm_up: Duration::from_secs(60),
        churn: seconds(3600),
        memory_slack: 0,
    })
    .await;
}

fn seconds(otherwise: u64) -> Duration {
    let seconds = std::env::var(SECONDS_VARIABLE).ok().map(|seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds.unwrap_or(otherwise))
}

mod slow {
    use super::*;

    /// What `make soak-hostile` does for an hour.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[ignore = "it was not yet seen to pass among all other tests: `make soak-hostile` runs it, too"]
    async fn operator_does_not_grow_in_a_minute_of_hostile_churn() {
        operator_does_not_grow(Sizes {
            datacenters: 10,
            etcds: 8,
            warm_up: Duration::from_secs(20),
            churn: seconds(15),
            memory_slack: MEMORY_SLACK,
        })
        .await;
    }
}

async fn operator_does_not_grow(sizes: Sizes) {
    if std::env::var_os(harness::KUBECONFIG_VARIABLE).is_some() {
        eprintln!("skipped: an existing cluster was named, whose API server must not be killed");
        return;
    }
    let began = Instant::now();
    let started = Started::up(CLUSTER, &["--light"]);
    let client = started.client().await;
    demo::install_definitions(&client).await.unwrap();
    definition::install(&client).await.unwrap();
    let kubeconfig = cluster_named(CLUSTER).kubeconfig();
    let folder = kubeconfig.parent().unwrap().parent().unwrap().to_owned();
    let hosts = folder.join("operator-hosts");
    fs::write(&hosts, "127.0.0.1 localhost\n").unwrap();
    let mut operator = Operator::start_with_hosts(&kubeconfig, "default", &hosts, &["--cluster-domain=cluster.local"]);
    operator.await_metric("messina_leading", "1").await;
    let setup = Setup { client, servers: Servers::start().await, hosts, folder, sizes };
    let objects = Figures::settled(&operator).await.objects;
    println!("the operator leads after {:.1} s", began.elapsed().as_secs_f64());

    let mut rounds = 0;
    churn(&setup, &mut operator, setup.sizes.warm_up, &mut rounds).await;
    all_are_forgotten(&operator, objects).await;
    let before = Figures::settled(&operator).await;
    println!("the warm-up is over after {:.1} s", began.elapsed().as_secs_f64());
    churn(&setup, &mut operator, setup.sizes.churn, &mut rounds).await;
    all_are_forgotten(&operator, objects).await;
    let growth = growth(&setup, &operator, &before).await;
    print_work(&setup, &operator, rounds);

    Round::benign(&setup, rounds).await.run(Kill::Never).await;
    println!("a datacenter and tasks are handled after that; all in all {:.1} s", began.elapsed().as_secs_f64());
    operator.check_running();
    let logged = operator.logged(0);
    let panics =
        logged.iter().filter(|line| line["message"].as_str().is_some_and(|text| text.starts_with("internal error")));
    assert_eq!(panics.collect::<Vec<_>>(), Vec::<&serde_json::Value>::new(), "the operator panicked");
    assert!(growth.is_empty(), "after {rounds} rounds: {}", growth.join("; "));
}

/// Runs rounds until the time is over.
async fn churn(setup: &Setup, operator: &mut Operator, time: Duration, rounds: &mut usize) {
    let began = Instant::now();
    while began.elapsed() < time {
        let kill = if rounds.is_multiple_of(2) { Kill::AfterCreation } else { Kill::AfterDeletion };
        let laps = Round::new(setup, *rounds).await.run(kill).await;
        *rounds += 1;
        let memory = status_field(operator, "VmRSS:");
        println!("round {rounds}: {laps} s; resident memory: {memory} KiB");
        operator.check_running();
    }
}

/// Waits until nothing of a round is left in the caches of the operator, which has all kinds of objects that it
/// creates.
async fn all_are_forgotten(operator: &Operator, objects: u64) {
    let forgotten = eventually("the caches of the operator to be as in the beginning", LIMIT, async || {
        let now = Figures::of(operator).await.objects;
        Ok(if now == objects { Seen::Ready(()) } else { Seen::NotYet(format!("{now} objects, and not {objects}")) })
    });
    forgotten.await.unwrap();
}

/// The figures that have grown, after the operator had time to free resources.
async fn growth(setup: &Setup, operator: &Operator, before: &Figures) -> Vec<String> {
    let slack = setup.sizes.memory_slack;
    // Idle connections end by themselves after 90 s, idle threads sooner; if something stays, the last figures say
    // what.
    let waiting = eventually("the operator to be as large as after the warm-up", LIMIT, async || {
        let grown = Figures::of(operator).await.growth(before, slack, NAMES);
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(if grown.is_empty() { Seen::Ready(()) } else { Seen::NotYet(grown.join("; ")) })
    });
    let _the_figures_say_it = waiting.await;
    let after = Figures::of(operator).await;
    after.print(before, slack);
    after.growth(before, slack, NAMES)
}

fn print_work(setup: &Setup, operator: &Operator, rounds: usize) {
    let Sizes { datacenters, etcds, .. } = setup.sizes;
    println!("{rounds} rounds of {datacenters} datacenters and {etcds} Etcds; the API server was killed in each");
    let accepted = Behaviour::ALL.map(|behaviour| format!("{behaviour:?} {}", setup.servers.accepted(behaviour)));
    println!("connections of the operator: {}", accepted.join(", "));
    let processor = exec::cpu_time(operator.id().cast_signed()).as_secs_f64();
    println!(
        "the operator used {processor:.1} s of processor time and {} KiB at its peak",
        status_field(operator, "VmHWM:")
    );
}
