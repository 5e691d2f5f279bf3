//! Cleanup Jobs: the peer's cases, and the lifecycle of a Job.

use crate::{plan, with_name};
use k8s_openapi::api::{
    batch::v1::{Job, JobCondition, JobStatus},
    core::v1::Pod,
};
use messina_api::names::{
    annotation::{CURRENT_TOKEN_RING_HASH, LAST_CLEANED_UP_TOKEN_RING_HASH},
    label,
};
use messina_plan::datacenter::{Cached, Component, Note, Plan, Untouched};
use serde_json::{Value, json};

use crate::{
    cached,
    cases::{Outcome, as_in_case, reliable, run, same},
    datacenter_with, rolled_out,
};

/// Rolls out all racks.
fn roll_out(cached: &mut Cached) {
    for _ in 0..cached.datacenter.racks.len() {
        for one in plan(cached).objects.stateful_sets {
            cached.stateful_sets.insert(rolled_out(one));
        }
    }
}

fn notes(notes: &[Note]) -> Vec<&'static str> {
    notes.iter().filter(|note| note.component == Component::Job).map(|note| note.reason.as_str()).collect()
}

/// A case is about a datacenter with an agent, whose racks are rolled out. Our Job names the program, and has one more label,
/// by which the operator finds it; pods of failed attempts are kept for inspection.
#[test]
fn jobs_are_as_those_of_the_peer() {
    run("datacenter/cleanup-jobs", |case| {
        let mut object = case["scyllaDBDatacenter"].clone();
        object["spec"]["scyllaDBManagerAgent"] = json!({"image": "agent:3.12.0"});
        let options = &mut object["spec"]["exposeOptions"];
        if let Some(broadcast) = options["broadcastOptions"].as_object_mut() {
            // An empty text means that the value is missing.
            broadcast.remove("nodes");
            if broadcast["clients"]["type"] == "ServiceLoadBalancerIngress" {
                options["nodeService"] = json!({"type": "LoadBalancer"});
            }
        }
        let mut cached = cached(reliable(&object));
        roll_out(&mut cached);
        for (name, service) in case["services"].as_object().unwrap() {
            cached.services.insert(with_name(name, serde_json::from_value(service.clone()).unwrap()));
        }
        for pod in case["pods"].as_array().into_iter().flatten() {
            let mut pod = pod.clone();
            pod["spec"] = Value::Null;
            let pod: Pod = serde_json::from_value(pod).unwrap();
            cached.pods.insert(pod);
        }
        let plan = plan(&cached);
        let mut expected = case["expectedJobs"].as_array().cloned().unwrap_or_default();
        for job in &mut expected {
            job["status"] = Value::Null;
            job["metadata"]["labels"][label::MANAGED_BY] = label::value::OPERATOR.into();
            job["spec"]["template"]["spec"]["containers"][0]["command"] = json!(["/usr/bin/messina"]);
            job["spec"]["template"]["spec"]["restartPolicy"] = "Never".into();
        }
        let jobs: Vec<Value> =
            plan.objects.cleanup_jobs.iter().map(|job| as_in_case(json!(job), &expected[0])).collect();
        let conditions = case["expectedConditions"].as_array().cloned().unwrap_or_default();
        let reasons: Vec<&str> = conditions.iter().map(|one| one["reason"].as_str().unwrap()).collect();
        // The peer reports that it waits for a Job once it was written, which is not a part of the case.
        let expected_reasons = if expected.is_empty() { reasons } else { vec!["CleaningUp"] };
        if notes(&plan.progressing) != expected_reasons {
            return Outcome::Failed(format!("  expected {expected_reasons:?}, got {:?}", plan.progressing));
        }
        for condition in &conditions {
            assert_eq!(condition["type"], "JobControllerProgressing");
        }
        same(&json!(expected), &json!(jobs))
    });
}

const JOB: &str = "cleanup-orders-dc-a-0";

/// Two racks of one node each; the first is not cleaned up for its current ring.
fn changed_ring() -> Cached {
    let mut cached = cached(datacenter_with(&[("a", 1), ("b", 1)], json!({})));
    roll_out(&mut cached);
    for mut service in plan(&cached).objects.member_services {
        let name = service.metadata.name.clone().unwrap();
        let annotations = service.metadata.annotations.get_or_insert_default();
        annotations.insert(CURRENT_TOKEN_RING_HASH.into(), "new".into());
        let cleaned_up = if name == "orders-dc-a-0" { "old" } else { "new" };
        annotations.insert(LAST_CLEANED_UP_TOKEN_RING_HASH.into(), cleaned_up.into());
        service.spec.as_mut().unwrap().cluster_ip = Some("10.0.0.1".into());
        cached.services.insert(service);
    }
    cached
}

