//! The protocol between nodes: one request, one response, each a length and JSON.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Mutex,
    time::timeout,
};

use crate::{
    data::{Copies, Keyspace, Row},
    membership::{HostId, Member},
    rules::{ChangeRequest, Refusal},
};

/// A request with its sender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) cluster: String,
    /// The ring of the sender; none before it has joined.
    pub(crate) ring: Option<String>,
    pub(crate) from: HostId,
    pub(crate) address: IpAddr,
    /// The receiver: the address may belong to another node by now.
    pub(crate) to: Option<HostId>,
    pub(crate) request: PeerRequest,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PeerRequest {
    /// Checks that the node is up, and compares views.
    Ping { heartbeat: u64, digest: u64 },
    /// Exchanges all members.
    Sync { members: Vec<Member> },
    /// Requests the ring: the first request of a starting node.
    Hello,
    /// Requests the agreement to a topology change.
    Agree(ChangeRequest),
    /// Renews the agreement.
    Renew { attempt: String },
    /// Ends the agreement.
    Release { attempt: String },
    /// Commits the members of an agreed change.
    Commit { attempt: String, members: Vec<Member> },
    /// Announces the shutdown.
    Shutdown,
    /// A write to a table of Alternator, which is not forwarded.
    Write(Value),
    /// Requests the tables of Alternator.
    Tables,
    /// Stores a new keyspace.
    Keyspace(Keyspace),
    /// Stores rows of which the node is or becomes a replica.
    Rows(Vec<Row>),
    /// Requests all rows of the node.
    Copies,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PeerResponse {
    Pong {
        from: HostId,
        heartbeat: u64,
        digest: u64,
    },
    Members {
        ring: String,
        members: Vec<Member>,
    },
    Done,
    Refused(Refusal),
    /// The cluster has another name.
    WrongCluster {
        name: String,
    },
    /// Another ring of the same name.
    WrongRing,
    /// The sender has left the ring, or was removed.
    Banned,
    /// This node is not in a ring yet.
    NoRing,
    /// The receiver is another node.
    NotMe {
        host_id: HostId,
    },
    Tables(Value),
    Copies(Copies),
}

const MAX_LENGTH: u32 = 64 << 20;

pub(crate) async fn send(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    // One write, so that it is one packet.
    let mut frame = length.to_be_bytes().to_vec();
    frame.extend(body);
    stream.write_all(&frame).await
}

pub(crate) async fn receive<T: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<T> {
    let length = stream.read_u32().await?;
    if length > MAX_LENGTH {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Sends a request on a connection of its own.
pub(crate) async fn call(address: SocketAddr, envelope: &Envelope, time_limit: Duration) -> io::Result<PeerResponse> {
    let exchange = async {
        let mut stream = connect(address).await?;
        send(&mut stream, envelope).await?;
        receive(&mut stream).await
    };
    timeout(time_limit, exchange).await.map_err(io::Error::from)?
}

/// A persistent connection for repeated requests.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) address: SocketAddr,
    stream: Mutex<Option<TcpStream>>,
    is_busy: AtomicBool,
}

impl Link {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address, stream: Mutex::new(None), is_busy: AtomicBool::new(false) }
    }

    /// Reserves the link for a gossip round, unless the last round still waits for a response.
    pub(crate) fn take(&self) -> bool {
        !self.is_busy.swap(true, Ordering::Acquire)
    }

    pub(crate) fn release(&self) {
        self.is_busy.store(false, Ordering::Release);
    }

    pub(crate) async fn call(&self, envelope: &Envelope, time_limit: Duration) -> io::Result<PeerResponse> {
        let mut kept = self.stream.lock().await;
        let exchange = async {
            if let Some(mut stream) = kept.take()
                && let Ok(response) = exchange_on(&mut stream, envelope).await
            {
                return Ok((stream, response));
            }
            // The other node may have been restarted, so a broken connection is retried once.
            let mut stream = connect(self.address).await?;
            let response = exchange_on(&mut stream, envelope).await?;
            io::Result::Ok((stream, response))
        };
        let (stream, response) = timeout(time_limit, exchange).await.map_err(io::Error::from)??;
        *kept = Some(stream);
        Ok(response)
    }
}

async fn exchange_on(stream: &mut TcpStream, envelope: &Envelope) -> io::Result<PeerResponse> {
    send(stream, envelope).await?;
    receive(stream).await
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
