//! Nodes as processes on their own loopback addresses, and requests of tests.

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicU8, Ordering},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_scylla-sim");
/// The timeout of all waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

static CLUSTERS: AtomicU8 = AtomicU8::new(1);

/// Addresses and a folder for the nodes of one test.
pub(crate) struct Cluster {
    subnet: [u8; 3],
    folder: PathBuf,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        // Concurrent runs have different addresses. They begin at 100, because tests of other programs use lower ones.
        let subnet = [127, 100 + (process % 150) as u8, number];
        // In memory, because nodes wait for their disk often.
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let folder = parent.join(format!("scylla-sim-{process}-{number}"));
        fs::create_dir_all(&folder).unwrap();
        Self { subnet, folder }
    }

    pub(crate) fn address(&self, number: u8) -> IpAddr {
        let [a, b, c] = self.subnet;
        [a, b, c, number].into()
    }

    /// A node that is not started yet. It seeds from the first one.
    pub(crate) fn node(&self, number: u8) -> Node {
        let folder = self.folder.join(number.to_string());
        fs::create_dir_all(&folder).unwrap();
        Node {
            address: self.address(number),
            seeds: self.address(1).to_string(),
            folder,
            yaml: json!({ "cluster_name": "sim", "endpoint_snitch": "GossipingPropertyFileSnitch" }),
            arguments: Vec::new(),
            child: None,
        }
    }

    /// Nodes 1 to `size`, all in the ring and seen by all.
    pub(crate) fn ring(&self, size: u8) -> Vec<Node> {
        let mut nodes: Vec<Node> = Vec::new();
        for number in 1..=size {
            let mut node = self.node(number);
            node.start();
            node.becomes("NORMAL");
            nodes.push(node);
            all_see_all(&nodes);
        }
        nodes
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Waits until every node reports all of them up, and no others in the ring.
pub(crate) fn all_see_all(nodes: &[Node]) {
    let mut addresses: Vec<String> = nodes.iter().map(|node| node.address.to_string()).collect();
    addresses.sort();
    for node in nodes {
        until(&format!("{} sees all", node.address), || {
            (node.live() == addresses && node.ring().len() == addresses.len())
                .then_some(())
                .ok_or_else(|| format!("live {:?}, ring {:?}", node.live(), node.ring()))
        });
    }
}

/// Waits for a state, and fails with the last one.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(seen) => return seen,
            Err(instead) if Instant::now() > deadline => panic!("waited in vain for: {what}; instead: {instead}"),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// A node, running or not.
pub(crate) struct Node {
    pub(crate) address: IpAddr,
    pub(crate) seeds: String,
    pub(crate) folder: PathBuf,
    pub(crate) yaml: Value,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Node {
    pub(crate) fn with(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub(crate) fn without_arguments(&mut self) {
        self.arguments.clear();
    }

    pub(crate) fn seeded_by(mut self, seeds: &[IpAddr]) -> Self {
        self.seeds = seeds.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        self
    }

    pub(crate) fn configured(mut self, entry: &str, value: Value) -> Self {
        self.yaml[entry] = value;
        self
    }

    pub(crate) fn workdir(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the node as the image's entrypoint does.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.address);
        let yaml = self.folder.join("scylla.yaml");
        // JSON is YAML.
        fs::write(&yaml, self.yaml.to_string()).unwrap();
        fs::write(self.folder.join("cassandra-rackdc.properties"), "dc=dc1\nrack=a\n").unwrap();
        fs::create_dir_all(self.workdir()).unwrap();
        let log = fs::File::options().create(true).append(true).open(self.log_file()).unwrap();
        let address = self.address;
        let child = Command::new(PROGRAM)
            .args(["docker-entrypoint.py", "", "--developer-mode=1", "--overprovisioned"])
            .arg(format!("--options-file={}", yaml.display()))
            .arg(format!("--workdir={}", self.workdir().display()))
            .arg(format!("--seeds={}", self.seeds))
            .arg(format!("--listen-address={address}"))
            .arg(format!("--api-address={address}"))
            // On a busy host a node may not respond for a second or two.
            .args(["--sim-gossip-interval=100ms", "--sim-failure-timeout=4s", "--sim-join-timeout=16s"])
            .args(["--sim-bootstrap-duration=200ms", "--sim-decommission-duration=200ms"])
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    fn log_file(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Kills the node.
    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Stops the node and returns its exit status.
    pub(crate) fn stop(&mut self) -> ExitStatus {
        let id = i32::try_from(self.child.as_ref().unwrap().id()).unwrap();
        kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
        self.ended()
    }

    /// Waits until the node has terminated.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let address = self.address;
        // The process belongs to the node until it ends, so that a failing test does not leave it behind.
        let child = self.child.as_mut().unwrap();
        let status = until(&format!("the end of {address}"), || match child.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err("it runs".to_owned()),
        });
        self.child = None;
        status
    }

    /// Waits until the node has terminated, and checks the logged cause.
    pub(crate) fn fails(&mut self, why: &str) {
        let status = self.ended();
        assert!(!status.success(), "{status}");
        let log = self.log();
        let last = log.lines().rev().take(3).collect::<Vec<_>>().join("\n");
        assert!(last.contains(why), "no {why:?} in:\n{log}");
    }

    pub(crate) fn becomes(&self, mode: &str) {
        until(&format!("{} becomes {mode}", self.address), || {
            let answer = self.ask("GET", "/storage_service/operation_mode", "");
            let seen = answer.map(|(_, body)| body).unwrap_or_else(|error| error);
            if seen == format!("{mode:?}") { Ok(()) } else { Err(format!("{seen}\n{}", self.log())) }
        });
    }

    /// One HTTP exchange with the REST API.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Result<(u16, String), String> {
        http(SocketAddr::new(self.address, 10000), method, path, body)
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask("GET", path, "").unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }

    /// Sends a POST request and returns the message of a refusal.
    pub(crate) fn post(&self, path: &str) -> Result<(), String> {
        let (status, body) = self.ask("POST", path, "")?;
        if status == 200 { Ok(()) } else { Err(body) }
    }

    pub(crate) fn host_id(&self) -> String {
        self.get("/storage_service/hostid/local").as_str().unwrap().to_owned()
    }

    fn addresses(&self, path: &str) -> Vec<String> {
        let answer =
            self.ask("GET", path, "").ok().and_then(|(_, body)| serde_json::from_str::<Vec<String>>(&body).ok());
        let mut addresses = answer.unwrap_or_default();
        addresses.sort();
        addresses
    }

    pub(crate) fn live(&self) -> Vec<String> {
        self.addresses("/gossiper/endpoint/live/")
    }

    pub(crate) fn down(&self) -> Vec<String> {
        self.addresses("/gossiper/endpoint/down/")
    }

    pub(crate) fn joining(&self) -> Vec<String> {
        self.addresses("/storage_service/nodes/joining")
    }

    /// Host IDs of the ring.
    pub(crate) fn ring(&self) -> Vec<String> {
        let answer = self.ask("GET", "/storage_service/host_id", "").ok();
        let pairs: Vec<Value> = answer.and_then(|(_, body)| serde_json::from_str(&body).ok()).unwrap_or_default();
        pairs.iter().map(|pair| pair["value"].as_str().unwrap().to_owned()).collect()
    }

    pub(crate) fn tokens(&self, address: IpAddr) -> Value {
        self.get(&format!("/storage_service/tokens/{address}"))
    }

    pub(crate) fn sees_down(&self, other: &Node) {
        let address = other.address.to_string();
        until(&format!("{} sees {address} down", self.address), || {
            let (live, down) = (self.live(), self.down());
            if down.contains(&address) && !live.contains(&address) {
                Ok(())
            } else {
                Err(format!("{live:?}, {down:?}"))
            }
        });
    }

    pub(crate) fn sees_up(&self, other: &Node) {
        let address = other.address.to_string();
        until(&format!("{} sees {address} up", self.address), || {
            if self.live().contains(&address) { Ok(()) } else { Err(format!("{:?}", self.live())) }
        });
    }

    /// Returns the output of `scylla sstable query`, as the bootstrap barrier runs it.
    pub(crate) fn bootstrapped(&self) -> Option<String> {
        let pattern = self.workdir().join("data/system");
        let tables = fs::read_dir(pattern).into_iter().flatten().flatten();
        let files = tables.flat_map(|table| fs::read_dir(table.path()).unwrap().flatten().map(|file| file.path()));
        let files: Vec<PathBuf> = files.filter(|file| file.to_string_lossy().ends_with("-Data.db")).collect();
        let output = Command::new(PROGRAM)
            .args(["scylla", "sstable", "query", "--system-schema", "--keyspace=system", "--table=local"])
            .args(["--output-format=json", "--query=SELECT bootstrapped FROM scylla_sstable.local"])
            .arg(format!("--scylla-data-dir={}", self.workdir().join("data").display()))
            .args(files)
            .output()
            .unwrap();
        let rows: Vec<Value> = serde_json::from_slice(&output.stdout).ok()?;
        rows.first().and_then(|row| row["bootstrapped"].as_str()).map(str::to_owned)
    }

    /// Runs `nodetool` or `simctl` on the node.
    pub(crate) fn tool(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg(name).args(["-h", &self.address.to_string()]).args(arguments);
        command.output().unwrap()
    }

    pub(crate) fn simctl(&self, arguments: &[&str]) {
        let output = self.tool("simctl", arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if thread::panicking() {
            println!("--- log of {}\n{}", self.address, self.log());
        }
    }
}

/// One HTTP exchange.
pub(crate) fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, String), String> {
    let describe = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(describe)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(describe)?;
    exchange(&mut stream, &request(address, method, path, "", body)).map_err(describe)
}

pub(crate) fn request(address: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

/// Sends a request and reads the response to the end of the connection.
pub(crate) fn exchange(stream: &mut (impl Read + Write), request: &str) -> std::io::Result<(u16, String)> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer)
        && answer.is_empty()
    {
        return Err(error);
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| std::io::Error::other("no answer"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| std::io::Error::other("no status"))?, body.to_owned()))
}

/// The files below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}
