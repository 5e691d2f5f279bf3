//! A proxy to the API server that a test can block, and credentials that expire.

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

/// A kubeconfig that refers to files with credentials, as many tools write it.
pub(super) struct Credentials {
    folder: PathBuf,
    pki: PathBuf,
    versions: AtomicUsize,
}

impl Credentials {
    /// Creates credentials for a cluster of the testbed, by its kubeconfig. Returns none, and prints why, for other
    /// clusters.
    pub(super) fn new(of: &Path, test: &str) -> Option<Self> {
        let pki = of.parent().unwrap().to_owned();
        if !pki.join("ca.key").is_file() {
            eprintln!("skipped: the testbed cannot sign certificates for an existing cluster");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("messina-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Some(Self { folder, pki, versions: AtomicUsize::new(0) })
    }

    /// Replaces the certificate by one of `user` with this validity, atomically.
    pub(super) fn certify(&self, user: &str, validity: Duration) {
        let (certificate, key) = pki::administrator(&self.pki, user, validity).unwrap();
        // Certificate and key change at once, as in a mounted Secret: a symbolic link is replaced.
        let version = self.folder.join(format!("{}", self.versions.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("client.crt"), certificate).unwrap();
        fs::write(version.join("client.key"), key).unwrap();
        let new = self.folder.join("new");
        symlink(&version, &new).unwrap();
        fs::rename(&new, self.folder.join("current")).unwrap();
    }

    /// The kubeconfig, optionally with another URL of the API server.
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

    /// The address and port of the API server.
    pub(super) fn server(&self) -> String {
        let text = fs::read_to_string(self.pki.join("admin.kubeconfig")).unwrap();
        let config: Value = serde_saphyr::from_str(&text).unwrap();
        config["clusters"][0]["cluster"]["server"].as_str().unwrap().trim_start_matches("https://").to_owned()
    }

    /// The audit log.
    pub(super) fn audit_log(&self) -> PathBuf {
        self.pki.parent().unwrap().join("audit.log")
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A TCP proxy to the API server. While it is blocked, connections stay open and no data passes.
pub(super) struct Proxy {
    pub(super) address: String,
    is_open: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Proxy {
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

/// Forwards data while the proxy is not blocked.
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