/// Stores the planned Job.
fn with_job(mut cached: Cached) -> Cached {
    for job in plan(&cached).objects.cleanup_jobs {
        cached.jobs.insert(job);
    }
    assert_eq!(cached.jobs.keys().collect::<Vec<_>>(), [JOB]);
    cached
}

/// Writes the ring that the node's sidecar reports, if any.
fn see_ring(cached: &mut Cached, node: &str, ring: Option<&str>) {
    let annotations = cached.services.get_mut(node).unwrap().metadata.annotations.as_mut().unwrap();
    match ring {
        Some(ring) => _ = annotations.insert(CURRENT_TOKEN_RING_HASH.into(), ring.into()),
        None => _ = annotations.remove(CURRENT_TOKEN_RING_HASH),
    }
}

fn set_status(cached: &mut Cached, status: JobStatus) {
    cached.jobs.get_mut(JOB).unwrap().status = Some(status);
}

fn condition(name: &str, message: &str) -> JobCondition {
    JobCondition { type_: name.into(), status: "True".into(), message: Some(message.into()), ..JobCondition::default() }
}

fn failed() -> JobStatus {
    JobStatus { conditions: Some(vec![condition("Failed", "it was tried too often")]), ..JobStatus::default() }
}

/// Returns whether the Job stays, is deleted, or is created.
fn job_decision(plan: &Plan) -> &'static str {
    let is_left = plan.untouched.contains(&Untouched { kind: "Job", name: JOB.into() });
    let is_made = plan.objects.cleanup_jobs.iter().any(|job: &Job| job.metadata.name.as_deref() == Some(JOB));
    match (is_left, is_made) {
        (true, false) => "stays",
        (false, true) => "is made",
        (false, false) => "goes",
        (true, true) => "both",
    }
}

#[test]
fn cleanup_job_is_created_awaited_recorded_and_deleted() {
    let mut cached = changed_ring();
    let first = plan(&cached);
    assert_eq!((job_decision(&first), notes(&first.progressing)), ("is made", vec!["CleaningUp"]));
    assert_eq!(first.objects.cleanup_jobs.len(), 1, "the other node has been cleaned up for this ring");

    cached = with_job(cached);
    let running = plan(&cached);
    assert_eq!((job_decision(&running), notes(&running.progressing)), ("stays", vec!["WaitingForJobCompletion"]));

    set_status(&mut cached, serde_json::from_value(json!({"completionTime": "2026-01-01T00:00:00Z"})).unwrap());
    let done = plan(&cached);
    assert_eq!(job_decision(&done), "stays", "until it is noted that it is done");
    let service = done.objects.member_services[0].clone();
    assert_eq!(service.metadata.annotations.as_ref().unwrap()[LAST_CLEANED_UP_TOKEN_RING_HASH], "new");
    assert_eq!(
        done.objects.member_services[1].metadata.annotations.as_ref().unwrap()[LAST_CLEANED_UP_TOKEN_RING_HASH],
        "new"
    );

    let noted = cached.services.get_mut("orders-dc-a-0").unwrap().metadata.annotations.as_mut().unwrap();
    noted.insert(LAST_CLEANED_UP_TOKEN_RING_HASH.into(), "new".into());
    let after = plan(&cached);
    assert_eq!((job_decision(&after), notes(&after.progressing)), ("goes", vec![]));
    cached.jobs.clear();
    let settled = plan(&cached);
    assert_eq!((job_decision(&settled), settled.progressing), ("goes", vec![]));
}

#[test]
fn cleanup_job_for_another_ring_or_address_is_recreated() {
    let mut cached = with_job(changed_ring());
    see_ring(&mut cached, "orders-dc-a-0", Some("newer"));
    let newer = plan(&cached);
    assert_eq!((job_decision(&newer), notes(&newer.progressing)), ("goes", vec!["ReplacingJob"]));
    cached.jobs.clear();
    see_ring(&mut cached, "orders-dc-b-0", Some("newer"));
    assert_eq!(job_decision(&plan(&cached)), "is made");

    let mut cached = with_job(changed_ring());
    cached.services.get_mut("orders-dc-a-0").unwrap().spec.as_mut().unwrap().cluster_ip = Some("10.0.0.2".into());
    assert_eq!(job_decision(&plan(&cached)), "goes");

    let mut cached = with_job(changed_ring());
    cached.operator_image = "another".into();
    assert_eq!(job_decision(&plan(&cached)), "stays", "a new version of the operator does not recreate it");
}

