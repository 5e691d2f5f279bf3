#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::json;

use super::*;

fn task(kind: &str, config: Value) -> EtcdOperatorTask {
    serde_json::from_value(json!({
        "metadata": {"name": "nightly", "namespace": "default", "uid": "1234"},
        "spec": {"type": kind, "config": config, "etcdReference": {"name": "main"}},
    }))
    .unwrap()
}

fn etcd(store: Value) -> Etcd {
    serde_json::from_value(json!({
        "metadata": {"name": "main", "namespace": "default"},
        "spec": {"backup": {"image": "backup-restore:1", "store": store}},
    }))
    .unwrap()
}

fn s3(container: &str) -> Value {
    json!({"provider": "aws", "container": container, "prefix": "main", "secretRef": {"name": "keys"}})
}

fn made(kind: &str, config: Value, etcd: &Etcd) -> Job {
    let job_task =
        if kind == "CopyBackups" { JobTask::copy(Some(&config)) } else { JobTask::compact(Some(&config)) }.unwrap();
    job_task.admit(&task(kind, config.clone()), etcd).unwrap();
    let folders = (Some("/folder"), None);
    job(&task(kind, config), etcd, &job_task, image(etcd, IMAGE), folders, Duration::from_secs(90)).unwrap()
}

#[test]
fn compact_job_uses_the_store_of_the_etcd() {
    let job = made("CompactSnapshots", json!({}), &etcd(s3("bucket")));
    let pod = job.spec.unwrap().template.spec.unwrap();
    let container = &pod.containers[0];
    assert_eq!(container.image.as_deref(), Some("backup-restore:1"));
    let arguments = container.args.clone().unwrap();
    assert_eq!(arguments[0], "compact");
    for expected in ["--storage-provider=S3", "--store-container=bucket", "--store-prefix=main"] {
        assert!(arguments.iter().any(|one| one == expected), "{expected} in {arguments:?}");
    }
    let variables: Vec<String> = container.env.iter().flatten().map(|one| one.name.clone()).collect();
    assert_eq!(variables, ["HOME", "AWS_APPLICATION_CREDENTIALS"]);
    let volume = pod.volumes.unwrap().into_iter().find(|one| one.name == "credentials").unwrap();
    assert_eq!(volume.secret.unwrap().secret_name.as_deref(), Some("keys"));
}

#[test]
fn copy_job_reads_one_store_and_writes_the_other() {
    let config =
        json!({"targetStore": {"provider": "Local", "container": "copies", "prefix": "main"}, "maxBackups": 2});
    let job = made("CopyBackups", config, &etcd(s3("bucket")));
    let pod = job.spec.unwrap().template.spec.unwrap();
    let arguments = pod.containers[0].args.clone().unwrap();
    for expected in [
        "copy",
        "--max-backups-to-copy=2",
        "--storage-provider=Local",
        "--store-container=copies",
        "--source-storage-provider=S3",
        "--source-store-container=bucket",
        "--source-store-prefix=main",
    ] {
        assert!(arguments.iter().any(|one| one == expected), "{expected} in {arguments:?}");
    }
    let variables: Vec<String> = pod.containers[0].env.iter().flatten().map(|one| one.name.clone()).collect();
    assert_eq!(variables, ["HOME", "SOURCE_AWS_APPLICATION_CREDENTIALS"]);
    let local = pod.volumes.unwrap().into_iter().find(|one| one.name == "store").unwrap();
    assert_eq!(local.host_path.unwrap().path, "/folder/copies");
}

#[test]
fn job_deadline_is_the_remaining_time_of_its_task() {
    let job_task = JobTask::compact(None).unwrap();
    let etcd = etcd(s3("bucket"));
    for (remaining, seconds) in [(90_500, 90), (999, 1), (0, 1)] {
        let remaining = Duration::from_millis(remaining);
        let job = job(&task("CompactSnapshots", json!({})), &etcd, &job_task, IMAGE, (None, None), remaining).unwrap();
        assert_eq!(job.spec.unwrap().active_deadline_seconds, Some(seconds));
    }
}

