//! Tests of the testbed's etcd clusters: reads and writes, snapshots and their restoration, and injected faults.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
};
use messina_api::druid::v1alpha1::{Etcd, EtcdStatus};
use messina_e2e::clusters::{Started, cluster_named, output_of, refuses, succeeds, testbed};
use messina_testbed::{
    etcd::{self, EtcdCluster, Member, MemberProcess, Shape, keeper},
    harness::{self, Seen},
    progress::Steps,
};
use serde_json::Value;

use super::skip_if_unsuitable;

const LIMIT: Duration = Duration::from_secs(90);

#[tokio::test]
async fn etcd_of_one_member_survives_faults_and_is_restored_from_snapshots() {
    skip_if_unsuitable!();
    let started = Started::up("etcd-one", &[]);
    let (cluster, client) = (cluster_named("etcd-one"), started.client().await);
    etcd::prepare(&cluster, &client, &Steps::quiet()).await.unwrap();
    let keeping = tokio::spawn(keeper::keep(client.clone()));
    let namespace = harness::namespace(&client, "etcd").await.unwrap();
    let began = Instant::now();
    let shape = Shape { members: 1, tls: false };
    let main = EtcdCluster::deploy(&cluster, &client, &namespace, "main", shape).await.unwrap();
    eprintln!("one member after {:.1} s", began.elapsed().as_secs_f64());
    let status = status(&client, &namespace, "main").await;
    assert_eq!((status.replicas, status.ready_replicas, status.ready), (Some(1), Some(1), Some(true)));
    assert_eq!(members(&status), [("main-0", Some("Leader"), "Ready")]);

    eprintln!("keys can be written and read from this host and in the cluster");
    main.put("apples", "7").await.unwrap();
    assert_eq!(main.get("apples").await.unwrap().as_deref(), Some("7"));
    let command = format!("wget -q -O - http://main-client.{namespace}.svc:8080/healthz");
    assert_eq!(output_of(&client, &namespace, "visit", &command).await.trim(), r#"{"health":true}"#);

    eprintln!("snapshots are taken, and restored");
    let before = main.store().snapshots().unwrap().len();
    let member = main.member(0).await.unwrap();
    let full = full_snapshot(&member).await;
    assert_eq!(full["kind"], "Full");
    main.put("pears", "3").await.unwrap();
    assert_eq!(delta_snapshot(&member).await["kind"], "Incr");
    let kept = main.store().snapshots().unwrap();
    assert_eq!(kept.len(), before + 2, "{kept:?}");
    assert!(kept.iter().any(|one| one.full && full["snapName"] == one.name.as_str()), "{kept:?} has no {full}");
    let expected: BTreeMap<String, String> = [("apples", "7"), ("pears", "3")].map(owned).into();
    assert_eq!(main.all().await.unwrap(), expected);
    main.put("plums", "not in a snapshot").await.unwrap();
    assert_eq!(main.store().restore().await.unwrap(), expected);

    eprintln!("without its store the sidecar takes no snapshot");
    main.store().take_away().unwrap();
    let refused = member.sidecar("POST", "/snapshot/full", LIMIT).await.unwrap();
    assert_eq!(refused.code, 500, "{refused:?}");
    main.store().bring_back().unwrap();
    main.await_snapshots().await.unwrap();
    assert_eq!(main.store().restore().await.unwrap(), main.all().await.unwrap());

    eprintln!("a stopped sidecar does not answer");
    main.pause(0, MemberProcess::Sidecar).await.unwrap();
    member.sidecar("GET", "/healthz", Duration::from_secs(2)).await.unwrap_err();
    main.resume(0, MemberProcess::Sidecar).await.unwrap();
    assert_eq!(member.sidecar("GET", "/healthz", LIMIT).await.unwrap().code, 200);

    eprintln!("a killed etcd has all keys after its restart");
    main.kill(0, MemberProcess::Etcd).await.unwrap();
    let value = harness::eventually("etcd to answer again", LIMIT, || async {
        Ok(match main.get("plums").await {
            Ok(value) => Seen::Ready(value),
            Err(error) => Seen::NotYet(error.to_string()),
        })
    });
    assert_eq!(value.await.unwrap().as_deref(), Some("not in a snapshot"));
    main.await_snapshots().await.unwrap();

    eprintln!("all objects are deleted with the Etcd");
    let etcds: Api<Etcd> = Api::namespaced(client.clone(), &namespace);
    etcds.delete("main", &DeleteParams::default()).await.unwrap();
    harness::eventually("pods and claims to be deleted", LIMIT, || async {
        let params = ListParams::default().labels("app.kubernetes.io/part-of=main");
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
        let left = pods.list(&params).await.unwrap().items.len() + claims.list(&params).await.unwrap().items.len();
        Ok(if left == 0 { Seen::Ready(()) } else { Seen::NotYet(format!("{left} are left")) })
    })
    .await
    .unwrap();
    assert!(!keeping.is_finished(), "the keeper has ended");
    keeping.abort();
    started.down();
}

#[tokio::test]
async fn etcd_of_three_members_with_tls_is_served_by_every_member() {
    skip_if_unsuitable!();
    let arguments = ["--with-etcd", "--etcd-members", "3", "--etcd-tls"];
    let began = Instant::now();
    let started = Started::up("etcd-three", &arguments);
    eprintln!("up after {:.1} s", began.elapsed().as_secs_f64());
    succeeds(&mut testbed(&[&["up", "--name", "etcd-three"], arguments.as_slice()].concat()));
    refuses(
        &mut testbed(&["up", "--name", "etcd-three", "--with-etcd"]),
        &["is running already, as 1 node(s), an etcd cluster of 3 member(s) with TLS"],
    );
    let (cluster, client) = (cluster_named("etcd-three"), started.client().await);
    let main = EtcdCluster::find(&cluster, &client, etcd::NAMESPACE, etcd::NAME).await.unwrap();
    assert_eq!(main.shape(), Shape { members: 3, tls: true });
    let at_first = status(&client, etcd::NAMESPACE, etcd::NAME).await;
    assert_eq!((at_first.replicas, at_first.ready_replicas, at_first.ready), (Some(3), Some(3), Some(true)));

    eprintln!("members have DNS names in the cluster");
    for number in 0..3 {
        let command = format!("wget -q -O - http://etcd-main-{number}.etcd-main-peer.default.svc:2381/readyz");
        let output = output_of(&client, "default", &format!("visit-{number}"), &command).await;
        assert_eq!(output.trim(), "ok", "member {number}");
    }

    eprintln!("every member has all keys, and every sidecar takes a snapshot");
    for number in 0..3 {
        main.put(&format!("key-{number}"), "value").await.unwrap();
        let member = main.member(number).await.unwrap();
        assert_eq!(member.get(&format!("key-{number}")).await.unwrap().as_deref(), Some("value"));
        assert_eq!(full_snapshot(&member).await["kind"], "Full", "asked of {}", member.name);
        assert_eq!(main.store().restore().await.unwrap(), main.all().await.unwrap(), "by {}", member.name);
    }

    eprintln!("the leadership moves to another member and its sidecar");
    let old = main.leading().await.unwrap();
    let new = (old + 1) % 3;
    main.move_leadership(new).await.unwrap();
    let leader = format!("etcd-main-{new}");
    await_status(&client, etcd::NAMESPACE, etcd::NAME, "the status to report the new leader", |status| {
        members(status).iter().any(|(name, role, _)| *name == leader && *role == Some("Leader"))
    })
    .await;
    main.await_snapshots().await.unwrap();
    main.put("after", "the move").await.unwrap();
    assert_eq!(delta_snapshot(&main.member(old).await.unwrap()).await["kind"], "Incr");
    assert_eq!(main.store().restore().await.unwrap(), main.all().await.unwrap());

    eprintln!("a killed sidecar takes snapshots again");
    main.kill(new, MemberProcess::Sidecar).await.unwrap();
    main.await_snapshots().await.unwrap();

    eprintln!("the cluster is ready without one member of three");
    main.pause(old, MemberProcess::Etcd).await.unwrap();
    let two = await_status(&client, etcd::NAMESPACE, etcd::NAME, "a member to be reported as not ready", |status| {
        status.ready_replicas == Some(2)
    })
    .await;
    assert_eq!(conditions(&two)["Ready"], "True");
    assert_eq!(conditions(&two)["AllMembersReady"], "False");
    main.put("with two", "of three").await.unwrap();
    main.resume(old, MemberProcess::Etcd).await.unwrap();
    await_status(&client, etcd::NAMESPACE, etcd::NAME, "all members to be ready", |status| status.ready == Some(true))
        .await;
    assert_eq!(main.member(old).await.unwrap().get("with two").await.unwrap().as_deref(), Some("of three"));
    started.down();
}

/// Takes a full snapshot.
async fn full_snapshot(member: &Member) -> Value {
    let answer = member.sidecar("POST", "/snapshot/full", LIMIT).await.unwrap();
    assert_eq!(answer.code, 200, "{} answers {answer:?}", member.name);
    serde_json::from_str(&answer.text).unwrap()
}

/// Takes a delta snapshot, as soon as the sidecar has seen a change.
async fn delta_snapshot(member: &Member) -> Value {
    let taken = harness::eventually("a delta snapshot", LIMIT, || async {
        let answer = member.sidecar("POST", "/snapshot/delta", LIMIT).await?;
        assert_eq!(answer.code, 200, "{} answers {answer:?}", member.name);
        Ok(match serde_json::from_str(&answer.text).unwrap() {
            Value::Null => Seen::NotYet("nothing changed".into()),
            snapshot => Seen::Ready(snapshot),
        })
    });
    taken.await.unwrap()
}

fn owned((key, value): (&str, &str)) -> (String, String) {
    (key.to_owned(), value.to_owned())
}

async fn status(client: &Client, namespace: &str, name: &str) -> EtcdStatus {
    let etcds: Api<Etcd> = Api::namespaced(client.clone(), namespace);
    etcds.get(name).await.unwrap().status.unwrap()
}

async fn await_status(
    client: &Client,
    namespace: &str,
    name: &str,
    what: &str,
    is_reached: impl Fn(&EtcdStatus) -> bool,
) -> EtcdStatus {
    let etcds: Api<Etcd> = Api::namespaced(client.clone(), namespace);
    harness::until(etcds, name, what, LIMIT, |etcd| match etcd.and_then(|etcd| etcd.status) {
        Some(status) if is_reached(&status) => Seen::Ready(status),
        status => Seen::NotYet(format!("{status:?}")),
    })
    .await
    .unwrap()
}

/// Name, role and status of each member.
fn members(status: &EtcdStatus) -> Vec<(&str, Option<&str>, &str)> {
    let members = status.members.iter().flatten();
    let text = |field: &'static str| move || panic!("a member has no {field}");
    members
        .map(|member| {
            (
                member.name.as_deref().unwrap_or_else(text("name")),
                member.role.as_deref(),
                member.status.as_deref().unwrap_or_else(text("status")),
            )
        })
        .collect()
}

fn conditions(status: &EtcdStatus) -> BTreeMap<&str, &str> {
    let conditions = status.conditions.iter().flatten();
    conditions.filter_map(|one| Some((one.condition_type.as_deref()?, one.status.as_deref()?))).collect()
}
