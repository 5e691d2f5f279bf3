//! A proxy between the operator and servers outside of Kubernetes, which injects faults into connections.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use messina_clients::Resolver;
use messina_testbed::faults::Fault;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinSet,
};

type Rule = Box<dyn Fn(usize) -> Fault + Send + Sync>;

/// The proxy. Connections are counted from zero since the rule was set; each carries one request.
pub(super) struct Gate {
    address: SocketAddr,
    inner: Arc<Inner>,
    _tasks: JoinSet<()>,
}

struct Inner {
    target: Mutex<SocketAddr>,
    rule: Mutex<Rule>,
    count: AtomicUsize,
    crashed: Notify,
}

impl Gate {
    pub(super) async fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(Inner {
            target: Mutex::new(target),
            rule: Mutex::new(Box::new(|_| Fault::None)),
            count: AtomicUsize::new(0),
            crashed: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        let shared = Arc::clone(&inner);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((connection, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    // A closed connection is not an error.
                    let _ = shared.pass(connection).await;
                });
            }
        });
        Self { address, inner, _tasks: tasks }
    }

    /// A resolver that maps all names to the proxy.
    pub(super) fn reach(&self) -> Resolver {
        let address = self.address;
        Resolver::with_lookup(move |_, _| Some(address))
    }

    /// Sets the faults of connections from now on.
    pub(super) fn rule(&self, rule: impl Fn(usize) -> Fault + Send + Sync + 'static) {
        *self.inner.rule.lock().unwrap() = Box::new(rule);
        self.inner.count.store(0, Ordering::SeqCst);
    }

    /// The number of connections since the rule was set.
    pub(super) fn count(&self) -> usize {
        self.inner.count.load(Ordering::SeqCst)
    }

    pub(super) async fn crashed(&self) {
        self.inner.crashed.notified().await;
    }
}

impl Inner {
    async fn pass(&self, mut near: TcpStream) -> std::io::Result<()> {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        let fault = (self.rule.lock().unwrap())(number);
        let target = *self.target.lock().unwrap();
        match fault {
            Fault::LoseRequest => drop(near),
            Fault::CrashBefore => {
                self.crashed.notify_one();
                // No response until the program has ended.
                let _ = near.read(&mut [0]).await;
                std::future::pending::<()>().await;
            }
            Fault::LoseReply | Fault::CrashAfter => {
                let mut far = TcpStream::connect(target).await?;
                let mut buffer = vec![0; 64 * 1024];
                let length = near.read(&mut buffer).await?;
                far.write_all(&buffer[..length]).await?;
                // The request is carried out before its response is lost.
                let _ = far.read(&mut buffer).await?;
                if fault == Fault::CrashAfter {
                    self.crashed.notify_one();
                    std::future::pending::<()>().await;
                }
            }
            _ => {
                let mut far = TcpStream::connect(target).await?;
                copy_bidirectional(&mut near, &mut far).await?;
            }
        }
        Ok(())
    }
}