/// Otherwise a node would be cleaned up for the ring without the last node, and again for the ring with it.
#[test]
fn cleanup_waits_until_all_nodes_see_the_same_ring() {
    let mut cached = changed_ring();
    for other in [None, Some("newer")] {
        see_ring(&mut cached, "orders-dc-b-0", other);
        let plan = plan(&cached);
        assert!(plan.objects.cleanup_jobs.is_empty(), "{other:?}");
        assert!(notes(&plan.progressing).contains(&"WaitingForTokenRing"), "{other:?}: {:?}", plan.progressing);
    }
    see_ring(&mut cached, "orders-dc-a-0", Some("newer"));
    assert_eq!(plan(&cached).objects.cleanup_jobs.len(), 2);
}

#[test]
fn cleanup_waits_while_a_node_is_not_available() {
    let away = |mut cached: Cached| {
        let status = cached.stateful_sets.get_mut("orders-dc-b").unwrap().status.as_mut().unwrap();
        status.available_replicas = Some(0);
        cached
    };
    let early = plan(&away(changed_ring()));
    assert_eq!((job_decision(&early), notes(&early.progressing)), ("goes", vec!["WaitingForNodes"]));
    assert_eq!(job_decision(&plan(&away(with_job(changed_ring())))), "stays", "what has begun goes on");
    let mut cached = away(with_job(changed_ring()));
    set_status(&mut cached, failed());
    assert_eq!(job_decision(&plan(&cached)), "goes", "it is recreated when all nodes are up");
}

#[test]
fn failed_cleanup_job_is_reported_with_a_remedy() {
    let mut cached = with_job(changed_ring());
    set_status(&mut cached, failed());
    let plan = plan(&cached);
    assert_eq!(
        (job_decision(&plan), notes(&plan.progressing), notes(&plan.degraded)),
        ("stays", vec![], vec!["CleanupFailed"])
    );
    let message = &plan.degraded[0].message;
    assert!(message.contains(JOB) && message.contains("it was tried too often") && message.contains("delete the Job"));
    let service = &plan.objects.member_services[0];
    assert_eq!(service.metadata.annotations.as_ref().unwrap()[LAST_CLEANED_UP_TOKEN_RING_HASH], "old");
}

#[test]
fn cleanup_is_disabled_without_an_agent() {
    let mut cached = changed_ring();
    cached.datacenter.agent_image = None;
    let plan = plan(&cached);
    assert_eq!(
        (job_decision(&plan), notes(&plan.progressing), notes(&plan.warnings)),
        ("goes", vec![], vec!["CleanupNotAvailable"])
    );
}

#[test]
fn cleanup_waits_for_the_address_of_the_node() {
    let mut cached = changed_ring();
    cached.services.get_mut("orders-dc-a-0").unwrap().spec.as_mut().unwrap().cluster_ip = None;
    let plan = plan(&cached);
    assert_eq!((plan.objects.cleanup_jobs.len(), notes(&plan.progressing)), (0, vec!["WaitingForAddress"]));
}

/// A node that leaves streams data to the others, and ScyllaDB refuses to clean up meanwhile.
#[test]
fn cleanup_waits_for_scale_in() {
    let mut cached = changed_ring();
    cached.datacenter = datacenter_with(&[("a", 1), ("b", 0)], json!({}));
    let plan_before = plan(&cached);
    assert_eq!((job_decision(&plan_before), notes(&plan_before.progressing)), ("goes", vec!["WaitingForNodes"]));

    let mut cached = with_job(changed_ring());
    cached.datacenter = datacenter_with(&[("a", 1), ("b", 0)], json!({}));
    assert_eq!(job_decision(&plan(&cached)), "stays", "what is at work is not disturbed");
}

#[test]
fn invalid_replace_label_does_not_block_cleanup() {
    let mut cached = changed_ring();
    let service = cached.services.get_mut("orders-dc-b-0").unwrap();
    service.metadata.labels.get_or_insert_default().insert(label::REPLACE.into(), String::new());
    let plan = plan(&cached);
    assert_eq!(plan.degraded.iter().map(|note| note.reason.as_str()).collect::<Vec<_>>(), ["NoHostID"]);
    assert_eq!(job_decision(&plan), "is made");
}
