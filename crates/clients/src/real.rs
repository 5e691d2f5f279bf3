//! Tests of the clients with real programs. MESSINA_TEST_ETCD and MESSINA_TEST_ETCDBRCTL hold the paths of etcd and of
//! etcd-backup-restore; without them the tests are skipped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    env, fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use tokio::{
    process::{Child, Command},
    time::sleep,
};

use crate::{
    backup_restore::{self, LatestSnapshots, Sidecar, SnapshotKind},
    etcd::{self, AlarmKind, Code, Etcd, Tls},
    fakes::{CertificateAuthority, Identity, NAME, resolver},
};

const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the program whose path an environment variable holds.
fn program(variable: &str) -> Option<PathBuf> {
    let path = env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        println!("skipped: {variable} does not name a program");
    }
    path
}

/// A temporary directory, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("messina-clients-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }

    fn write_identity(&self, name: &str, (certificate, key): &Identity) -> (String, String) {
        (self.write(&format!("{name}.crt"), certificate), self.write(&format!("{name}.key"), key))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.0.join("log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            println!("{}", lines[lines.len().saturating_sub(20)..].join("\n"));
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns a port at which no program listens. It is outside of the ephemeral range, so that the system does not
/// assign it to another program before it is used.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 1_000).unwrap() * 10;
    loop {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed);
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn run(program: &Path, folder: &Folder, arguments: &[String]) -> Child {
    let log = fs::File::options().create(true).append(true).open(folder.0.join("log")).unwrap();
    Command::new(program)
        .args(arguments)
        .env("HOME", &folder.0)
        .env("ETCD_CONF", folder.0.join("etcd.conf.yaml"))
        .env("POD_NAME", "main-0")
        .env("POD_NAMESPACE", "default")
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// Starts an etcd with one member and returns its client port.
fn start_etcd(program: &Path, folder: &Folder, scheme: &str, more: &[String]) -> (Child, u16) {
    let (clients, peers) = (free_port(), free_port());
    let mut arguments = vec![
        "--name=main-0".to_owned(),
        format!("--data-dir={}", folder.0.join("data").display()),
        format!("--listen-client-urls={scheme}://127.0.0.1:{clients}"),
        format!("--advertise-client-urls={scheme}://{NAME}:{clients}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peers}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{peers}"),
        format!("--initial-cluster=main-0=http://127.0.0.1:{peers}"),
    ];
    arguments.extend_from_slice(more);
    (run(program, folder, &arguments), clients)
}

async fn until_healthy(etcd: &Etcd) {
    let started = Instant::now();
    loop {
        match etcd.is_healthy().await {
            Ok(true) => return,
            other => assert!(started.elapsed() < LONG_TIMEOUT, "etcd does not become healthy: {other:?}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn etcd_is_compacted_and_defragmented() {
    let Some(program) = program("MESSINA_TEST_ETCD") else { return };
    let folder = Folder::new("etcd");
    let quota = "--quota-backend-bytes=16000000".to_owned();
    let (mut process, port) = start_etcd(&program, &folder, "http", &[quota]);
    let etcd = Etcd::new(&format!("http://{NAME}:{port}"), None, &resolver(local(port))).unwrap();
    until_healthy(&etcd).await;

    let [member] = &etcd.members().await.unwrap()[..] else { panic!("one member was started") };
    assert_eq!((member.name.as_str(), member.is_learner), ("main-0", false));
    assert_eq!(member.client_urls, [format!("http://{NAME}:{port}")]);
    let before = etcd.status().await.unwrap();
    assert_eq!((before.member_id, before.leader), (member.id, Some(member.id)));
    assert!(before.version.starts_with("3.") && before.raft_index > 0 && before.raft_term > 0, "{before:?}");
    assert!(before.raft_applied_index > 0 && before.cluster_id != 0 && before.errors.is_empty(), "{before:?}");

    for _ in 0..50 {
        etcd.put(b"key", &[7; 100_000]).await.unwrap();
    }
    let started = Instant::now();
    // The size of the database changes shortly after the write.
    let full = loop {
        let status = etcd.status().await.unwrap();
        if status.db_size >= 5_000_000 && status.db_size_in_use >= 5_000_000 {
            break status;
        }
        assert!(started.elapsed() < LONG_TIMEOUT, "{status:?}");
    };
    assert_eq!(full.revision, before.revision + 50);
    etcd.compact(full.revision, true).await.unwrap();
    let again = etcd.compact(full.revision, false).await.unwrap_err();
    assert!(matches!(again, etcd::Error::AlreadyCompacted { .. }), "{again:?}");
    let future = etcd.compact(full.revision + 1, false).await.unwrap_err();
    assert!(matches!(future, etcd::Error::FutureRevision { .. }), "{future:?}");
    etcd.defragment(LONG_TIMEOUT).await.unwrap();
    let small = etcd.status().await.unwrap();
    assert!(small.db_size < 1_000_000, "{small:?}");

    // Fill the database up to its quota.
    let started = Instant::now();
    let refused = loop {
        match etcd.put(b"key", &[7; 1_000_000]).await {
            Ok(()) => assert!(started.elapsed() < LONG_TIMEOUT),
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, etcd::Error::ErrorResponse { code: Code::ResourceExhausted, .. }), "{refused:?}");
    let alarms = etcd.alarms().await.unwrap();
    assert!(matches!(alarms[..], [alarm] if alarm.kind == AlarmKind::NoSpace && alarm.member_id == member.id));
    assert!(!etcd.is_healthy().await.unwrap());
    assert!(!etcd.status().await.unwrap().errors.is_empty());

    process.kill().await.unwrap();
    let error = etcd.status().await.unwrap_err();
    assert!(matches!(error, etcd::Error::NotSent { .. }), "{error:?}");
}

#[tokio::test]
async fn etcd_verifies_the_client_certificate() {
    let Some(program) = program("MESSINA_TEST_ETCD") else { return };
    let folder = Folder::new("etcd-tls");
    let (ours, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let (certificate, key) = folder.write_identity("server", &ours.issue(NAME));
    let ca_bundle = folder.write("ca.crt", &ours.pem());
    let arguments = [
        "--client-cert-auth".to_owned(),
        format!("--trusted-ca-file={ca_bundle}"),
        format!("--cert-file={certificate}"),
        format!("--key-file={key}"),
    ];
    let (_process, port) = start_etcd(&program, &folder, "https", &arguments);
    let etcd = |authority: &CertificateAuthority, identity: Option<Identity>| {
        let tls = Tls { ca_bundle: authority.pem(), client_certificate: identity };
        Etcd::new(&format!("https://{NAME}:{port}"), Some(&tls), &resolver(local(port))).unwrap()
    };
    until_healthy(&etcd(&ours, Some(ours.issue("messina")))).await;
    for identity in [None, Some(other.issue("messina")), Some(ours.issue_expired("messina"))] {
        let error = etcd(&ours, identity).status().await.unwrap_err();
        assert!(matches!(error, etcd::Error::ClientCertificateRejected { .. }), "{error:?}");
    }
    let error = etcd(&other, Some(ours.issue("messina"))).status().await.unwrap_err();
    assert!(matches!(error, etcd::Error::NotTrusted { .. }), "{error:?}");
    let plain = Etcd::new(&format!("http://{NAME}:{port}"), None, &resolver(local(port))).unwrap();
    let error = plain.status().await.unwrap_err();
    assert!(matches!(error, etcd::Error::NoResponse { .. }), "{error:?}");
}

/// Starts a sidecar for the etcd at this port and returns the port of the sidecar.
fn start_sidecar(program: &Path, folder: &Folder, etcd: u16, more: &[String]) -> (Child, u16) {
    let port = free_port();
    let path = |name: &str| folder.0.join(name).display().to_string();
    let mut arguments = vec![
        "server".to_owned(),
        format!("--endpoints=http://127.0.0.1:{etcd}"),
        format!("--service-endpoints=http://127.0.0.1:{etcd}"),
        format!("--server-port={port}"),
        format!("--data-dir={}", path("data")),
        format!("--restoration-temp-snapshots-dir={}", path("restore")),
        format!("--snapstore-temp-directory={}", path("snapshots")),
        "--insecure-transport=true".to_owned(),
        "--insecure-skip-tls-verify=true".to_owned(),
        "--schedule=0 0 1 1 *".to_owned(),
        "--defragmentation-schedule=0 0 1 1 *".to_owned(),
        "--delta-snapshot-period=5m".to_owned(),
        "--storage-provider=Local".to_owned(),
        format!("--store-container={}", path("store")),
        "--store-prefix=main".to_owned(),
    ];
    for name in ["restore", "snapshots", "store"] {
        fs::create_dir_all(folder.0.join(name)).unwrap();
    }
    let config = format!(
        "name: main-0\ndata-dir: {}\ninitial-cluster: main-0=http://127.0.0.1:1\ninitial-cluster-token: test\n\
         advertise-client-urls:\n  main-0:\n  - http://127.0.0.1:{etcd}\n\
         initial-advertise-peer-urls:\n  main-0:\n  - http://127.0.0.1:1\n",
        path("data")
    );
    folder.write("etcd.conf.yaml", config.as_bytes());
    arguments.extend_from_slice(more);
    (run(program, folder, &arguments), port)
}

/// Takes a full snapshot as soon as the sidecar is ready.
async fn first_snapshot(sidecar: &Sidecar) -> backup_restore::Snapshot {
    let started = Instant::now();
    loop {
        match sidecar.take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await {
            Ok(snapshot) => return snapshot.unwrap(),
            Err(error) => assert!(started.elapsed() < LONG_TIMEOUT && !error.is_permanent(), "{error:?}"),
        }
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn sidecar_takes_full_delta_and_final_snapshots() {
    let Some((etcd_program, program)) = program("MESSINA_TEST_ETCD").zip(program("MESSINA_TEST_ETCDBRCTL")) else {
        return;
    };
    let folder = Folder::new("sidecar");
    let (mut etcd_process, etcd_port) = start_etcd(&etcd_program, &folder, "http", &[]);
    let etcd = Etcd::new(&format!("http://127.0.0.1:{etcd_port}"), None, &resolver(local(etcd_port))).unwrap();
    until_healthy(&etcd).await;
    let (_process, port) = start_sidecar(&program, &folder, etcd_port, &[]);
    let sidecar = Sidecar::new(&format!("http://{NAME}:{port}"), None, &resolver(local(port))).unwrap();
    let first = first_snapshot(&sidecar).await;
    assert_eq!((first.kind, first.is_final, first.start_revision), (Some(SnapshotKind::Full), false, 0));
    assert_eq!(first.last_revision, etcd.status().await.unwrap().revision);
    assert_eq!(sidecar.latest_snapshots().await.unwrap().full.unwrap().name, first.name);

    assert_eq!(sidecar.take_snapshot(SnapshotKind::Delta, false, LONG_TIMEOUT).await.unwrap(), None);
    etcd.put(b"key", b"value").await.unwrap();
    let started = Instant::now();
    // The sidecar observes a change shortly after the write.
    let delta = loop {
        match sidecar.take_snapshot(SnapshotKind::Delta, false, LONG_TIMEOUT).await.unwrap() {
            Some(delta) => break delta,
            None => assert!(started.elapsed() < LONG_TIMEOUT),
        }
    };
    assert_eq!((delta.kind, delta.last_revision), (Some(SnapshotKind::Delta), first.last_revision + 1));
    let latest: LatestSnapshots = sidecar.latest_snapshots().await.unwrap();
    assert_eq!((latest.full.unwrap().name, latest.delta.unwrap().name), (first.name.clone(), delta.name));

    let last = sidecar.take_snapshot(SnapshotKind::Full, true, LONG_TIMEOUT).await.unwrap().unwrap();
    assert!(last.is_final && last.name.ends_with(".final"), "{last:?}");
    assert_eq!(sidecar.take_snapshot(SnapshotKind::Full, true, LONG_TIMEOUT).await.unwrap().unwrap(), last);

    etcd_process.kill().await.unwrap();
    let error = sidecar.take_snapshot(SnapshotKind::Full, false, LONG_TIMEOUT).await.unwrap_err();
    assert!(matches!(error.code(), "ERR_SNAPSHOT_FAILED" | "ERR_SNAPSHOT_SIDECAR_NOT_READY"), "{error:?}");
    let error = sidecar.take_snapshot(SnapshotKind::Full, false, Duration::from_millis(300)).await.unwrap_err();
    assert!(matches!(error, backup_restore::Error::NoResponse { .. }), "{error:?}");
}

#[tokio::test]
async fn certificate_of_the_sidecar_is_verified() {
    let Some((etcd_program, program)) = program("MESSINA_TEST_ETCD").zip(program("MESSINA_TEST_ETCDBRCTL")) else {
        return;
    };
    let folder = Folder::new("sidecar-tls");
    let (_etcd, etcd_port) = start_etcd(&etcd_program, &folder, "http", &[]);
    let (ours, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let (certificate, key) = folder.write_identity("server", &ours.issue(NAME));
    let arguments = [format!("--server-cert={certificate}"), format!("--server-key={key}")];
    let (_process, port) = start_sidecar(&program, &folder, etcd_port, &arguments);
    let sidecar = |authority: &CertificateAuthority, name: &str| {
        Sidecar::new(&format!("https://{name}:{port}"), Some(&authority.pem()), &resolver(local(port))).unwrap()
    };
    first_snapshot(&sidecar(&ours, NAME)).await;
    for untrusted in [sidecar(&other, NAME), sidecar(&ours, "other-client.default")] {
        let error = untrusted.latest_snapshots().await.unwrap_err();
        assert!(matches!(error, backup_restore::Error::NotTrusted { .. }), "{error:?}");
    }
    let plain = Sidecar::new(&format!("http://{NAME}:{port}"), None, &resolver(local(port))).unwrap();
    assert_eq!(plain.latest_snapshots().await.unwrap_err().code(), "ERR_SNAPSHOT_REQUEST_REFUSED");
}
