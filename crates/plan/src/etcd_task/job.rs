//! CompactSnapshots and CopyBackups: Jobs that run etcd-backup-restore.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::{
        batch::v1::{Job, JobSpec},
        core::v1::{
            Capabilities, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource, PodSecurityContext, PodSpec,
            PodTemplateSpec, SeccompProfile, SecretVolumeSource, SecurityContext, Volume, VolumeMount,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use messina_api::{
    druid::v1alpha1::{CompactSnapshotsConfig, CopyBackupsConfig, Etcd, EtcdOperatorTask, StoreSpec},
    names::{MAX_LABEL, label, truncated_hashed_name},
};
use serde_json::Value;

use super::{Fault, Options, TaskResult, code, decode, seconds};

/// How long such a task may take, in seconds, unless its options say otherwise.
const DEADLINE: u32 = 10_800;
/// Home folder in the pod. etcd-backup-restore finds folders of the machine below it.
const HOME: &str = "/home/nonroot";
/// Where etcd-backup-restore works.
const WORKSPACE: &str = "/var/etcd/data";
/// The folder of the machine that holds containers of the provider Local, unless its Secret says otherwise.
pub const LOCAL_FOLDER: &str = "/etc/gardener/local-backupbuckets";
/// The key of that Secret that says so.
pub const LOCAL_FOLDER_KEY: &str = "hostPath";
/// The user that pods run as.
const NOBODY: i64 = 65532;
/// The image of etcd-backup-restore, unless the Etcd or the operator's options name another one.
pub const IMAGE: &str = "europe-docker.pkg.dev/gardener-project/public/gardener/etcdbrctl:v0.43.0";
/// Who keeps our Jobs.
pub const MANAGER: &str = "messina";

/// A task that is done by a Job.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Makes one full snapshot of the last one and the deltas after it.
    Compact(CompactSnapshotsConfig),
    /// Copies snapshots to another store.
    Copy(Box<CopyBackupsConfig>),
}

impl Work {
    /// CompactSnapshots with these options.
    pub fn compact(config: Option<&Value>) -> Result<Self, Fault> {
        decode(config).map(Self::Compact)
    }

    /// CopyBackups with these options.
    pub fn copy(config: Option<&Value>) -> Result<Self, Fault> {
        let config: CopyBackupsConfig = decode(config)?;
        let wrong = |description: String| Err(Fault::new(code::INVALID_CONFIG, description));
        let Some(target) = &config.target_store else {
            return wrong("config.targetStore: say where the snapshots go: provider, container and prefix".into());
        };
        check("config.targetStore", target)?;
        if let Some(source) = &config.source_store {
            check("config.sourceStore", source)?;
        }
        for (field, value) in [("maxBackups", config.max_backups), ("maxBackupAge", config.max_backup_age)] {
            if let Some(value) = value.filter(|value| *value < 1) {
                return wrong(format!("config.{field}: {value} would copy nothing: give a number from 1 on"));
            }
        }
        Ok(Self::Copy(Box::new(config)))
    }

    /// What the flow needs to know of it.
    pub fn options(&self) -> Result<Options, Fault> {
        let given = match self {
            Self::Compact(config) => config.timeout_seconds,
            Self::Copy(config) => config.timeout_seconds,
        };
        Ok(Options { deadline: seconds("timeoutSeconds", given, DEADLINE)? })
    }

    /// Whether the etcd cluster has what it needs; if not, the task can never run.
    pub fn admit(&self, task: &EtcdOperatorTask, etcd: &Etcd) -> Result<(), Fault> {
        if task.metadata.namespace != etcd.metadata.namespace {
            return Err(Fault::new(
                code::PRECONDITION,
                "spec.etcdReference.namespace: a task that runs as a Job has to be in the namespace of its Etcd, where \
                 the credentials of the store are: create it there",
            ));
        }
        self.stores(etcd).map(|_| ())
    }

