//! Downloads from a server on loopback, good and bad ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead, Read},
    net::{Shutdown, SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use flate2::{Compression, write::GzEncoder};
use tokio::net::TcpSocket;

use super::*;
use crate::{deadline::Moment, progress::Steps};

const LIMITS: DownloadLimits = DownloadLimits {
    connect: Duration::from_secs(5),
    // Longer than a busy host takes to answer; tests of a server that is silent have limits of their own.
    stall: Duration::from_secs(60),
    total: Duration::from_secs(120),
};

const IMPATIENT: DownloadLimits = DownloadLimits { stall: Duration::from_millis(300), ..LIMITS };

/// A release site on loopback, gone with the process.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Site {
    /// Answers each request with what `answer` writes, given the path and the connection.
    fn new(answer: impl Fn(&str, &mut std::net::TcpStream) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counter = connections.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head: Vec<String> = lines.map_while(|line| line.ok()).take_while(|line| !line.is_empty()).collect();
                let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
                answer(path, &mut stream);
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
        Self { address, connections }
    }

    /// Serves `content` for every path.
    pub(crate) fn serving(content: Vec<u8>) -> Self {
        Self::new(move |_, stream| send(stream, &content, content.len()))
    }

    /// How many connections there were.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn archive(&self, sha512: &str) -> ServerArchive {
        ServerArchive::new(format!("http://{}/server.tar.gz", self.address), sha512)
    }
}

/// Sends a head that announces `length` bytes, and `content`. The client may be gone.
fn send(stream: &mut std::net::TcpStream, content: &[u8], length: usize) {
    let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes());
    let _ = stream.write_all(content);
}

fn answer(head: &'static str) -> impl Fn(&str, &mut std::net::TcpStream) {
    move |_, stream| {
        let _ = stream.write_all(format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n").as_bytes());
    }
}

/// A server archive with these programs, and its SHA-512. The content of a program is its name.
pub(crate) fn server_archive(programs: &[&str]) -> (Vec<u8>, String) {
    let mut archive = tar::Builder::new(GzEncoder::new(vec![], Compression::fast()));
    let beside = ["kubernetes/LICENSES/kubelet", "kubernetes/server/bin/kubelet.tar", "kubernetes/server/bin/mounter"];
    let programs = programs.iter().map(|name| format!("kubernetes/server/bin/{name}"));
    for path in beside.into_iter().map(str::to_owned).chain(programs) {
        let name = path.rsplit('/').next().unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(name.len() as u64);
        archive.append_data(&mut header, &path, name.as_bytes()).unwrap();
    }
    let bytes = archive.into_inner().unwrap().finish().unwrap();
    let sum = Sha512::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    (bytes, sum)
}

/// An empty folder for one test.
pub(crate) fn scratch(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("messina-release-test-{test}-{}", std::process::id()));
    cache::remove(&folder).unwrap();
    fs::create_dir_all(&folder).unwrap();
    folder
}

const PROGRAMS: [&str; 2] = ["kubelet", "kubectl"];

/// The names of the files that the download leaves, or why there are none; and how long it took.
fn unpack(test: &str, archive: &ServerArchive, limits: DownloadLimits) -> (Result<Vec<String>>, Duration) {
    let scratch = scratch(test);
    let (dir, steps, started) = (scratch.join("programs"), Steps::quiet(), Instant::now());
    let outcome = cache::once(&dir, &steps, "downloading", |partial| {
        archive.unpack(&PROGRAMS, partial, limits, &steps.begin("downloading"))
    });
    let took = started.elapsed();
    let mut files = vec![];
    for file in fs::read_dir(&dir).into_iter().flatten().flatten() {
        let name = file.file_name().to_string_lossy().into_owned();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o755, "{name}");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), name, "the content of {name}");
        files.push(name);
    }
    if outcome.is_err() {
        let left: Vec<_> = fs::read_dir(&scratch).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["programs.lock"], "nothing is left of a failed download");
    }
    files.sort();
    cache::remove(&scratch).unwrap();
    (outcome.map(|()| files), took)
}

