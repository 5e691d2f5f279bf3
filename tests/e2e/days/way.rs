//! A way to the API server that a test can block, and credentials that run out.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use messina_testbed::pki;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// A kubeconfig whose credentials are files beside it, as many tools write them.
pub(super) struct Credentials {
    folder: PathBuf,
    pki: PathBuf,
    versions: AtomicUsize,
}

impl Credentials {
    /// For a cluster of the testbed, named by its own kubeconfig. None, with the reason said, for other clusters.
    pub(super) fn new(of: &Path, test: &str) -> Option<Self> {
        let pki = of.parent().unwrap().to_owned();
        if !pki.join("ca.key").is_file() {
            eprintln!("skipped: certificates cannot be made for a cluster that the testbed does not run");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("messina-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Some(Self { folder, pki, versions: AtomicUsize::new(0) })
    }

    /// Puts a certificate of `user` in place that is valid for so long, at once.
    pub(super) fn certify(&self, user: &str, validity: Duration) {
        let (certificate, key) = pki::administrator(&self.pki, user, validity).unwrap();
        // Certificate and key change at once, as those of a mounted Secret do: a link is put in the place of another.
        let version = self.folder.join(format!("{}", self.versions.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("client.crt"), certificate).unwrap();
        fs::write(version.join("client.key"), key).unwrap();
        let new = self.folder.join("new");
        symlink(&version, &new).unwrap();
        fs::rename(&new, self.folder.join("current")).unwrap();
    }

    /// The kubeconfig; `server` is another way to the API server.
    pub(super) fn kubeconfig(&self, server: Option<&str>) -> PathBuf {
        let text = fs::read_to_string(self.pki.join("admin.kubeconfig")).unwrap();
        let mut config: Value = serde_saphyr::from_str(&text).unwrap();
        if let Some(server) = server {
            config["clusters"][0]["cluster"]["server"] = server.into();
        }
        config["users"][0]["user"] = json!({
            "client-certificate": "current/client.crt", "client-key": "current/client.key",
        });
        let file = self.folder.join("kubeconfig");
        fs::write(&file, serde_saphyr::to_string(&config).unwrap()).unwrap();
        file
    }

    /// Where the API server listens: an address with a port.
    pub(super) fn server(&self) -> String {
        let text = fs::read_to_string(self.pki.join("admin.kubeconfig")).unwrap();
        let config: Value = serde_saphyr::from_str(&text).unwrap();
        config["clusters"][0]["cluster"]["server"].as_str().unwrap().trim_start_matches("https://").to_owned()
    }

    /// What the API server was asked.
    pub(super) fn audit_log(&self) -> PathBuf {
        self.pki.parent().unwrap().join("audit.log")
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A way to the API server. While it is blocked, connections stand and nothing passes.
pub(super) struct Way {
    pub(super) address: String,
    is_open: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Way {
    pub(super) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (is_open, gate) = watch::channel(true);
        let server: Arc<str> = server.into();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((inside, _)) = listener.accept().await {
                let (server, gate) = (Arc::clone(&server), gate.clone());
                connections.spawn(async move {
                    let Ok(outside) = TcpStream::connect(&*server).await else { return };
                    let ((read, write), (back, forth)) = (inside.into_split(), outside.into_split());
                    tokio::join!(pass(read, forth, gate.clone()), pass(back, write, gate));
                });
            }
        });
        Self { address, is_open, _tasks: tasks }
    }

    pub(super) fn block(&self) {
        self.is_open.send_replace(false);
    }

    pub(super) fn unblock(&self) {
        self.is_open.send_replace(true);
    }
}

/// Passes on what comes, while the way is open.
async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut gate: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if gate.wait_for(|is_open| *is_open).await.is_err() || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
