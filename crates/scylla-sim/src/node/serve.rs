//! Runs a node: its servers, its start and its termination.

use std::{future::Future, sync::Arc, time::Duration};

use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
    time::sleep,
};

use super::{Mode, Node, NodeError};
use crate::{
    alternator, cql, log, metrics, rest,
    tls::Reloading,
    web,
    wire::{PeerRequest, PeerResponse},
};

impl Node {
    /// Runs until it is stopped, or has to terminate.
    pub async fn run(self: Arc<Self>) -> Result<(), NodeError> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut end = self.end.subscribe();
        // Dropping it stops all tasks.
        let mut tasks = JoinSet::new();
        let outcome = tokio::select! {
            outcome = self.live(&mut tasks) => outcome,
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            end = end.wait_for(Option::is_some) => {
                let reason = end.ok().and_then(|end| end.clone()).unwrap_or_default();
                Err(NodeError::Refused(reason))
            }
        };
        if outcome.is_ok() {
            log::info("init", "Signal received; shutting down");
            self.serve_clients(false);
            self.announce_shutdown().await;
            log::info("init", "Scylla version shutdown complete.");
        }
        outcome
    }

    async fn live(self: &Arc<Self>, tasks: &mut JoinSet<()>) -> Result<(), NodeError> {
        let config = &self.config;
        let (version, own) = (&config.release_version, &self.own);
        log::info(
            "init",
            format!("Scylla version {version} (simulated) starting; host ID {own}, cluster {}", config.cluster_name),
        );
        let rest = web::listen(config.api.ip(), config.api.port()).await?;
        let prometheus = web::listen(config.prometheus.ip(), config.prometheus.port()).await?;
        let nodes = web::listen(config.listen_address, config.storage_port).await?;
        let cql_tls = tls("client_encryption_options", config.client_encryption.clone())?;
        let alternator_tls = match config.alternator.https_port {
            Some(_) => tls("alternator_encryption_options", config.alternator.encryption.clone())?,
            None => None,
        };
        let node = Arc::clone(self);
        tasks.spawn(web::serve(rest, None, move |request| rest::respond(Arc::clone(&node), request)));
        let node = Arc::clone(self);
        tasks.spawn(web::serve(prometheus, None, move |request| metrics::respond(Arc::clone(&node), request)));
        tasks.spawn(Arc::clone(self).serve_nodes(nodes));
        tasks.spawn(Arc::clone(self).gossip());

        self.join().await?;
        self.fetch_tables().await;
        self.set_mode(Mode::Normal);
        self.serve_clients(true);
        log::info("init", "serving");
        self.listen_to_clients(cql_tls, alternator_tls).await
    }

    /// Serves clients while that is enabled. Returns only on an error.
    async fn listen_to_clients(
        self: &Arc<Self>,
        cql_tls: Option<Arc<Reloading>>,
        alternator_tls: Option<Arc<Reloading>>,
    ) -> Result<(), NodeError> {
        let mut serves = self.serves_clients.subscribe();
        let config = &self.config;
        loop {
            // The sender is part of the node, so there is always one.
            let _ = serves.wait_for(|serves| *serves).await;
            let mut servers = JoinSet::new();
            let (rpc, native) = (config.rpc_address, config.native_port);
            match config.native_port_ssl.filter(|_| cql_tls.is_some()) {
                Some(port) => {
                    self.serve_cql(&mut servers, bind(rpc, native).await?, None);
                    self.serve_cql(&mut servers, bind(rpc, port).await?, cql_tls.clone());
                }
                None => self.serve_cql(&mut servers, bind(rpc, native).await?, cql_tls.clone()),
            }
            if let Some(port) = config.alternator.port {
                self.serve_alternator(&mut servers, bind(config.alternator.address, port).await?, None);
            }
            if let (Some(port), Some(tls)) = (config.alternator.https_port, &alternator_tls) {
                let listener = bind(config.alternator.address, port).await?;
                self.serve_alternator(&mut servers, listener, Some(Arc::clone(tls)));
            }
            log::info("cql_server_controller", format!("Starting listening for CQL clients on {rpc}:{native}"));
            let _ = serves.wait_for(|serves| !*serves).await;
            servers.shutdown().await;
            log::info("cql_server_controller", "CQL server stopped");
        }
    }

    fn serve_cql(self: &Arc<Self>, servers: &mut JoinSet<()>, listener: TcpListener, tls: Option<Arc<Reloading>>) {
        servers.spawn(cql::serve(listener, tls, Arc::clone(self)));
    }

    fn serve_alternator(
        self: &Arc<Self>,
        servers: &mut JoinSet<()>,
        listener: TcpListener,
        tls: Option<Arc<Reloading>>,
    ) {
        let node = Arc::clone(self);
        servers.spawn(web::serve(listener, tls, move |request| alternator::respond(Arc::clone(&node), request)));
    }

    /// Fetches the tables of Alternator from another node, because a restart loses them.
    async fn fetch_tables(self: &Arc<Self>) {
        let others = self.with(|state| {
            let others = state.members.ring().filter(|member| member.host_id != self.own);
            others.map(|member| (member.host_id.clone(), member.address)).collect::<Vec<_>>()
        });
        for (host_id, address) in others {
            if let Some(PeerResponse::Tables(tables)) = self.call_member(&host_id, address, PeerRequest::Tables).await {
                self.replace_tables(&tables);
                return;
            }
        }
    }
}

fn tls(what: &'static str, files: Option<crate::config::Encryption>) -> Result<Option<Arc<Reloading>>, NodeError> {
    let load = |files| Reloading::load(files).map(Arc::new).map_err(|source| NodeError::tls(what, source));
    files.map(load).transpose()
}

/// Binds a port for clients. A port that was released just now may not be free yet.
async fn bind(address: std::net::IpAddr, port: u16) -> std::io::Result<TcpListener> {
    let mut attempts = 0;
    loop {
        match web::listen(address, port).await {
            Err(_) if attempts < 10 => {
                attempts += 1;
                sleep(Duration::from_millis(100)).await;
            }
            outcome => return outcome,
        }
    }
}

/// Runs a future in the runtime of a program.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    // One thread is enough for a node, so that dozens of nodes can run on one host.
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work))
}