/// Why the download failed.
fn failure(test: &str, archive: &ServerArchive, limits: DownloadLimits) -> ReleaseError {
    match unpack(test, archive, limits).0 {
        Err(Error::Release(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn programs_of_a_verified_archive_are_unpacked_and_nothing_else() {
    let (content, sum) = server_archive(&["kubectl", "kube-apiserver", "kubelet"]);
    let site = Site::serving(content);
    let (files, _) = unpack("good", &site.archive(&sum), LIMITS);
    assert_eq!(files.unwrap(), ["kubectl", "kubelet"]);
    assert_eq!(site.connections(), 1);
}

#[tokio::test]
async fn a_download_works_on_the_thread_of_a_runtime() {
    let (content, sum) = server_archive(&PROGRAMS);
    let (files, _) = unpack("runtime", &Site::serving(content).archive(&sum), LIMITS);
    assert_eq!(files.unwrap().len(), 2);
}

#[test]
fn a_wrong_checksum_is_reported_with_both_sums_and_nothing_is_unpacked() {
    let (content, sum) = server_archive(&PROGRAMS);
    let pinned = "0".repeat(128);
    let error = failure("sum", &Site::serving(content).archive(&pinned), LIMITS);
    assert!(matches!(error, ReleaseError::Checksum { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("expected SHA-512 {pinned}, received {sum}")), "{text}");
}

#[test]
fn half_a_file_is_reported_with_its_length_and_both_sums() {
    let (content, sum) = server_archive(&PROGRAMS);
    let (half, length) = (content[..content.len() / 2].to_vec(), content.len());
    let counts = format!("after {} of {length} bytes", half.len());
    let error = failure("half", &Site::new(move |_, stream| send(stream, &half, length)).archive(&sum), LIMITS);
    assert!(matches!(error, ReleaseError::Incomplete { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&counts) && text.contains(&format!("expected SHA-512 {sum}, received ")), "{text}");
}

#[test]
fn half_a_file_of_unannounced_length_fails_the_checksum() {
    let (content, sum) = server_archive(&PROGRAMS);
    let half = content[..content.len() / 2].to_vec();
    let site = Site::new(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        let _ = stream.write_all(&half);
    });
    let error = failure("unannounced", &site.archive(&sum), LIMITS);
    assert!(matches!(error, ReleaseError::Checksum { .. }), "{error}");
}

#[test]
fn an_archive_without_a_program_names_it() {
    let (content, sum) = server_archive(&["kubectl"]);
    let error = failure("missing", &Site::serving(content).archive(&sum), LIMITS);
    assert!(error.to_string().ends_with("does not contain kubelet"), "{error}");
}

#[test]
fn an_http_error_is_reported() {
    let error = failure("status", &Site::new(answer("404 Not Found")).archive(""), LIMITS);
    assert!(error.to_string().ends_with("was answered with 404 Not Found"), "{error}");
}

#[test]
fn redirects_to_another_server_and_to_a_path_are_followed() {
    let (content, sum) = server_archive(&PROGRAMS);
    let network = Site::new(move |path, stream| match path {
        "/file" => send(stream, &content, content.len()),
        _ => answer("302 Found\r\nLocation: /file")(path, stream),
    });
    let there = network.address;
    let site = Site::new(move |_, stream| {
        let head = format!("HTTP/1.1 301 Moved\r\nLocation: http://{there}/moved\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
    });
    let (files, _) = unpack("redirect", &site.archive(&sum), LIMITS);
    assert_eq!(files.unwrap().len(), 2);
    assert_eq!((site.connections(), network.connections()), (1, 2));
}

#[test]
fn endless_and_foreign_redirects_are_not_followed() {
    let endless = Site::new(answer("302 Found\r\nLocation: /again"));
    let error = failure("endless", &endless.archive(""), LIMITS);
    assert!(matches!(error, ReleaseError::Redirect { .. }), "{error}");
    assert_eq!(endless.connections(), 1 + REDIRECTS);
    for location in ["ftp://127.0.0.1/", "//127.0.0.1/", ""] {
        let head = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
        let site = Site::new(move |_, stream| drop(stream.write_all(head.as_bytes())));
        let error = failure("foreign", &site.archive(""), LIMITS);
        assert!(matches!(error, ReleaseError::Redirect { .. }), "{error}");
    }
}

/// Waits until the client has hung up.
fn wait_for_the_end(stream: &mut std::net::TcpStream) {
    let _ = stream.read(&mut [0]);
}

#[test]
fn a_server_that_never_answers_is_given_up() {
    let site = Site::new(|_, stream| wait_for_the_end(stream));
    let (outcome, took) = unpack("silent", &site.archive(""), IMPATIENT);
    assert!(matches!(outcome, Err(Error::Release(ReleaseError::Stalled { .. }))), "{outcome:?}");
    assert!(IMPATIENT.stall <= took && took < IMPATIENT.total, "{took:?}");
}

#[test]
fn a_download_that_stalls_is_given_up() {
    let (content, sum) = server_archive(&PROGRAMS);
    let site = Site::new(move |_, stream| {
        send(stream, &content[..100], content.len());
        wait_for_the_end(stream);
    });
    let error = failure("stalled", &site.archive(&sum), IMPATIENT);
    assert!(matches!(error, ReleaseError::Stalled { .. }), "{error}");
}

#[test]
fn a_download_that_trickles_is_given_up() {
    let site = Site::new(|_, stream| {
        send(stream, b"", 1_000_000);
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let limits = DownloadLimits { stall: LIMITS.total, total: Duration::from_millis(500), ..LIMITS };
    let error = failure("trickle", &site.archive(""), limits);
    assert!(matches!(error, ReleaseError::Slow { .. }), "{error}");
}

/// The time within which a user has to learn that the release site cannot be reached.
const NOTICED: Duration = Duration::from_secs(2);

fn assert_unreachable(test: &str, url: String) -> String {
    let began = Moment::now();
    let (outcome, _) = unpack(test, &ServerArchive::new(url, ""), DownloadLimits::default());
    let took = began.usable();
    assert!(took < NOTICED, "{took:?}");
    match outcome {
        Err(Error::Release(error @ ReleaseError::Unreachable { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refused_connection_is_noticed_within_two_seconds() {
    // A bound port, so that no other program gets it, on which no program listens.
    let taken = TcpSocket::new_v4().unwrap();
    taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = taken.local_addr().unwrap();
    let text = assert_unreachable("refused", format!("http://{address}/"));
    assert!(text.contains("Connection refused"), "{text}");
}

#[test]
fn a_name_that_cannot_be_resolved_is_noticed_within_two_seconds() {
    // Longer than any name may be, so no name server is asked.
    assert_unreachable("name", format!("http://{}.invalid/", "x".repeat(64)));
}

#[test]
fn a_server_without_tls_is_noticed_within_two_seconds() {
    let site = Site::new(answer("400 Bad Request"));
    assert_unreachable("tls", format!("https://{}/", site.address));
}

#[test]
fn what_is_no_url_is_unreachable() {
    assert_unreachable("scheme", "file:///etc/passwd".into());
    assert_unreachable("text", "not a URL".into());
}

#[tokio::test]
async fn an_address_that_drops_packets_is_noticed_within_two_seconds() {
    // Linux drops connection requests to a socket whose backlog is full.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = vec![];
    while let Ok(stream) = timeout(Duration::from_millis(500), TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
        assert!(waiting.len() < 100, "the backlog should be full");
    }
    let url = format!("http://{address}/");
    let text = tokio::task::spawn_blocking(|| assert_unreachable("dropped", url)).await.unwrap();
    assert!(text.contains("no connection after 1.5 s"), "{text}");
}

#[test]
fn the_pinned_archive_follows_site_and_architecture() {
    let url = |site, architecture| ServerArchive::of(site, architecture).map(|archive| archive.url);
    let path = format!("{VERSION}/kubernetes-server-linux-");
    assert_eq!(url(SITE, "x86_64"), Some(format!("https://dl.k8s.io/{path}amd64.tar.gz")));
    assert_eq!(url("http://mirror/k8s/", "aarch64"), Some(format!("http://mirror/k8s/{path}arm64.tar.gz")));
    assert_eq!(url("", "x86_64"), None, "the user wants a build");
    assert_eq!(url(SITE, "s390x"), None, "no sum is pinned");
    for (.., sum) in ARCHIVES {
        assert!(sum.len() == 128 && sum.chars().all(|c| c.is_ascii_digit() || ('a'..='f').contains(&c)), "{sum}");
    }
}