#[test]
fn copy_job_mounts_a_shared_directory_once() {
    let local = |prefix: &str| json!({"provider": "Local", "container": "copies", "prefix": prefix});
    let config = json!({"targetStore": local("new")});
    let (etcd, job_task) = (etcd(local("old")), JobTask::copy(Some(&config)).unwrap());
    let made = |folders| job(&task("CopyBackups", config.clone()), &etcd, &job_task, IMAGE, folders, Duration::MAX);
    for folders in [(None, None), (Some("/folder"), Some("/folder")), (None, Some(LOCAL_FOLDER))] {
        let pod = made(folders).unwrap().spec.unwrap().template.spec.unwrap();
        let arguments = pod.containers[0].args.clone().unwrap();
        for expected in ["--store-prefix=new", "--source-store-prefix=old", "--source-store-container=copies"] {
            assert!(arguments.iter().any(|one| one == expected), "{expected} in {arguments:?}");
        }
        let paths = pod.containers[0].volume_mounts.iter().flatten().map(|mount| mount.mount_path.as_str());
        assert_eq!(paths.collect::<Vec<_>>(), [WORKSPACE, "/home/nonroot/copies"]);
        assert_eq!(pod.volumes.unwrap().len(), 2);
    }
    let error = made((Some("/folder"), None)).unwrap_err();
    assert!(error.description.contains("config.targetStore.container"), "{}", error.description);
}

#[test]
fn job_tasks_with_invalid_options_are_rejected() {
    for (config, named) in [
        (json!({}), "config.targetStore"),
        (json!({"targetStore": {"provider": "S3"}}), "config.targetStore.container"),
        (json!({"targetStore": {"provider": "tape", "container": "x"}}), "config.targetStore.provider: \"tape\""),
        (json!({"targetStore": s3("b"), "maxBackups": 0}), "config.maxBackups"),
        (json!({"targetStore": s3("b"), "maxBackup": 1}), "unknown field `maxBackup`"),
    ] {
        let error = JobTask::copy(Some(&config)).unwrap_err();
        assert!(error.description.contains(named), "{}", error.description);
    }
    let copy = JobTask::copy(Some(&json!({"targetStore": s3("bucket")}))).unwrap();
    let error = copy.admit(&task("CopyBackups", json!({})), &etcd(s3("bucket"))).unwrap_err();
    assert!(error.description.contains("the snapshots are copied from"), "{}", error.description);
    let compact = JobTask::compact(None).unwrap();
    let error = compact.admit(&task("CompactSnapshots", json!({})), &etcd(json!(null))).unwrap_err();
    assert!(error.description.contains("spec.backup.store"), "{}", error.description);
    let mut elsewhere = task("CompactSnapshots", json!({}));
    elsewhere.metadata.namespace = Some("other".into());
    assert!(compact.admit(&elsewhere, &etcd(s3("bucket"))).unwrap_err().description.contains("namespace"));
}

#[test]
fn tasks_cannot_set_the_image() {
    let mut etcd = etcd(s3("bucket"));
    assert_eq!(image(&etcd, "operators"), "backup-restore:1");
    etcd.spec.backup.as_mut().unwrap().image = None;
    assert_eq!(image(&etcd, "operators"), "operators");
    assert!(JobTask::compact(Some(&json!({"image": "mine"}))).is_err());
}

#[test]
fn job_conditions_determine_the_result_of_the_task() {
    let with = |condition: &str| -> Job {
        let conditions = json!([{"type": condition, "status": "True", "message": "it has"}]);
        serde_json::from_value(json!({"metadata": {"name": "job"}, "status": {"conditions": conditions}})).unwrap()
    };
    assert!(result(&with("Complete")).is_completed && result(&with("Complete")).error.is_none());
    let failed = result(&with("Failed"));
    assert!(failed.is_completed && failed.error.unwrap().description.contains("kubectl logs job/job"));
    assert!(!result(&Job::default()).is_completed);
}