    /// The stores that it works on: the one that it writes to, and the one that it reads, if that is another one.
    pub fn stores<'a>(&'a self, etcd: &'a Etcd) -> Result<(&'a StoreSpec, Option<&'a StoreSpec>), Fault> {
        let own = etcd.spec.backup.as_ref().and_then(|backup| backup.store.as_ref());
        let missing = || {
            Fault::new(code::PRECONDITION, "The Etcd has no store for snapshots: spec.backup.store is not set there")
        };
        match self {
            Self::Compact(_) => {
                let own = own.ok_or_else(missing)?;
                check("spec.backup.store of the Etcd", own)?;
                Ok((own, None))
            }
            Self::Copy(config) => {
                let source = config.source_store.as_ref().or(own).ok_or_else(missing)?;
                check("spec.backup.store of the Etcd", source)?;
                // `copy` has seen to it that there is one.
                let target = config.target_store.as_ref().ok_or_else(missing)?;
                if (target.container == source.container && target.prefix == source.prefix)
                    && target.provider == source.provider
                {
                    return Err(Fault::new(
                        code::PRECONDITION,
                        "config.targetStore: this is where the snapshots come from: name another container or prefix",
                    ));
                }
                Ok((target, Some(source)))
            }
        }
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = match self {
            Self::Compact(config) => vec![
                "compact".to_owned(),
                format!("--data-dir={WORKSPACE}/compaction.etcd"),
                format!("--restoration-temp-snapshots-dir={WORKSPACE}/compaction.restoration.tmp"),
                format!("--defragment={}", config.defragment.unwrap_or(true)),
                "--enable-snapshot-lease-renewal=false".to_owned(),
            ],
            Self::Copy(config) => {
                let mut arguments = vec!["copy".to_owned()];
                arguments.extend(config.max_backups.map(|count| format!("--max-backups-to-copy={count}")));
                arguments.extend(config.max_backup_age.map(|days| format!("--max-backup-age={days}")));
                arguments
            }
        };
        arguments.push(format!("--snapstore-temp-directory={WORKSPACE}/tmp"));
        arguments
    }
}

fn check(field: &str, store: &StoreSpec) -> Result<(), Fault> {
    let wrong = |description: String| Err(Fault::new(code::INVALID_CONFIG, description));
    if store.container.as_deref().unwrap_or_default().is_empty() {
        return wrong(format!("{field}.container: name the bucket, container or folder of the snapshots"));
    }
    if provider(store).is_none() {
        let given = store.provider.as_deref().unwrap_or_default();
        return wrong(format!(
            "{field}.provider: {given:?} is not known: use S3, ABS, GCS, Swift, OSS, OCS, ECS or Local"
        ));
    }
    Ok(())
}

/// What etcd-backup-restore calls the provider of a store.
fn provider(store: &StoreSpec) -> Option<&'static str> {
    let given = store.provider.as_deref().unwrap_or_default();
    let names: [(&str, &[&str]); 8] = [
        ("S3", &["S3", "s3", "aws", "stackit"]),
        ("ABS", &["ABS", "abs", "azure"]),
        ("GCS", &["GCS", "gcs", "gcp"]),
        ("Swift", &["Swift", "swift", "openstack"]),
        ("OSS", &["OSS", "oss", "alicloud"]),
        ("ECS", &["ECS", "ecs", "dell"]),
        ("OCS", &["OCS", "ocs", "openshift"]),
        ("Local", &["Local", "local"]),
    ];
    names.iter().find(|(_, known)| known.contains(&given)).map(|(name, _)| *name)
}

/// Whether the snapshots of a store are in a folder of the machine.
pub fn is_local(store: &StoreSpec) -> bool {
    provider(store) == Some("Local")
}

/// The image of etcd-backup-restore: that of the Etcd, or else the operator's. It is not for whoever creates a task to say
/// what runs with the credentials of the store.
pub fn image<'a>(etcd: &'a Etcd, otherwise: &'a str) -> &'a str {
    etcd.spec.backup.as_ref().and_then(|backup| backup.image.as_deref()).unwrap_or(otherwise)
}

/// The name of the Job of a task.
pub fn name(task: &EtcdOperatorTask) -> Result<String, Fault> {
    let (name, uid) =
        (task.metadata.name.as_deref().unwrap_or_default(), task.metadata.uid.as_deref().unwrap_or_default());
    truncated_hashed_name(MAX_LABEL, &[name, uid])
        .map_err(|error| Fault::new(code::PRECONDITION, format!("There is no name for the Job: {error}")))
}

