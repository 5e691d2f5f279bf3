//! The operator as a process, and its log.

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use messina_testbed::{
    deadline::{Deadline, Moment},
    harness,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::OnceCell,
};

use super::{LIMIT, await_that};

/// A running operator. It is killed when the test ends.
pub(crate) struct Operator {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    /// The address of its HTTP server, once that is known.
    address: OnceCell<String>,
    pub(crate) started: Moment,
}

impl Operator {
    /// Starts it for one namespace.
    pub(crate) fn start(kubeconfig: &Path, namespace: &str, more: &[&str]) -> Self {
        Self::start_for_all(kubeconfig, namespace, &[&["--namespace", namespace], more].concat())
    }

    /// Starts it for all namespaces, with its lease in one of them.
    pub(crate) fn start_for_all(kubeconfig: &Path, lease_namespace: &str, more: &[&str]) -> Self {
        Self::run(&mut Command::new(program()), kubeconfig, lease_namespace, more)
    }

    /// Starts it for all namespaces, with this file in place of /etc/hosts. The file may change later.
    pub(crate) fn start_with_hosts(kubeconfig: &Path, lease_namespace: &str, hosts: &Path, more: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        if !Uid::effective().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--mount", "--propagation=private", "sh", "-c", r#"mount --bind "$0" /etc/hosts && exec "$@""#]);
        Self::run(command.arg(hosts).arg(program()), kubeconfig, lease_namespace, more)
    }

    fn run(command: &mut Command, kubeconfig: &Path, lease_namespace: &str, more: &[&str]) -> Self {
        let started = Moment::now();
        let mut child = command
            .args(["operator", "--image=localhost/messina:test", "--listen=127.0.0.1:0", "--log-format=json"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--lease-namespace", lease_namespace])
            .args(more)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let (paper, ink) = (Arc::clone(&lines), BufReader::new(child.stderr.take().unwrap()));
        std::thread::spawn(move || {
            for line in ink.lines().map_while(Result::ok) {
                // Printed if the test fails.
                eprintln!("operator: {line}");
                paper.lock().unwrap().push(line);
            }
        });
        Self { child, lines, address: OnceCell::new(), started }
    }

    /// Its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How many lines it has written so far.
    pub(crate) fn mark(&self) -> usize {
        self.lines.lock().unwrap().len()
    }

    /// The log lines since the mark. A panic is not JSON, and fails the test.
    pub(crate) fn logged(&self, mark: usize) -> Vec<Value> {
        let lines = self.lines.lock().unwrap();
        lines[mark..]
            .iter()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not a log line: {line}")))
            .collect()
    }

    /// The messages of warnings and errors since the mark.
    pub(crate) fn warnings(&self, mark: usize) -> Vec<String> {
        let lines = self.logged(mark);
        let bad = lines.iter().filter(|line| line["level"] == "WARN" || line["level"] == "ERROR");
        bad.map(|line| format!("{} ({})", line["message"].as_str().unwrap_or_default(), line["problem"])).collect()
    }

    /// Waits until a log line since the mark contains these words. Returns the line.
    pub(crate) async fn await_log(&self, mark: usize, words: &str) -> Value {
        let deadline = Deadline::new(LIMIT);
        loop {
            let lines = self.logged(mark);
            let said = |line: &&Value| line["message"].as_str().is_some_and(|message| message.contains(words));
            if let Some(line) = lines.iter().find(said) {
                return line.clone();
            }
            assert!(deadline.left().is_some(), "the operator should log {words:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The response of its HTTP server to a GET request.
    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let logged = async || self.await_log(0, "serving").await["address"].as_str().unwrap().to_owned();
        let address = self.address.get_or_init(logged).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (code, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// Waits until a metric has this value; it is named with its labels.
    pub(crate) async fn await_metric(&self, metric: &str, value: &str) {
        await_that(&format!("{metric} {value}"), async || {
            let (_, text) = self.get("/metrics").await;
            let line = text.lines().find(|line| line.starts_with(metric)).unwrap_or("nothing");
            if line == format!("{metric} {value}") { Ok(()) } else { Err(line.to_owned()) }
        })
        .await;
    }

    /// Checks that the process has not ended.
    pub(crate) fn check_running(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "the operator ended");
        self.logged(0);
    }

    /// Stops it, and waits for its end. Returns its exit status, and the time that took without steal time.
    pub(crate) async fn stop(&mut self) -> (ExitStatus, Duration) {
        let get = Moment::now();
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM).unwrap();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, get.usable());
            }
            assert!(get.usable() < LIMIT, "the operator should end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        let _it_may_have_ended = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program() -> PathBuf {
    harness::program("messina").unwrap()
}
