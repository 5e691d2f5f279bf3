//! How nodes talk to one another: one question, one answer, each a length and JSON.

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
    rules::{Refusal, Wish},
};

/// A question, and who asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) cluster: String,
    /// The ring that the sender is in; none before it joined one.
    pub(crate) ring: Option<String>,
    pub(crate) from: HostId,
    pub(crate) address: IpAddr,
    /// Whom it is meant for: an address may belong to another node by now.
    pub(crate) to: Option<HostId>,
    pub(crate) question: Question,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    /// Are you there, and do we agree?
    Ping { heartbeat: u64, digest: u64 },
    /// This is what I know; what do you know?
    Sync { members: Vec<Member> },
    /// What ring is this? The first question of a node that starts.
    Hello,
    /// May I change the ring?
    Wish(Wish),
    /// I am still at it.
    Renew { attempt: String },
    /// I am done, or gave up.
    Release { attempt: String },
    /// This has happened; keep it, if you still hold to your promise.
    Commit { attempt: String, members: Vec<Member> },
    /// I stop.
    Shutdown,
    /// A write to a table of Alternator; not to be passed on.
    Write(Value),
    /// What is in the tables of Alternator?
    Tables,
    /// A keyspace was created; keep it.
    Keyspace(Keyspace),
    /// Rows of which the node is a replica, or becomes one; keep them.
    Rows(Vec<Row>),
    /// Which rows do you hold?
    Copies,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
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
    /// A ring of the same name, but another one.
    WrongRing,
    /// The asker left the ring, or was removed.
    Banned,
    /// This node is not in a ring yet.
    NoRing,
    /// The question was meant for another node.
    NotMe {
        host_id: HostId,
    },
    Tables(Value),
    Copies(Copies),
}

const LONGEST: u32 = 64 << 20;

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
    if length > LONGEST {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Asks once, on a connection of its own.
pub(crate) async fn ask(address: SocketAddr, envelope: &Envelope, patience: Duration) -> io::Result<Answer> {
    let exchange = async {
        let mut stream = connect(address).await?;
        send(&mut stream, envelope).await?;
        receive(&mut stream).await
    };
    timeout(patience, exchange).await.map_err(io::Error::from)?
}

/// A connection that is kept, for questions that are asked again and again.
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

    /// Takes the link for a round of questions, unless the last round still waits for answers.
    pub(crate) fn take(&self) -> bool {
        !self.is_busy.swap(true, Ordering::Acquire)
    }

    pub(crate) fn give_back(&self) {
        self.is_busy.store(false, Ordering::Release);
    }

    pub(crate) async fn ask(&self, envelope: &Envelope, patience: Duration) -> io::Result<Answer> {
        let mut kept = self.stream.lock().await;
        let exchange = async {
            if let Some(mut stream) = kept.take()
                && let Ok(answer) = once(&mut stream, envelope).await
            {
                return Ok((stream, answer));
            }
            // The other side may have been started again since: that is no silence.
            let mut stream = connect(self.address).await?;
            let answer = once(&mut stream, envelope).await?;
            io::Result::Ok((stream, answer))
        };
        let (stream, answer) = timeout(patience, exchange).await.map_err(io::Error::from)??;
        *kept = Some(stream);
        Ok(answer)
    }
}

async fn once(stream: &mut TcpStream, envelope: &Envelope) -> io::Result<Answer> {
    send(stream, envelope).await?;
    receive(stream).await
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
