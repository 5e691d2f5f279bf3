//! Random changes, most of them before the previous one is complete.

use std::{
    env,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use messina_api::names::label;
use messina_e2e::{
    datacenter::{NODE_PODS, TestDatacenter},
    observer::Observer,
};
use serde_json::json;

use super::{
    FIRST, await_snapshot,
    damage::TOKEN,
    desired::Desired,
    pause,
    phase::Phase,
    snapshot::{kinds, owned, snapshot},
};

/// The variable with another seed, for other changes.
const SEED: &str = "MESSINA_SEED";
const RACKS: [&str; 4] = ["a", "b", "c", "d"];

/// A pseudorandom number generator, the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

fn seed() -> u64 {
    env::var(SEED).map_or(1, |seed| seed.parse().expect("a number"))
}

/// Changes a datacenter this number of times. Finally its objects are those of a new one with the same specification.
pub(super) async fn run_random_changes(
    datacenter: &TestDatacenter,
    observer: &Observer,
    mut desired: Desired,
    changes: usize,
) {
    let seed = seed();
    println!("random changes: {SEED}={seed}");
    let mut random = Random(seed);
    let phase = Phase::begin(datacenter, &format!("{changes} random changes"));
    let began = Instant::now();
    let kinds = kinds(datacenter).await;
    let mut is_paused = false;
    let mut leaders = 0;
    // No disk is lost here, so rows with one replica must not be lost, either. There are two nodes at least.
    ["rf1", "rf2"].iter().zip(1..).for_each(|(keyspace, factor)| datacenter.create_keyspace(FIRST, keyspace, factor));
    for number in 1..=changes {
        let what = match random.below(20) {
            0..=6 => resize(&mut random, &mut desired),
            7..=9 => change_racks(&mut random, &mut desired),
            10..=13 => change_pods(&mut random, &mut desired, number),
            14 | 15 => {
                is_paused = !is_paused;
                datacenter.pause(is_paused.then_some("at random")).await;
                format!("paused: {is_paused}")
            }
            16 if leaders < 2 => {
                leaders += 1;
                kill_leader(datacenter).await
            }
            _ => damage(datacenter, &kinds, &mut random).await,
        };
        datacenter.apply(&desired.manifest()).await;
        println!("{:6.1} s {number:3}: {what}", began.elapsed().as_secs_f64());
        observer.check_no_violations();
        write_rows(datacenter, observer, number).await;
        if random.below(12) == 0 && !is_paused {
            datacenter.settled_and_cleaned_up(desired.nodes()).await;
            println!("{:6.1} s      settled", began.elapsed().as_secs_f64());
        } else {
            tokio::time::sleep(Duration::from_millis(100 * random.below(30) as u64)).await;
        }
    }
    datacenter.pause(None).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    phase.end();
    observer.rows_are_replicated().await;

    let phase = Phase::begin(datacenter, "a new datacenter with the same specification");
    let fresh = TestDatacenter::create_on(&datacenter.client, &datacenter.cluster, "fresh", &[]).await;
    fresh.apply(&desired.manifest()).await;
    fresh.settled_and_cleaned_up(desired.nodes()).await;
    let expected = snapshot(&fresh, &kinds).await;
    await_snapshot(datacenter, &kinds, &expected).await;
    phase.end();
    fresh.remove().await;
    println!("{desired:?}");
}

/// Writes rows through a ready node. Rows that are not acknowledged, because a node is down, do not count.
async fn write_rows(datacenter: &TestDatacenter, observer: &Observer, number: usize) {
    let pods = datacenter.api::<Pod>().list(&ListParams::default().labels(NODE_PODS)).await.unwrap();
    let is_ready = |pod: &&Pod| {
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        pod.metadata.deletion_timestamp.is_none() && conditions.any(|one| one.type_ == "Ready" && one.status == "True")
    };
    let Some(pod) = pods.iter().find(is_ready) else { return };
    for keyspace in ["rf1", "rf2"] {
        let written = datacenter.write_rows(observer, &pod.name_any(), keyspace, &format!("change-{number}"));
        if let Err(error) = written {
            println!("                {keyspace}: {error}");
        }
    }
}

fn resize(random: &mut Random, desired: &mut Desired) -> String {
    let racks: Vec<String> = desired.racks.keys().cloned().collect();
    let rack = random.one_of(&racks).clone();
    let nodes = 3 - desired.racks[&rack];
    let what = format!("{nodes} nodes in rack {rack}");
    desired.racks.insert(rack, nodes);
    what
}

fn change_racks(random: &mut Random, desired: &mut Desired) -> String {
    let rack = (*random.one_of(&RACKS)).to_owned();
    if !desired.racks.contains_key(&rack) {
        desired.racks.insert(rack.clone(), 1);
        format!("a rack {rack}")
    } else if desired.racks.len() > 2 {
        desired.racks.remove(&rack);
        format!("no rack {rack}")
    } else {
        resize(random, desired)
    }
}

fn change_pods(random: &mut Random, desired: &mut Desired, number: usize) -> String {
    match random.below(5) {
        0 => desired.redeployment = Some(format!("change {number}")),
        1 => desired.label = Some(format!("change-{number}")),
        2 => desired.annotation = Some(format!("change {number}")),
        3 => desired.memory = 200 + number as u32,
        _ => desired.log_level = if desired.log_level == "info" { "debug" } else { "info" },
    }
    format!("other pods: {desired:?}")
}

async fn kill_leader(datacenter: &TestDatacenter) -> String {
    let Some(leader) = datacenter.leader().await else { return "no replica of the operator leads".into() };
    // The pod may be gone by now.
    let killed = datacenter.kill(&leader).await;
    format!("the leader {leader} is killed: {}", killed.is_ok())
}

async fn damage(datacenter: &TestDatacenter, kinds: &[ApiResource], random: &mut Random) -> String {
    let mut all = owned(datacenter, kinds).await;
    // What pods use is not repaired before they restart, and `damage.rs` damages StatefulSets.
    all.retain(|one| {
        !["StatefulSet", "ServiceAccount"].contains(&one.resource.kind.as_str()) && one.object.name_any() != TOKEN
    });
    let one = random.one_of(&all).clone();
    let name = one.object.name_any();
    if one.resource.kind == "Service" && random.below(2) == 0 {
        let wrong = json!({"metadata": {"labels": {label::DECOMMISSIONED: "true"}}});
        let api = datacenter.api::<Service>();
        // It may be gone by now.
        let damaged = api.patch(&name, &PatchParams::default(), &Patch::Merge(wrong)).await;
        return format!("Service {name} says that its node has left: {}", damaged.is_ok());
    }
    let api: Api<DynamicObject> = Api::namespaced_with(datacenter.client.clone(), &datacenter.namespace, &one.resource);
    let deleted = api.delete(&name, &DeleteParams::background()).await;
    if random.below(4) == 0 {
        pause().await;
    }
    format!("{} is deleted: {}", one.key(), deleted.is_ok())
}
