//! Servers that tasks talk to as an etcd or as a backup sidecar. Most of them are hostile.

use std::{
    collections::HashMap,
    io::{self, Cursor},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use messina_api::druid::v1alpha1::TaskState;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// The length of the response of [`Behaviour::HugeAnswer`].
const HUGE: usize = 64 << 20;
/// The pause between two bytes of [`Behaviour::EndlessAnswer`].
const PAUSE: Duration = Duration::from_millis(100);
/// The timeout of a task that fails because of its server, in seconds.
const SHORT_DEADLINE: u32 = 3;
/// The timeout of a task whose Etcd is deleted while the task is in progress, in seconds.
const MEDIUM_DEADLINE: u32 = 6;
/// The timeout of a task that succeeds despite an outage of the API server, in seconds.
const LONG_DEADLINE: u32 = 60;

/// The behaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// It answers as etcd and its sidecar do.
    Benign,
    /// Its answer has 64 MiB.
    HugeAnswer,
    /// Its response is endless, one byte after the other.
    EndlessAnswer,
    /// It lists 250,000 members, which is longer than the operator reads.
    ManyMembers,
    /// It lists as many members as fit into what the operator reads.
    DenseMembers,
    /// Its response is not JSON and has many control characters.
    ControlCharacters,
    /// It accepts connections and never answers.
    Silent,
    /// The same, as an etcd whose Etcd is deleted while its task is in progress.
    SilentWithoutEtcd,
}

impl Behaviour {
    pub(super) const ALL: [Self; 8] = [
        Self::Benign,
        Self::HugeAnswer,
        Self::EndlessAnswer,
        Self::ManyMembers,
        Self::DenseMembers,
        Self::ControlCharacters,
        Self::Silent,
        Self::SilentWithoutEtcd,
    ];

    /// The tasks on an Etcd with such a server.
    pub(super) fn tasks(self) -> Vec<Task> {
        let task = |task_type, deadline, ends_as| Task { task_type, deadline, ends_as };
        match self {
            Self::Benign => vec![
                task("OnDemandSnapshot", LONG_DEADLINE, Some(TaskState::Succeeded)),
                task("Compact", LONG_DEADLINE, Some(TaskState::Succeeded)),
            ],
            Self::HugeAnswer | Self::ControlCharacters => {
                vec![task("OnDemandSnapshot", SHORT_DEADLINE, Some(TaskState::Failed))]
            }
            Self::ManyMembers | Self::DenseMembers => {
                vec![task("Defragment", SHORT_DEADLINE, Some(TaskState::Failed))]
            }
            // The operator waits a minute for the list of snapshots: these tasks are deleted meanwhile.
            Self::EndlessAnswer | Self::Silent => vec![task("OnDemandSnapshot", LONG_DEADLINE, None)],
            Self::SilentWithoutEtcd => vec![task("Defragment", MEDIUM_DEADLINE, Some(TaskState::Failed))],
        }
    }
}

/// A task on an Etcd.
pub(super) struct Task {
    pub(super) task_type: &'static str,
    /// In seconds.
    pub(super) deadline: u32,
    /// None if it is deleted while it waits for its server.
    pub(super) ends_as: Option<TaskState>,
}

/// A server of one behaviour.
struct Server {
    behaviour: Behaviour,
    port: u16,
    connections: Arc<Connections>,
}

/// Connections of the operator.
#[derive(Default)]
struct Connections {
    all: AtomicUsize,
    open: AtomicUsize,
}

/// A connection that is open until this is dropped.
struct Open(Arc<Connections>);

impl Open {
    fn new(connections: &Arc<Connections>) -> Self {
        connections.all.fetch_add(1, Ordering::SeqCst);
        connections.open.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(connections))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server of each behaviour.
pub(super) struct Servers {
    all: Vec<Server>,
    _listeners: JoinSet<()>,
}

impl Servers {
    pub(super) async fn start() -> Self {
        let (mut all, mut listeners) = (vec![], JoinSet::new());
        let snapshots = Arc::<Snapshots>::default();
        for behaviour in Behaviour::ALL {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let connections = Arc::<Connections>::default();
            let (await_metric, snapshots) = (Arc::clone(&connections), Arc::clone(&snapshots));
            listeners.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let (open, snapshots) = (Open::new(&await_metric), Arc::clone(&snapshots));
                    tokio::spawn(async move {
                        // The operator closes most connections.
                        let _ = serve(behaviour, stream, &snapshots).await;
                        drop(open);
                    });
                }
            });
            all.push(Server { behaviour, port, connections });
        }
        Self { all, _listeners: listeners }
    }

    fn server(&self, behaviour: Behaviour) -> &Server {
        self.all.iter().find(|server| server.behaviour == behaviour).unwrap()
    }

    /// The port of the server of this behaviour.
    pub(super) fn port(&self, behaviour: Behaviour) -> u16 {
        self.server(behaviour).port
    }

    /// The number of connections that it has accepted.
    pub(super) fn accepted(&self, behaviour: Behaviour) -> usize {
        self.server(behaviour).connections.all.load(Ordering::SeqCst)
    }

    /// The behaviours of servers to which connections are open, each with their number.
    pub(super) fn open(&self) -> Vec<(Behaviour, usize)> {
        let open = self.all.iter().map(|server| (server.behaviour, server.connections.open.load(Ordering::SeqCst)));
        open.filter(|(_, count)| *count > 0).collect()
    }
}

