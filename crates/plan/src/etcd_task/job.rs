//! CompactSnapshots and CopyBackups: Jobs that run etcd-backup-restore.

use std::time::Duration;

use k8s_openapi::api::{
    batch::v1::{Job, JobSpec},
    core::v1::{
        Capabilities, Container, EmptyDirVolumeSource, EnvVar, HostPathVolumeSource, PodSecurityContext, PodSpec,
        PodTemplateSpec, SeccompProfile, SecretVolumeSource, SecurityContext, Volume, VolumeMount,
    },
};
use messina_api::{
    druid::v1alpha1::{CompactSnapshotsConfig, CopyBackupsConfig, Etcd, EtcdOperatorTask, StoreSpec},
    names::{MAX_LABEL, label, truncated_hashed_name},
};
use serde_json::Value;

use super::{Options, TaskError, TaskResult, code, decode, seconds};
use crate::metadata::{Map, Owner, map, template};

/// Default of `config.timeoutSeconds`.
const DEFAULT_TIMEOUT: u32 = 10_800;
/// Home directory in the pod. etcd-backup-restore expects the containers of the provider Local below it.
const HOME: &str = "/home/nonroot";
/// Working directory of etcd-backup-restore.
const WORKSPACE: &str = "/var/etcd/data";
/// The directory of the Kubernetes node that holds containers of the provider Local, unless the Secret of the store
/// sets it.
pub const LOCAL_FOLDER: &str = "/etc/gardener/local-backupbuckets";
/// The key of that Secret that sets it.
pub const LOCAL_FOLDER_KEY: &str = "hostPath";
/// User ID and group ID of pods.
const NONROOT_USER: i64 = 65532;
/// The default image of etcd-backup-restore, unless the Etcd or the operator's flags set another one.
pub const IMAGE: &str = "europe-docker.pkg.dev/gardener-project/public/gardener/etcdbrctl:v0.43.0";
/// Value of the label `app.kubernetes.io/managed-by` of Jobs.
pub const MANAGER: &str = "messina";

/// A task that runs as a Job, with its options.
#[derive(Clone, Debug, PartialEq)]
pub enum JobTask {
    /// Compacts the latest full snapshot and the delta snapshots after it into one full snapshot.
    Compact(CompactSnapshotsConfig),
    /// Copies snapshots to another store.
    Copy(Box<CopyBackupsConfig>),
}

impl JobTask {
    /// Reads the options of a CompactSnapshots task.
    pub fn compact(config: Option<&Value>) -> Result<Self, TaskError> {
        decode(config).map(Self::Compact)
    }

    /// Reads the options of a CopyBackups task.
    pub fn copy(config: Option<&Value>) -> Result<Self, TaskError> {
        let config: CopyBackupsConfig = decode(config)?;
        let invalid = |description: String| Err(TaskError::new(code::INVALID_CONFIG, description));
        let Some(target) = &config.target_store else {
            return invalid(
                "config.targetStore is required: set provider, container and prefix of the store to copy to".into(),
            );
        };
        validate_store("config.targetStore", target)?;
        if let Some(source) = &config.source_store {
            validate_store("config.sourceStore", source)?;
        }
        for (field, value) in [("maxBackups", config.max_backups), ("maxBackupAge", config.max_backup_age)] {
            if let Some(value) = value.filter(|value| *value < 1) {
                return invalid(format!("config.{field}: {value} would copy nothing: use a number of at least 1"));
            }
        }
        Ok(Self::Copy(Box::new(config)))
    }

    /// Returns the options that all types of tasks have.
    pub fn options(&self) -> Result<Options, TaskError> {
        let given = match self {
            Self::Compact(config) => config.timeout_seconds,
            Self::Copy(config) => config.timeout_seconds,
        };
        Ok(Options { deadline: seconds("timeoutSeconds", given, DEFAULT_TIMEOUT)? })
    }

    /// Checks the preconditions of the task. If it returns an error, the task can never run.
    pub fn admit(&self, task: &EtcdOperatorTask, etcd: &Etcd) -> Result<(), TaskError> {
        if task.metadata.namespace != etcd.metadata.namespace {
            return Err(TaskError::new(
                code::PRECONDITION,
                "spec.etcdReference.namespace: a task that runs as a Job has to be in the namespace of its Etcd, where \
                 the credentials of the store are: create the task there",
            ));
        }
        self.stores(etcd).map(|_| ())
    }

