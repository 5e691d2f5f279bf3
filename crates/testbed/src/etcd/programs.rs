//! etcd and etcd-backup-restore, built from registry packages once, and their images.

use std::path::{Path, PathBuf};

use crate::{
    cache,
    cluster::Cluster,
    error::Result,
    image::Image,
    progress::{Step, Steps},
    tools,
};

/// The version of etcd; `tools/etcd/go.mod` names the same.
const VERSION: &str = "v3.6.16";

/// The image of etcd with its client, for the members.
pub const ETCD_IMAGE: &str = "localhost/messina/etcd:dev";
/// The image of the sidecar that takes snapshots.
pub const BACKUP_RESTORE_IMAGE: &str = "localhost/messina/etcd-backup-restore:dev";

/// The Go modules from which the programs are built. They are two, because the sidecar brings an older etcd with it.
const SOURCES: [(&str, &str); 4] = [
    ("etcd/go.mod", include_str!("../../tools/etcd/go.mod")),
    ("etcd/go.sum", include_str!("../../tools/etcd/go.sum")),
    ("backup-restore/go.mod", include_str!("../../tools/backup-restore/go.mod")),
    ("backup-restore/go.sum", include_str!("../../tools/backup-restore/go.sum")),
];

/// The programs to build, each with its module and its package.
const PROGRAMS: [(&str, &str, &str); 3] = [
    ("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    ("etcdctl", "etcd", "go.etcd.io/etcd/etcdctl/v3"),
    ("etcdbrctl", "backup-restore", "github.com/gardener/etcd-backup-restore"),
];

/// Programs and images of etcd, ready to use.
#[derive(Clone, Debug)]
pub struct Programs(PathBuf);

impl Programs {
    /// Gets or builds them.
    pub fn get(steps: &Steps) -> Result<Self> {
        let images = [ETCD_IMAGE, BACKUP_RESTORE_IMAGE];
        let made_from = SOURCES.iter().flat_map(|(name, content)| [*name, *content]).chain(images);
        let key = tools::key(&made_from.collect::<Vec<_>>());
        let dir = cache::root()?.join(format!("tools/etcd-{VERSION}-{key}"));
        cache::once(&dir, steps, "building etcd and etcd-backup-restore", |partial| {
            build(partial, steps)?;
            make_images(&Self(partial.to_owned()), steps)
        })?;
        Ok(Self(dir))
    }

    /// The path of a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Their folder.
    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// Imports the images into every Kubernetes node.
    pub fn import(&self, cluster: &Cluster) -> Result<()> {
        ["etcd.tar", "etcd-backup-restore.tar"]
            .iter()
            .try_for_each(|archive| cluster.import(&self.0.join(archive), &Steps::quiet()))
    }
}

fn build(partial: &Path, steps: &Steps) -> Result<()> {
    let go = tools::go(steps)?;
    let sources = partial.join("sources");
    for (name, content) in SOURCES {
        cache::write(&sources.join(name), content)?;
    }
    let log = cache::root()?.join("logs/build-etcd.log");
    cache::remove(&log)?;
    let step = steps.begin(format!("building etcd {VERSION} and etcd-backup-restore (once; some minutes)"));
    let mut compiled = 0;
    for (program, module, package) in PROGRAMS {
        let target = partial.join(program);
        tools::go_build(&go, &sources.join(module), &["-o", &target.to_string_lossy(), package], &log, |line| {
            count(&mut compiled, &step, line);
        })?;
    }
    step.done("");
    Ok(())
}

fn count(compiled: &mut usize, step: &Step, line: &str) {
    if line.starts_with("go: ") {
        step.progress(line);
    } else {
        *compiled += 1;
        step.progress(&format!("{compiled} packages compiled"));
    }
}

fn make_images(programs: &Programs, steps: &Steps) -> Result<()> {
    let step = steps.begin("building the images of etcd");
    Image::new(ETCD_IMAGE, ["/usr/bin/etcd"])
        .file(programs.program("etcd"), "/usr/bin/etcd")
        .file(programs.program("etcdctl"), "/usr/bin/etcdctl")
        .write(&programs.0.join("etcd.tar"))?;
    Image::new(BACKUP_RESTORE_IMAGE, ["/usr/bin/etcdbrctl"])
        .file(programs.program("etcdbrctl"), "/usr/bin/etcdbrctl")
        .write(&programs.0.join("etcd-backup-restore.tar"))?;
    step.done("");
    Ok(())
}