/// The last snapshot of each etcd cluster, by host. A snapshot whose response was lost is found here.
type Snapshots = Mutex<HashMap<String, Value>>;

async fn serve(behaviour: Behaviour, mut stream: TcpStream, snapshots: &Snapshots) -> io::Result<()> {
    match behaviour {
        Behaviour::Benign => {
            let mut first = [0; 2];
            // The client speaks first: a request, or the preface of HTTP/2.
            stream.peek(&mut first).await?;
            if &first == b"PR" {
                // A StatusResponse whose header says revision 7, of which nothing is to be compacted.
                return answer_grpc(stream, b"\x0a\x02\x18\x07").await;
            }
            let (host, path) = request(&mut stream).await?;
            let body = take_or_list(snapshots, &host, &path).to_string();
            stream.write_all(format!("{}{body}", head(body.len())).as_bytes()).await?;
            stream.shutdown().await
        }
        Behaviour::HugeAnswer => {
            request(&mut stream).await?;
            stream.write_all(head(HUGE).as_bytes()).await?;
            let snapshot = br#"{"snapName":"Full-00000000-00000001","kind":"Full"},"#;
            let chunk = snapshot.repeat((64 << 10) / snapshot.len());
            stream.write_all(br#"{"deltaSnapshots":["#).await?;
            for _ in 0..HUGE / chunk.len() {
                stream.write_all(&chunk).await?;
            }
            Ok(())
        }
        Behaviour::EndlessAnswer => {
            request(&mut stream).await?;
            stream.write_all(head(usize::MAX >> 1).as_bytes()).await?;
            loop {
                stream.write_all(b" ").await?;
                tokio::time::sleep(PAUSE).await;
            }
        }
        // A member without contents is the number of its field and a length of zero.
        Behaviour::ManyMembers => answer_grpc(stream, &[0x12, 0].repeat(250_000)).await,
        Behaviour::DenseMembers => answer_grpc(stream, &[0x12, 0].repeat(60_000)).await,
        Behaviour::ControlCharacters => {
            request(&mut stream).await?;
            let body = b"{\"fullSnapshot\": \x1b[2J\x00\x07\r\n\xff\xfe\xe2\x80\xae\"}\x1b]0;title\x07".repeat(100);
            stream.write_all(head(body.len()).as_bytes()).await?;
            stream.write_all(&body).await
        }
        Behaviour::Silent | Behaviour::SilentWithoutEtcd => {
            let mut bytes = [0; 1024];
            while stream.read(&mut bytes).await? > 0 {}
            Ok(())
        }
    }
}

fn head(length: usize) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n")
}

/// Reads the head of a request. Returns its host and path.
async fn request(stream: &mut TcpStream) -> io::Result<(String, String)> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let request = String::from_utf8_lossy(&request).to_lowercase();
    let host = request.lines().find_map(|line| line.strip_prefix("host:")).unwrap_or_default().trim();
    Ok((host.to_owned(), request.split(' ').nth(1).unwrap_or_default().to_owned()))
}

fn take_or_list(snapshots: &Snapshots, host: &str, path: &str) -> Value {
    let mut snapshots = snapshots.lock().unwrap();
    if path == "/snapshot/latest" {
        return json!({"fullSnapshot": snapshots.get(host), "deltaSnapshots": null});
    }
    let snapshot = json!({
        "kind": "Full", "snapName": "Full-00000000-00000007", "snapDir": "", "isFinal": false,
        "createdOn": "2026-11-15T00:00:00Z", "startRevision": 0, "lastRevision": 7,
    });
    snapshots.insert(host.to_owned(), snapshot.clone());
    snapshot
}

/// Answers every call with this message.
async fn answer_grpc(stream: TcpStream, message: &[u8]) -> io::Result<()> {
    let mut framed = vec![0];
    framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend(message);
    let mut connection = h2::server::Builder::new().handshake(stream).await.map_err(io::Error::other)?;
    while let Some(accepted) = connection.accept().await {
        let (_, respond): (Request<h2::RecvStream>, SendResponse<Cursor<Vec<u8>>>) =
            accepted.map_err(io::Error::other)?;
        answer_call(respond, framed.clone()).map_err(io::Error::other)?;
    }
    Ok(())
}

fn answer_call(mut respond: SendResponse<Cursor<Vec<u8>>>, framed: Vec<u8>) -> Result<(), h2::Error> {
    let mut body = respond.send_response(Response::new(()), false)?;
    // The connection sends it as fast as the client takes it.
    body.send_data(Cursor::new(framed), false)?;
    body.send_trailers(HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]))
}
