//! The nodes on whose answers about the ring a disk may be deleted.

use crate::plan;
use messina_api::names::{
    annotation::{RING_ANSWER, RING_QUESTION},
    label::REPLACE,
};
use messina_plan::{
    datacenter::{Cached, ObjectKind},
    node::answer::RingAnswer,
};

use crate::rounds::{check_like_fresh, round_without_operator, settle, settled_world};

const A: &str = "orders-dc-a-1";

/// A datacenter at the moment when the disk of a node that is replaced is about to be deleted.
fn about_to_delete_a_disk() -> Cached {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.lose_node("orders-dc-b-0");
    world.set_label("orders-dc-b-0", REPLACE, Some(""));
    for _ in 0..20 {
        for _ in 0..5 {
            round_without_operator(&mut world);
        }
        if deletes_a_disk(&world.stored) {
            return world.stored;
        }
        world.reconcile();
        while world.write() {}
    }
    panic!("the disk of a node that is replaced is never deleted");
}

fn deletes_a_disk(cached: &Cached) -> bool {
    plan(cached).deletions.iter().any(|deletion| deletion.kind == ObjectKind::PersistentVolumeClaim)
}

fn answer(cached: &Cached, name: &str) -> RingAnswer {
    let annotations = cached.services.get(name).unwrap().metadata.annotations.as_ref();
    annotations.and_then(|all| RingAnswer::parse(all.get(RING_ANSWER)?)).unwrap()
}

fn set_answer(cached: &mut Cached, name: &str, answer: &RingAnswer) {
    let service = cached.services.get_mut(name).unwrap();
    service.metadata.annotations.get_or_insert_default().insert(RING_ANSWER.into(), answer.text());
}

/// The disk is deleted for good, so only answers of pods that exist and are ready now count.
#[test]
fn a_disk_is_deleted_only_by_what_ready_pods_say_on_their_own_services() {
    let cached = about_to_delete_a_disk();
    type Case<'a> = (&'a str, fn(&mut Cached));
    let cases: [Case<'_>; 5] = [
        ("the pod is another one", |cached| {
            cached.pods.get_mut(A).unwrap().metadata.uid = Some("another".into());
        }),
        ("the pod is not ready", |cached| {
            let status = cached.pods.get_mut(A).unwrap().status.as_mut().unwrap();
            for condition in status.conditions.iter_mut().flatten() {
                condition.status = "False".into();
            }
        }),
        ("the pod is gone", |cached| _ = cached.pods.remove(A)),
        ("the answer is of another pod", |cached| {
            let other = answer(cached, "orders-dc-a-0");
            let answer = RingAnswer { pod_uid: other.pod_uid, ..answer(cached, A) };
            set_answer(cached, A, &answer);
        }),
        ("the answer is of another node", |cached| {
            let other = answer(cached, "orders-dc-a-0");
            set_answer(cached, A, &other);
        }),
    ];
    for (case, change) in cases {
        let mut cached = cached.clone();
        change(&mut cached);
        assert!(!deletes_a_disk(&cached), "{case}");
    }
}

/// Sidecars of earlier versions do not write the UID of their pod. Their answers to a question that is newer than their pods
/// come from these pods.
#[test]
fn nodes_with_sidecars_of_earlier_versions_are_asked_again_before_a_disk_is_deleted() {
    let mut cached = about_to_delete_a_disk();
    for name in ["orders-dc-a-0", A] {
        let answer = RingAnswer { pod_uid: None, ..answer(&cached, name) };
        set_answer(&mut cached, name, &answer);
    }
    assert!(deletes_a_disk(&cached), "the question is newer than the pods");
    let asked: u64 = answer(&cached, A).asked.parse().unwrap();
    cached.pods.get_mut(A).unwrap().metadata.resource_version = Some((asked + 1).to_string());
    assert!(!deletes_a_disk(&cached), "the pod may be newer than the answer");
    let questions = plan(&cached).changes;
    let questions: Vec<&str> =
        questions.iter().filter_map(|change| change.patch["metadata"]["annotations"][RING_QUESTION].as_str()).collect();
    let is_newer = |question: &&str| question.parse::<u64>().unwrap() > asked;
    assert!(questions.len() == 3 && questions.iter().all(is_newer), "{asked}, {questions:?}");
}

#[test]
fn nodes_with_sidecars_of_earlier_versions_leave_and_are_replaced() {
    let mut world = settled_world(&[("a", 2), ("b", 1)]);
    world.has_old_sidecars = true;
    world.lose_node("orders-dc-b-0");
    world.set_label("orders-dc-b-0", REPLACE, Some(""));
    assert!(settle(&mut world));
    assert_eq!(world.replaced, 1);
    world.set_racks(&[("a", 1), ("b", 1)]);
    assert!(settle(&mut world));
    assert_eq!(world.left, 1);
    check_like_fresh(&world, &[("a", 1), ("b", 1)]);
}
