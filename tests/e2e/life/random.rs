//! Changes by chance, most of them before the last one has come about.

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
    FIRST, a_moment,
    damage::TOKEN,
    desired::Desired,
    is_as,
    phase::Phase,
    picture::{kinds, owned, picture},
};

/// Names another seed, for other changes.
const SEED: &str = "MESSINA_SEED";
const RACKS: [&str; 4] = ["a", "b", "c", "d"];

/// Chance, the same for the same seed.
struct Chance(u64);

impl Chance {
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

/// Changes a datacenter so many times. In the end it is as one that never was anything else.
pub(super) async fn changes_end_well(
    datacenter: &TestDatacenter,
    observer: &Observer,
    mut desired: Desired,
    changes: usize,
) {
    let seed = seed();
    println!("random changes: {SEED}={seed}");
    let mut chance = Chance(seed);
    let phase = Phase::begin(datacenter, &format!("{changes} random changes"));
    let began = Instant::now();
    let kinds = kinds(datacenter).await;
    let mut is_paused = false;
    let mut leaders = 0;
    // No disk is lost here, so that rows with one replica have to stay, too. There are two nodes at least.
    ["rf1", "rf2"].iter().zip(1..).for_each(|(keyspace, factor)| datacenter.create_keyspace(FIRST, keyspace, factor));
    for number in 1..=changes {
        let what = match chance.below(20) {
            0..=6 => resize(&mut chance, &mut desired),
            7..=9 => change_racks(&mut chance, &mut desired),
            10..=13 => change_pods(&mut chance, &mut desired, number),
            14 | 15 => {
                is_paused = !is_paused;
                datacenter.pause(is_paused.then_some("by chance")).await;
                format!("paused: {is_paused}")
            }
            16 if leaders < 2 => {
                leaders += 1;
                kill_leader(datacenter).await
            }
            _ => damage(datacenter, &kinds, &mut chance).await,
        };
        datacenter.apply(&desired.manifest()).await;
        println!("{:6.1} s {number:3}: {what}", began.elapsed().as_secs_f64());
        observer.is_content();
        write_rows(datacenter, observer, number).await;
        if chance.below(12) == 0 && !is_paused {
            datacenter.settled_and_cleaned_up(desired.nodes()).await;
            println!("{:6.1} s      settled", began.elapsed().as_secs_f64());
        } else {
            tokio::time::sleep(Duration::from_millis(100 * chance.below(30) as u64)).await;
        }
    }
    datacenter.pause(None).await;
    datacenter.settled_and_cleaned_up(desired.nodes()).await;
    phase.end();
    observer.rows_are_replicated().await;

    let phase = Phase::begin(datacenter, "the same from the beginning");
    let fresh = TestDatacenter::create_on(&datacenter.client, &datacenter.cluster, "fresh", &[]).await;
    fresh.apply(&desired.manifest()).await;
    fresh.settled_and_cleaned_up(desired.nodes()).await;
    let expected = picture(&fresh, &kinds).await;
    is_as(datacenter, &kinds, &expected).await;
    phase.end();
    fresh.remove().await;
    println!("{desired:?}");
}

/// Writes rows through a node that is ready. Those that are not acknowledged, because a node is down, do not count.
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

fn resize(chance: &mut Chance, desired: &mut Desired) -> String {
    let racks: Vec<String> = desired.racks.keys().cloned().collect();
    let rack = chance.one_of(&racks).clone();
    let nodes = 3 - desired.racks[&rack];
    let what = format!("{nodes} nodes in rack {rack}");
    desired.racks.insert(rack, nodes);
    what
}

fn change_racks(chance: &mut Chance, desired: &mut Desired) -> String {
    let rack = (*chance.one_of(&RACKS)).to_owned();
    if !desired.racks.contains_key(&rack) {
        desired.racks.insert(rack.clone(), 1);
        format!("a rack {rack}")
    } else if desired.racks.len() > 2 {
        desired.racks.remove(&rack);
        format!("no rack {rack}")
    } else {
        resize(chance, desired)
    }
}

fn change_pods(chance: &mut Chance, desired: &mut Desired, number: usize) -> String {
    match chance.below(5) {
        0 => desired.redeployment = Some(format!("change {number}")),
        1 => desired.label = Some(format!("change-{number}")),
        2 => desired.annotation = Some(format!("change {number}")),
        3 => desired.memory = 200 + number as u32,
        _ => desired.log_level = if desired.log_level == "info" { "debug" } else { "info" },
    }
    format!("other pods: {desired:?}")
}

async fn kill_leader(datacenter: &TestDatacenter) -> String {
    let Some(leader) = datacenter.leader().await else { return "no copy of the operator leads".into() };
    // The pod may be gone by now.
    let killed = datacenter.kill(&leader).await;
    format!("the leader {leader} is killed: {}", killed.is_ok())
}

async fn damage(datacenter: &TestDatacenter, kinds: &[ApiResource], chance: &mut Chance) -> String {
    let mut all = owned(datacenter, kinds).await;
    // What pods hold is not repaired while they run, and places are damaged where nothing else changes.
    all.retain(|one| {
        !["StatefulSet", "ServiceAccount"].contains(&one.resource.kind.as_str()) && one.object.name_any() != TOKEN
    });
    let one = chance.one_of(&all).clone();
    let name = one.object.name_any();
    if one.resource.kind == "Service" && chance.below(2) == 0 {
        let wrong = json!({"metadata": {"labels": {label::DECOMMISSIONED: "true"}}});
        let api = datacenter.api::<Service>();
        // It may be gone by now.
        let damaged = api.patch(&name, &PatchParams::default(), &Patch::Merge(wrong)).await;
        return format!("Service {name} says that its node has left: {}", damaged.is_ok());
    }
    let api: Api<DynamicObject> = Api::namespaced_with(datacenter.client.clone(), &datacenter.namespace, &one.resource);
    let deleted = api.delete(&name, &DeleteParams::background()).await;
    if chance.below(4) == 0 {
        a_moment().await;
    }
    format!("{} is deleted: {}", one.key(), deleted.is_ok())
}
