//! What the containers of a node's pod share, and how each of them runs.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use messina_api::scylla::v1alpha1::BroadcastAddressType;
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{SignalKind, signal},
    time::sleep,
};

/// How often to look for a file.
const LOOK: Duration = Duration::from_millis(200);

/// The folder that the containers share.
#[derive(Clone, Debug, clap::Args)]
pub struct Shared {
    /// The folder that the containers of the pod share
    #[arg(long = "shared-dir", default_value = "/mnt/shared")]
    pub folder: PathBuf,
}

impl Shared {
    /// The file whose presence lets ScyllaDB start.
    pub(crate) fn ignition(&self) -> PathBuf {
        self.folder.join("ignition.done")
    }

    /// Waits until ScyllaDB may start.
    pub(crate) async fn ignited(&self) {
        while !self.ignition().exists() {
            sleep(LOOK).await;
        }
    }
}

/// A runtime on one thread: these programs wait most of the time, and there is one in every container.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("preparing to run")
}

/// Waits until the container is to stop. The first process of a container must listen to be stopped at all; `is_going` tells
/// whether it was to stop before that.
pub(crate) async fn stopped(is_going: impl Future<Output = ()>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = is_going => {}
    }
    Ok(())
}

/// Reads the name of a broadcast address type.
pub(crate) fn address_type(text: &str) -> Result<BroadcastAddressType, String> {
    match text {
        "PodIP" => Ok(BroadcastAddressType::PodIP),
        "ServiceClusterIP" => Ok(BroadcastAddressType::ServiceClusterIP),
        "ServiceLoadBalancerIngress" => Ok(BroadcastAddressType::ServiceLoadBalancerIngress),
        _ => Err("it is PodIP, ServiceClusterIP or ServiceLoadBalancerIngress".to_owned()),
    }
}

/// Writes a file whole or not at all: who looks at it sees the old one or the new one.
pub(crate) fn write_whole(file: &Path, contents: &[u8]) -> Result<()> {
    let half = half_written(file);
    fs::write(&half, contents).with_context(|| format!("writing {}", half.display()))?;
    fs::rename(&half, file).with_context(|| format!("renaming {} to {}", half.display(), file.display()))
}

/// Where a file is written before it is whole.
pub(crate) fn half_written(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", std::process::id()))
}

/// Removes a file that may not be there.
pub(crate) fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| format!("removing {}", file.display())),
    }
}