    /// Returns the store that the Job writes to, and the one that it reads from if that is another one.
    pub fn stores<'a>(&'a self, etcd: &'a Etcd) -> Result<(&'a StoreSpec, Option<&'a StoreSpec>), TaskError> {
        let own = etcd.spec.backup.as_ref().and_then(|backup| backup.store.as_ref());
        let missing = || {
            TaskError::new(
                code::PRECONDITION,
                "The Etcd has no store for snapshots: set spec.backup.store of the Etcd, then create another task",
            )
        };
        match self {
            Self::Compact(_) => {
                let own = own.ok_or_else(missing)?;
                validate_store("spec.backup.store of the Etcd", own)?;
                Ok((own, None))
            }
            Self::Copy(config) => {
                let source = config.source_store.as_ref().or(own).ok_or_else(missing)?;
                validate_store("spec.backup.store of the Etcd", source)?;
                // `copy` rejects options without a target.
                let target = config.target_store.as_ref().ok_or_else(missing)?;
                if (target.container == source.container && target.prefix == source.prefix)
                    && target.provider == source.provider
                {
                    return Err(TaskError::new(
                        code::PRECONDITION,
                        "config.targetStore is the store that the snapshots are copied from: use another container or \
                         prefix",
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

fn validate_store(field: &str, store: &StoreSpec) -> Result<(), TaskError> {
    let invalid = |description: String| Err(TaskError::new(code::INVALID_CONFIG, description));
    if store.container.as_deref().unwrap_or_default().is_empty() {
        return invalid(format!(
            "{field}.container is required: set the bucket, container or directory of the snapshots"
        ));
    }
    if provider(store).is_none() {
        let given = store.provider.as_deref().unwrap_or_default();
        return invalid(format!(
            "{field}.provider: {given:?} is not supported: use S3, ABS, GCS, Swift, OSS, OCS, ECS or Local"
        ));
    }
    Ok(())
}

/// Returns the name that etcd-backup-restore has for the provider of a store.
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

/// Whether the snapshots of a store are in a directory of the Kubernetes node.
pub fn is_local(store: &StoreSpec) -> bool {
    provider(store) == Some("Local")
}

/// Returns the image of etcd-backup-restore: that of the Etcd, or else the operator's. A task cannot set it: users who
/// may create tasks must not choose what runs with the credentials of the store.
pub fn image<'a>(etcd: &'a Etcd, default: &'a str) -> &'a str {
    etcd.spec.backup.as_ref().and_then(|backup| backup.image.as_deref()).unwrap_or(default)
}

/// Returns the name of the Job of a task.
pub fn name(task: &EtcdOperatorTask) -> Result<String, TaskError> {
    let (name, uid) =
        (task.metadata.name.as_deref().unwrap_or_default(), task.metadata.uid.as_deref().unwrap_or_default());
    truncated_hashed_name(MAX_LABEL, &[name, uid]).map_err(|error| {
        TaskError::new(
            code::PRECONDITION,
            format!("The operator cannot derive a name for the Job from that of the task: {error}"),
        )
    })
}

/// Builds the Job of a task. `folders` are the directories of the Kubernetes node for the target store and the source
/// store, if their provider is Local; `remaining` is the time until the deadline of the task.
pub fn job(
    task: &EtcdOperatorTask,
    etcd: &Etcd,
    job_task: &JobTask,
    image: &str,
    folders: (Option<&str>, Option<&str>),
    remaining: Duration,
) -> Result<Job, TaskError> {
    let (store, source) = job_task.stores(etcd)?;
    let is_same_path = |source: &StoreSpec| is_local(store) && is_local(source) && store.container == source.container;
    if source.is_some_and(is_same_path) && folder(folders.0) != folder(folders.1) {
        return Err(TaskError::new(
            code::PRECONDITION,
            "config.targetStore.container: the source store has the same container in another directory of the \
             Kubernetes node, and etcd-backup-restore cannot distinguish them: use another container",
        ));
    }
    let mut pod = PodBuilder { arguments: job_task.arguments(), ..PodBuilder::default() };
    pod.add_workspace();
    pod.add(store, "", folders.0);
    if let Some(source) = source {
        pod.add(source, "source-", folders.1);
    }
    let uses_host_path = is_local(store) || source.is_some_and(is_local);
    // The API server rejects a Job with a deadline of zero.
    let deadline = i64::try_from(remaining.as_secs().max(1)).unwrap_or(i64::MAX);
    let labels = map([(label::MANAGED_BY, MANAGER)]);
    let owner = Owner {
        api_version: "druid.gardener.cloud/v1alpha1",
        kind: "EtcdOperatorTask",
        namespace: task.metadata.namespace.as_deref().unwrap_or_default(),
        name: task.metadata.name.as_deref().unwrap_or_default(),
        uid: task.metadata.uid.as_deref().unwrap_or_default(),
    };
    let metadata = owner.metadata(name(task)?, labels.clone(), Map::new());
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
        // The pod connects to the store and not to the API server.
        automount_service_account_token: Some(false),
        containers: vec![container],
        // Directories of the Kubernetes node may belong to root. For all other stores the pod runs as another user.
        security_context: Some(PodSecurityContext {
            run_as_non_root: (!uses_host_path).then_some(true),
            run_as_user: (!uses_host_path).then_some(NONROOT_USER),
            fs_group: (!uses_host_path).then_some(NONROOT_USER),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        volumes: Some(pod.volumes),
        ..PodSpec::default()
    };
    let spec = JobSpec {
        // Snapshots that already exist are not written again, so a retry with another pod is safe.
        backoff_limit: Some(3),
        active_deadline_seconds: Some(deadline),
        template: PodTemplateSpec { metadata: Some(template(labels, Map::new())), spec: Some(pod) },
        ..JobSpec::default()
    };
    Ok(Job { metadata, spec: Some(spec), status: None })
}

/// Arguments, environment and volumes of a pod that accesses stores.
#[derive(Default)]
struct PodBuilder {
    arguments: Vec<String>,
    environment: Vec<EnvVar>,
    mounts: Vec<VolumeMount>,
    volumes: Vec<Volume>,
}

impl PodBuilder {
    fn add_workspace(&mut self) {
        self.set("HOME", HOME.into());
        let empty = EmptyDirVolumeSource::default();
        self.mount(Volume { name: "workspace".into(), empty_dir: Some(empty), ..Volume::default() }, WORKSPACE.into());
    }

    /// Adds a store. `prefix` is the prefix of the flags for it.
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
        let secret_directory = format!("/var/{prefix}etcd-backup");
        match provider {
            "Local" => {
                let path = format!("{HOME}/{container}");
                // Two stores may be in one directory, with different prefixes.
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
                self.set(&variable("GOOGLE_APPLICATION_CREDENTIALS"), format!("{secret_directory}/serviceaccount.json"))
            }
            "S3" => self.set(&variable("AWS_APPLICATION_CREDENTIALS"), secret_directory.clone()),
            "ABS" => self.set(&variable("AZURE_APPLICATION_CREDENTIALS"), secret_directory.clone()),
            "Swift" => self.set(&variable("OPENSTACK_APPLICATION_CREDENTIALS"), secret_directory.clone()),
            "OSS" => self.set(&variable("ALICLOUD_APPLICATION_CREDENTIALS"), secret_directory.clone()),
            _ => self.set(&variable("OPENSHIFT_APPLICATION_CREDENTIALS"), secret_directory.clone()),
        }
        if let Some(secret) = secret {
            let source = SecretVolumeSource { secret_name: Some(secret), ..SecretVolumeSource::default() };
            let volume = Volume { name: format!("{prefix}credentials"), secret: Some(source), ..Volume::default() };
            self.mount(volume, secret_directory);
        } else {
            // Without a Secret, etcd-backup-restore uses the identity of the Kubernetes node, and must not look for a
            // file.
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

/// Maximum length of a message of a Job, in characters.
const MAX_MESSAGE: usize = 1000;

/// Returns the result of a task from the status of its Job.
pub fn result(job: &Job) -> TaskResult {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let status = job.status.clone().unwrap_or_default();
    let is = |kind: &str| {
        let found = status.conditions.iter().flatten().find(|one| one.type_ == kind && one.status == "True");
        found.map(|one| one.message.clone().or_else(|| one.reason.clone()).unwrap_or_default())
    };
    if is("Complete").is_some() {
        return TaskResult::done(format!("Job {name} is complete."));
    }
    if let Some(why) = is("Failed").map(|why| messina_text::line(&why, MAX_MESSAGE)) {
        return TaskResult::failed(TaskError::new(
            JOB_FAILED,
            format!("Job {name} failed: {why}. For details see its log: kubectl logs job/{name}"),
        ));
    }
    let failed = status.failed.unwrap_or_default();
    let failures = if failed > 0 { format!("; {failed} of its pods failed") } else { String::new() };
    // The watch on Jobs triggers a reconcile when the Job changes.
    TaskResult::in_progress(format!("Job {name} is running{failures}."), Duration::from_secs(300))
}

/// Whether a Job is complete or failed, and none of its pods is left running or terminating.
pub fn is_finished(job: &Job) -> bool {
    let has_pods = job.status.as_ref().is_some_and(|status| status.active > Some(0) || status.terminating > Some(0));
    (has_condition(job, "Complete") || has_failed(job)) && !has_pods
}

/// Whether a Job has failed.
pub fn has_failed(job: &Job) -> bool {
    has_condition(job, "Failed")
}

fn has_condition(job: &Job, condition: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == condition && one.status == "True")
}

/// Error code: the Job of a task failed.
pub const JOB_FAILED: &str = "ERR_JOB_FAILED";

#[cfg(test)]
mod tests;
