//! Tasks on a real etcd cluster of three members with TLS, while a client writes.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use messina_api::druid::v1alpha1::{Etcd, TaskState};
use messina_clients::Resolver;
use messina_e2e::{
    clusters::{Started, cluster_named},
    operator::Operator,
};
use messina_testbed::{
    deadline::Moment,
    etcd::{self, EtcdCluster, Member, MemberProcess},
    faults::{Fault, Faults},
    harness::{Seen, eventually, until},
};
use serde_json::json;

use super::{LONG, api, codes, create, description, done, finished, is_unsuitable, succeeds, task, tasks};

const NAMESPACE: &str = etcd::NAMESPACE;
const ETCD: &str = etcd::NAME;

/// A resolver that maps the name of a member to its address, and all other names to the first member.
async fn reach(etcd: &EtcdCluster) -> Resolver {
    let mut addresses: Vec<(String, IpAddr)> = Vec::new();
    for number in 0..3 {
        let member = etcd.member(number).await.unwrap();
        addresses.push((member.name.clone(), member.address.parse().unwrap()));
    }
    Resolver::with_lookup(move |host, port| {
        let named = addresses.iter().find(|(name, _)| host.split('.').next() == Some(name));
        let (_, address) = named.or(addresses.first())?;
        Some(SocketAddr::new(*address, port))
    })
}

