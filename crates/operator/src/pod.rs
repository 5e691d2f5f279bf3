//! What the programs of a node's pod have in common: the shared directory, signals, and writing files.

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

/// How often the ignition file is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The directory that the containers share.
#[derive(Clone, Debug, clap::Args)]
pub struct Shared {
    /// Directory that the containers of the pod share
    #[arg(long = "shared-dir", default_value = "/mnt/shared")]
    pub folder: PathBuf,
}

impl Shared {
    /// Returns the path of the file whose presence lets ScyllaDB start.
    pub(crate) fn ignition_file(&self) -> PathBuf {
        self.folder.join("ignition.done")
    }

    /// Waits until the ignition file is there.
    pub(crate) async fn wait_for_ignition(&self) {
        while !self.ignition_file().exists() {
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Builds a tokio runtime with one thread: the programs of a pod are idle most of the time.
pub(crate) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("building the tokio runtime")
}

/// Waits for SIGTERM or SIGINT, which the first process of a container gets only if it listens for them. `terminating`
/// resolves if the pod was already being deleted before that.
pub(crate) async fn wait_for_stop(terminating: impl Future<Output = ()>) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listening for SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = terminating => {}
    }
    Ok(())
}

/// Parses a broadcast address type.
pub(crate) fn address_type(text: &str) -> Result<BroadcastAddressType, String> {
    match text {
        "PodIP" => Ok(BroadcastAddressType::PodIP),
        "ServiceClusterIP" => Ok(BroadcastAddressType::ServiceClusterIP),
        "ServiceLoadBalancerIngress" => Ok(BroadcastAddressType::ServiceLoadBalancerIngress),
        _ => Err("must be PodIP, ServiceClusterIP or ServiceLoadBalancerIngress".to_owned()),
    }
}

/// Writes a file atomically: readers see the old contents or the new ones.
pub(crate) fn write_atomically(file: &Path, contents: &[u8]) -> Result<()> {
    let temporary = temporary_path(file);
    fs::write(&temporary, contents).with_context(|| format!("writing {}", temporary.display()))?;
    fs::rename(&temporary, file).with_context(|| format!("renaming {} to {}", temporary.display(), file.display()))
}

/// Returns the path of the temporary file that is written before it is renamed to `file`.
pub(crate) fn temporary_path(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!(".{name}.{}", std::process::id()))
}

/// Removes a file, if it exists.
pub(crate) fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| format!("removing {}", file.display())),
    }
}