/// The Job of a task. `folders` are the folders of the Kubernetes node for the store that is written and the one that is read,
/// where they are of the provider Local; `remaining` is what is left of the time of the task.
pub fn job(
    task: &EtcdOperatorTask,
    etcd: &Etcd,
    work: &Work,
    image: &str,
    folders: (Option<&str>, Option<&str>),
    remaining: Duration,
) -> Result<Job, Fault> {
    let (store, source) = work.stores(etcd)?;
    let is_same_path = |source: &StoreSpec| is_local(store) && is_local(source) && store.container == source.container;
    if source.is_some_and(is_same_path) && folder(folders.0) != folder(folders.1) {
        return Err(Fault::new(
            code::PRECONDITION,
            "config.targetStore.container: the store that is read has the same container in another folder of the Kubernetes \
             node, and etcd-backup-restore cannot tell them apart: name another container",
        ));
    }
    let mut pod = Pod { arguments: work.arguments(), ..Pod::default() };
    pod.add_workspace();
    pod.add(store, "", folders.0);
    if let Some(source) = source {
        pod.add(source, "source-", folders.1);
    }
    let is_on_the_machine = is_local(store) || source.is_some_and(is_local);
    // Kubernetes takes no Job without any time.
    let deadline = i64::try_from(remaining.as_secs().max(1)).unwrap_or(i64::MAX);
    let labels = BTreeMap::from([(label::MANAGED_BY.to_owned(), MANAGER.to_owned())]);
    let metadata = ObjectMeta {
        name: Some(name(task)?),
        namespace: task.metadata.namespace.clone(),
        labels: Some(labels.clone()),
        owner_references: Some(vec![OwnerReference {
            api_version: "druid.gardener.cloud/v1alpha1".into(),
            kind: "EtcdOperatorTask".into(),
            name: task.metadata.name.clone().unwrap_or_default(),
            uid: task.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    };
    let container = Container {
        name: "etcd-backup-restore".into(),
        image: Some(image.to_owned()),
        args: Some(pod.arguments),
        env: Some(pod.environment),
        volume_mounts: Some(pod.mounts),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    };
    let pod = PodSpec {
        restart_policy: Some("Never".into()),
        // It speaks with the store alone.
        automount_service_account_token: Some(false),
        containers: vec![container],
        // Folders of the machine belong to whom they belong to; else nobody needs to be root.
        security_context: Some(PodSecurityContext {
            run_as_non_root: (!is_on_the_machine).then_some(true),
            run_as_user: (!is_on_the_machine).then_some(NOBODY),
            fs_group: (!is_on_the_machine).then_some(NOBODY),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        volumes: Some(pod.volumes),
        ..PodSpec::default()
    };
    let spec = JobSpec {
        // Snapshots that are already there are not made again, so that another pod may try.
        backoff_limit: Some(3),
        active_deadline_seconds: Some(deadline),
        template: PodTemplateSpec {
            metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
            spec: Some(pod),
        },
        ..JobSpec::default()
    };
    Ok(Job { metadata, spec: Some(spec), status: None })
}

/// What a pod needs to reach stores.
#[derive(Default)]
struct Pod {
    arguments: Vec<String>,
    environment: Vec<EnvVar>,
    mounts: Vec<VolumeMount>,
    volumes: Vec<Volume>,
}

impl Pod {
    fn add_workspace(&mut self) {
        self.set("HOME", HOME.into());
        let empty = EmptyDirVolumeSource::default();
        self.mount(Volume { name: "workspace".into(), empty_dir: Some(empty), ..Volume::default() }, WORKSPACE.into());
    }

    /// `prefix` is what flags begin with that are about this store.
    fn add(&mut self, store: &StoreSpec, prefix: &str, folder: Option<&str>) {
        let provider = provider(store).unwrap_or_default();
        let container = store.container.clone().unwrap_or_default();
        self.arguments.push(format!("--{prefix}storage-provider={provider}"));
        self.arguments.push(format!("--{prefix}store-container={container}"));
        self.arguments.push(format!("--{prefix}store-prefix={}", store.prefix.as_deref().unwrap_or_default()));
        if let Some(address) = &store.endpoint_override {
            self.arguments.push(format!("--{prefix}store-endpoint-override={address}"));
        }
        let secret = store.secret_ref.as_ref().and_then(|secret| secret.name.clone());
        let variable = |name: &str| {
            if prefix.is_empty() { name.to_owned() } else { format!("SOURCE_{name}") }
        };
        let folder_of_secret = format!("/var/{prefix}etcd-backup");
        match provider {
            "Local" => {
                let path = format!("{HOME}/{container}");
                // Two stores may be in one folder, with different prefixes.
                if self.mounts.iter().all(|mount| mount.mount_path != path) {
                    let folder = format!("{}/{container}", self::folder(folder));
                    let source = HostPathVolumeSource { path: folder, type_: Some("DirectoryOrCreate".into()) };
                    let name = format!("{prefix}store");
                    self.mount(Volume { name, host_path: Some(source), ..Volume::default() }, path);
                }
                return;
            }
            "ECS" => {
                for (name, key) in [
                    ("ECS_ENDPOINT", "endpoint"),
                    ("ECS_ACCESS_KEY_ID", "accessKeyID"),
                    ("ECS_SECRET_ACCESS_KEY", "secretAccessKey"),
                ] {
                    self.environment.extend(secret.as_deref().map(|secret| from_secret(variable(name), secret, key)));
                }
                return;
            }
            "GCS" => {
                self.set(&variable("GOOGLE_APPLICATION_CREDENTIALS"), format!("{folder_of_secret}/serviceaccount.json"))
            }
            "S3" => self.set(&variable("AWS_APPLICATION_CREDENTIALS"), folder_of_secret.clone()),
            "ABS" => self.set(&variable("AZURE_APPLICATION_CREDENTIALS"), folder_of_secret.clone()),
            "Swift" => self.set(&variable("OPENSTACK_APPLICATION_CREDENTIALS"), folder_of_secret.clone()),
            "OSS" => self.set(&variable("ALICLOUD_APPLICATION_CREDENTIALS"), folder_of_secret.clone()),
            _ => self.set(&variable("OPENSHIFT_APPLICATION_CREDENTIALS"), folder_of_secret.clone()),
        }
        if let Some(secret) = secret {
            let source = SecretVolumeSource { secret_name: Some(secret), ..SecretVolumeSource::default() };
            let volume = Volume { name: format!("{prefix}credentials"), secret: Some(source), ..Volume::default() };
            self.mount(volume, folder_of_secret);
        } else {
            // Without a Secret, the machine's own identity is used, and no file may be looked for.
            self.environment.pop();
        }
    }

    fn set(&mut self, name: &str, value: String) {
        self.environment.push(EnvVar { name: name.to_owned(), value: Some(value), value_from: None });
    }

    fn mount(&mut self, volume: Volume, path: String) {
        self.mounts.push(VolumeMount { name: volume.name.clone(), mount_path: path, ..VolumeMount::default() });
        self.volumes.push(volume);
    }
}

fn folder(given: Option<&str>) -> &str {
    given.unwrap_or(LOCAL_FOLDER)
}

fn from_secret(name: String, secret: &str, key: &str) -> EnvVar {
    use k8s_openapi::api::core::v1::{EnvVarSource, SecretKeySelector};
    let selector = SecretKeySelector { name: secret.to_owned(), key: key.to_owned(), optional: None };
    let source = EnvVarSource { secret_key_ref: Some(selector), ..EnvVarSource::default() };
    EnvVar { name, value: None, value_from: Some(source) }
}

/// How much is kept of what a Job says of itself, in characters.
const LONGEST_MESSAGE: usize = 1000;

/// How a Job stands, as the result of a task.
pub fn result(job: &Job) -> TaskResult {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let is = |kind: &str| {
        let found = status.conditions.iter().flatten().find(|one| one.type_ == kind && one.status == "True");
        found.map(|one| one.message.clone().or_else(|| one.reason.clone()).unwrap_or_default())
    };
    if is("Complete").is_some() {
        return TaskResult::done(format!("The Job {name} is done."));
    }
    if let Some(why) = is("Failed").map(|why| messina_text::line(&why, LONGEST_MESSAGE)) {
        return TaskResult::failed(Fault::new(
            JOB_FAILED,
            format!("The Job {name} failed: {why}. Its log says more: kubectl logs job/{name}"),
        ));
    }
    let failed = status.failed.unwrap_or_default();
    let tried = if failed > 0 { format!("; {failed} of its pods have failed") } else { String::new() };
    // Its watch tells when it changes.
    TaskResult::goes_on(format!("The Job {name} runs{tried}."), Duration::from_secs(300))
}

/// Whether a Job is at its end, with all of its pods.
pub fn is_finished(job: &Job) -> bool {
    let runs = job.status.as_ref().is_some_and(|status| status.active > Some(0) || status.terminating > Some(0));
    (has_condition(job, "Complete") || has_failed(job)) && !runs
}

/// Whether a Job has failed.
pub fn has_failed(job: &Job) -> bool {
    has_condition(job, "Failed")
}

fn has_condition(job: &Job, condition: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == condition && one.status == "True")
}

/// The Job of a task failed.
pub const JOB_FAILED: &str = "ERR_JOB_FAILED";

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
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
        let work =
            if kind == "CopyBackups" { Work::copy(Some(&config)) } else { Work::compact(Some(&config)) }.unwrap();
        work.admit(&task(kind, config.clone()), etcd).unwrap();
        let folders = (Some("/folder"), None);
        job(&task(kind, config), etcd, &work, image(etcd, IMAGE), folders, Duration::from_secs(90)).unwrap()
    }

    #[test]
    fn snapshots_of_a_bucket_are_compacted() {
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
    fn snapshots_are_copied_from_one_store_to_the_other() {
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
    fn a_job_has_what_is_left_of_the_time_of_its_task() {
        let work = Work::compact(None).unwrap();
        let etcd = etcd(s3("bucket"));
        for (remaining, seconds) in [(90_500, 90), (999, 1), (0, 1)] {
            let remaining = Duration::from_millis(remaining);
            let job = job(&task("CompactSnapshots", json!({})), &etcd, &work, IMAGE, (None, None), remaining).unwrap();
            assert_eq!(job.spec.unwrap().active_deadline_seconds, Some(seconds));
        }
    }

    #[test]
    fn snapshots_are_copied_within_one_folder() {
        let local = |prefix: &str| json!({"provider": "Local", "container": "copies", "prefix": prefix});
        let config = json!({"targetStore": local("new")});
        let (etcd, work) = (etcd(local("old")), Work::copy(Some(&config)).unwrap());
        let made = |folders| job(&task("CopyBackups", config.clone()), &etcd, &work, IMAGE, folders, Duration::MAX);
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
        let fault = made((Some("/folder"), None)).unwrap_err();
        assert!(fault.description.contains("config.targetStore.container"), "{}", fault.description);
    }

    #[test]
    fn what_could_never_run_is_said() {
        for (config, named) in [
            (json!({}), "config.targetStore"),
            (json!({"targetStore": {"provider": "S3"}}), "config.targetStore.container"),
            (json!({"targetStore": {"provider": "tape", "container": "x"}}), "config.targetStore.provider: \"tape\""),
            (json!({"targetStore": s3("b"), "maxBackups": 0}), "config.maxBackups"),
            (json!({"targetStore": s3("b"), "maxBackup": 1}), "unknown field `maxBackup`"),
        ] {
            let fault = Work::copy(Some(&config)).unwrap_err();
            assert!(fault.description.contains(named), "{}", fault.description);
        }
        let copy = Work::copy(Some(&json!({"targetStore": s3("bucket")}))).unwrap();
        let fault = copy.admit(&task("CopyBackups", json!({})), &etcd(s3("bucket"))).unwrap_err();
        assert!(fault.description.contains("where the snapshots come from"), "{}", fault.description);
        let compact = Work::compact(None).unwrap();
        let fault = compact.admit(&task("CompactSnapshots", json!({})), &etcd(json!(null))).unwrap_err();
        assert!(fault.description.contains("spec.backup.store"), "{}", fault.description);
        let mut elsewhere = task("CompactSnapshots", json!({}));
        elsewhere.metadata.namespace = Some("other".into());
        assert!(compact.admit(&elsewhere, &etcd(s3("bucket"))).unwrap_err().description.contains("namespace"));
    }

    #[test]
    fn the_image_is_not_for_tasks_to_say() {
        let mut etcd = etcd(s3("bucket"));
        assert_eq!(image(&etcd, "operators"), "backup-restore:1");
        etcd.spec.backup.as_mut().unwrap().image = None;
        assert_eq!(image(&etcd, "operators"), "operators");
        assert!(Work::compact(Some(&json!({"image": "mine"}))).is_err());
    }

    #[test]
    fn what_a_job_says_is_what_came_of_the_task() {
        let with = |condition: &str| -> Job {
            let conditions = json!([{"type": condition, "status": "True", "message": "it has"}]);
            serde_json::from_value(json!({"metadata": {"name": "job"}, "status": {"conditions": conditions}})).unwrap()
        };
        assert!(result(&with("Complete")).is_completed && result(&with("Complete")).error.is_none());
        let failed = result(&with("Failed"));
        assert!(failed.is_completed && failed.error.unwrap().description.contains("kubectl logs job/job"));
        assert!(!result(&Job::default()).is_completed);
    }
}