/// A client that writes all the time, and counts failed writes.
struct Writer {
    is_over: Arc<AtomicBool>,
    written: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

/// The number of concurrent writes.
const AT_ONCE: usize = 4;

impl Writer {
    async fn start(etcd: &EtcdCluster) -> Self {
        let members = [etcd.member(0).await.unwrap(), etcd.member(1).await.unwrap(), etcd.member(2).await.unwrap()];
        let (is_over, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let writing = |_| tokio::spawn(write(members.clone(), Arc::clone(&is_over), Arc::clone(&written)));
        let tasks = (0..AT_ONCE).map(writing).collect();
        Self { is_over, written, tasks }
    }

    async fn ends(self) -> usize {
        self.is_over.store(true, Ordering::SeqCst);
        for task in self.tasks {
            assert_eq!(task.await.unwrap(), [] as [String; 0], "no write failed");
        }
        self.written.load(Ordering::SeqCst)
    }
}

async fn write(members: [Member; 3], is_over: Arc<AtomicBool>, written: Arc<AtomicUsize>) -> Vec<String> {
    let mut failures = Vec::new();
    let value = "x".repeat(10_000);
    while !is_over.load(Ordering::SeqCst) {
        let number = written.fetch_add(1, Ordering::SeqCst);
        // As clients of etcd do: if a member fails, the next one is tried.
        let mut outcome = Ok(());
        for attempt in 0..3 {
            outcome = members[(number + attempt) % 3].put(&format!("load-{}", number % 500), &value).await;
            if outcome.is_ok() {
                break;
            }
        }
        failures.extend(outcome.err().map(|error| error.to_string()));
    }
    failures
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn maintenance_of_three_members_does_not_interrupt_writes() {
    if is_unsuitable() {
        return;
    }
    let cluster = Started::up("etcd-trio", &["--with-etcd", "--etcd-members", "3", "--etcd-tls"]);
    let client = cluster.client().await;
    messina_testbed::demo::install_definitions(&client).await.unwrap();
    let own = cluster_named("etcd-trio");
    let etcd = EtcdCluster::find(&own, &client, NAMESPACE, ETCD).await.unwrap();
    let faults = Faults::named("messina-trio", |_| Fault::None);
    let _operator = Operator::start(&own.kubeconfig(), NAMESPACE, &faults, tasks(reach(&etcd).await)).await;

    let writer = Writer::start(&etcd).await;
    eventually("something to be written", LONG, async || {
        let written = writer.written.load(Ordering::SeqCst);
        Ok(if written > 1000 { Seen::Ready(()) } else { Seen::NotYet(format!("{written} writes")) })
    })
    .await
    .unwrap();
    let began = Instant::now();
    let status = succeeds(&client, NAMESPACE, &task("compact", "Compact", ETCD, json!({"retainRevisions": 10}))).await;
    println!(
        "compacted to {} in {:.1} s: {}",
        status.compacted_revision.unwrap(),
        began.elapsed().as_secs_f64(),
        description(&status)
    );
    let began = Instant::now();
    let status = succeeds(&client, NAMESPACE, &task("defragment", "Defragment", ETCD, json!({}))).await;
    println!("defragmented in {:.1} s: {}", began.elapsed().as_secs_f64(), description(&status));
    let members = status.members.clone().unwrap();
    let leader = etcd.leader().await.unwrap().name;
    assert_eq!(members.len(), 3);
    assert_eq!(members[2].name.as_deref(), Some(leader.as_str()), "the leader is last: {members:?}");
    assert_eq!(status.progress.clone().unwrap().done, Some(3));
    // The leader changes in the middle; no member is defragmented twice.
    create(&client, NAMESPACE, &task("moved", "Defragment", ETCD, json!({}))).await;
    until(api(&client, NAMESPACE), "moved", "the first member to be done", LONG, |seen| {
        let status = seen.and_then(|task| task.status).unwrap_or_default();
        if status.members.is_some() { Seen::Ready(()) } else { Seen::NotYet(json!(status).to_string()) }
    })
    .await
    .unwrap();
    let to = (etcd.leading().await.unwrap() + 1) % 3;
    etcd.move_leadership(to).await.unwrap();
    let status = finished(&client, NAMESPACE, "moved").await;
    assert_eq!(
        (status.state.clone(), status.members.clone().unwrap().len()),
        (Some(TaskState::Succeeded), 3),
        "{}",
        json!(status)
    );
    let taken =
        succeeds(&client, NAMESPACE, &task("full", "OnDemandSnapshot", ETCD, json!({}))).await.snapshot.unwrap();
    assert!(etcd.store().snapshots().unwrap().iter().any(|one| Some(&one.name) == taken.name.as_ref()));
    println!("{} writes meanwhile, none failed", writer.ends().await);

    // While a member is unhealthy, no member is defragmented.
    etcd.pause(2, MemberProcess::Etcd).await.unwrap();
    create(&client, NAMESPACE, &task("ill", "Defragment", ETCD, json!({}))).await;
    until(api(&client, NAMESPACE), "ill", "the task to name the unhealthy member", LONG, |seen| {
        let status = seen.and_then(|task| task.status).unwrap_or_default();
        let is_told = codes(&status).contains(&"ERR_MEMBER_NOT_HEALTHY");
        if is_told && status.members.is_none() { Seen::Ready(()) } else { Seen::NotYet(json!(status).to_string()) }
    })
    .await
    .unwrap();
    etcd.resume(2, MemberProcess::Etcd).await.unwrap();
    assert_eq!(finished(&client, NAMESPACE, "ill").await.state, Some(TaskState::Succeeded));

    // The operator does not talk to a server whose certificate is not valid.
    let stranger = rcgen::generate_simple_self_signed(vec!["stranger".into()]).unwrap().cert.pem();
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": "stranger"}, "stringData": {"bundle.crt": stranger}}))
            .unwrap();
    Api::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &secret).await.unwrap();
    let reference = json!({"tlsCASecretRef": {"name": "stranger"}});
    let patch = Patch::Merge(json!({"spec": {"backup": {"tls": reference}, "etcd": {"clientUrlTls": reference}}}));
    Api::<Etcd>::namespaced(client.clone(), NAMESPACE).patch(ETCD, &PatchParams::default(), &patch).await.unwrap();
    for (name, task_type, code) in [
        ("distrusted", "OnDemandSnapshot", "ERR_SNAPSHOT_CERTIFICATE_NOT_TRUSTED"),
        ("distrusting", "Compact", "ERR_ETCD_CERTIFICATE_NOT_TRUSTED"),
    ] {
        let began = Moment::now();
        let status = done(&client, NAMESPACE, &task(name, task_type, ETCD, json!({}))).await;
        assert_eq!(
            (status.state.clone(), codes(&status).last()),
            (Some(TaskState::Failed), Some(&code)),
            "{}",
            json!(status)
        );
        assert!(began.usable() < Duration::from_secs(20), "it is not tried again");
    }
    for name in ["compact", "defragment", "moved", "full", "ill", "distrusted", "distrusting"] {
        api(&client, NAMESPACE).delete(name, &DeleteParams::default()).await.unwrap();
    }
    cluster.down();
}
