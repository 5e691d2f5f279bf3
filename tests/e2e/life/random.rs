//! Changes by chance, most of them before the last one has come about.

use std::{
    env,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Pod, Service},
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams},
};
use messina_api::names::label;
use messina_e2e::observer::Observer;
use serde_json::json;

use super::{
    a_moment,
    damage::TOKEN,
    home::{Home, Phase, Wish},
    is_as,
    picture::{kinds, owned, picture},
};

/// Names another seed, for other changes.
const SEED: &str = "MESSINA_SEED";
const CHANGES: usize = 55;
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

/// Changes a datacenter again and again. In the end it is as one that never was anything else.
pub(super) async fn changes_end_well(home: &Home, observer: &Observer, mut wish: Wish) {
    let seed = seed();
    println!("random changes: {SEED}={seed}");
    let mut chance = Chance(seed);
    let phase = Phase::begins(home, &format!("{CHANGES} random changes"));
    let began = Instant::now();
    let kinds = kinds(home).await;
    let mut is_paused = false;
    let mut leaders = 0;
    for number in 1..=CHANGES {
        let what = match chance.below(20) {
            0..=6 => resize(&mut chance, &mut wish),
            7..=9 => change_racks(&mut chance, &mut wish),
            10..=13 => change_pods(&mut chance, &mut wish, number),
            14 | 15 => {
                is_paused = !is_paused;
                home.pause(is_paused.then_some("by chance")).await;
                format!("paused: {is_paused}")
            }
            16 if leaders < 2 => {
                leaders += 1;
                kill_leader(home).await
            }
            _ => damage(home, &kinds, &mut chance).await,
        };
        home.apply(&wish).await;
        println!("{:6.1} s {number:3}: {what}", began.elapsed().as_secs_f64());
        observer.is_content();
        if chance.below(12) == 0 && !is_paused {
            home.settled(&wish).await;
            println!("{:6.1} s      settled", began.elapsed().as_secs_f64());
        } else {
            tokio::time::sleep(Duration::from_millis(100 * chance.below(30) as u64)).await;
        }
    }
    home.pause(None).await;
    home.settled(&wish).await;
    phase.ends();
    observer.is_content();

    let phase = Phase::begins(home, "the same from the beginning");
    let fresh = Home::new(&home.client, home.cluster, "fresh").await;
    fresh.apply(&wish).await;
    fresh.settled(&wish).await;
    let expected = picture(&fresh, &kinds).await;
    is_as(home, &kinds, &expected).await;
    phase.ends();
    println!("{wish:?}");
}

fn resize(chance: &mut Chance, wish: &mut Wish) -> String {
    let racks: Vec<String> = wish.racks.keys().cloned().collect();
    let rack = chance.one_of(&racks).clone();
    let nodes = 3 - wish.racks[&rack];
    let what = format!("{nodes} nodes in rack {rack}");
    wish.racks.insert(rack, nodes);
    what
}

fn change_racks(chance: &mut Chance, wish: &mut Wish) -> String {
    let rack = (*chance.one_of(&RACKS)).to_owned();
    if !wish.racks.contains_key(&rack) {
        wish.racks.insert(rack.clone(), 1);
        format!("a rack {rack}")
    } else if wish.racks.len() > 2 {
        wish.racks.remove(&rack);
        format!("no rack {rack}")
    } else {
        resize(chance, wish)
    }
}

fn change_pods(chance: &mut Chance, wish: &mut Wish, number: usize) -> String {
    match chance.below(5) {
        0 => wish.redeployment = Some(format!("change {number}")),
        1 => wish.label = Some(format!("change-{number}")),
        2 => wish.annotation = Some(format!("change {number}")),
        3 => wish.memory = 200 + number as u32,
        _ => wish.log_level = if wish.log_level == "info" { "debug" } else { "info" },
    }
    format!("other pods: {wish:?}")
}

async fn kill_leader(home: &Home) -> String {
    let leases: Api<Lease> = Api::namespaced(home.client.clone(), "messina");
    let holder = leases.get("messina").await.unwrap().spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(home.client.clone(), "messina");
    // Nobody may lead just now.
    let deleted = pods.delete(&holder, &DeleteParams::default().grace_period(0)).await;
    format!("the leader {holder} is killed: {}", deleted.is_ok())
}

async fn damage(home: &Home, kinds: &[ApiResource], chance: &mut Chance) -> String {
    let mut all = owned(home, kinds).await;
    // What pods hold is not repaired while they run, and places are damaged where nothing else changes.
    all.retain(|one| {
        !["StatefulSet", "ServiceAccount"].contains(&one.resource.kind.as_str()) && one.object.name_any() != TOKEN
    });
    let one = chance.one_of(&all).clone();
    let name = one.object.name_any();
    if one.resource.kind == "Service" && chance.below(2) == 0 {
        let wrong = json!({"metadata": {"labels": {label::DECOMMISSIONED: "true"}}});
        let api = home.api::<Service>();
        // It may be gone by now.
        let damaged = api.patch(&name, &PatchParams::default(), &Patch::Merge(wrong)).await;
        return format!("Service {name} says that its node has left: {}", damaged.is_ok());
    }
    let api: Api<DynamicObject> = Api::namespaced_with(home.client.clone(), &home.namespace, &one.resource);
    let deleted = api.delete(&name, &DeleteParams::background()).await;
    if chance.below(4) == 0 {
        a_moment().await;
    }
    format!("{} is deleted: {}", one.key(), deleted.is_ok())
}
