//! `messina ignition`: says when ScyllaDB may start, by a file that its container waits for.

use std::pin::pin;

use anyhow::Result;
use futures::StreamExt;
use http::StatusCode;
use messina_api::scylla::v1alpha1::BroadcastAddressType;
use messina_plan::node::ignition::{Ignition, ignition};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    kubernetes::{Access, Member},
    pod::{self, Shared, address_type},
    serve,
};

/// Whose ScyllaDB, and what it needs.
#[derive(Debug, clap::Args)]
#[expect(missing_docs, reason = "the fields that have no words of their own are groups of options that have")]
pub struct Options {
    /// Name of the node's Service, which is also the pod's
    #[arg(long)]
    pub service_name: String,
    /// Whose address the node announces to other nodes
    #[arg(long, value_parser = address_type)]
    pub nodes_broadcast_address_type: BroadcastAddressType,
    /// Whose address the node announces to clients
    #[arg(long, value_parser = address_type)]
    pub clients_broadcast_address_type: BroadcastAddressType,
    /// The port on which /readyz says whether ScyllaDB may start
    #[arg(long, default_value_t = 42081)]
    pub port: u16,
    #[command(flatten)]
    pub shared: Shared,
    #[command(flatten)]
    pub access: Access,
}

/// Runs until it is stopped.
pub fn run(options: Options) -> Result<()> {
    pod::runtime()?.block_on(async {
        let member = options.access.member(&options.service_name).await?;
        let (said, hear) = watch::channel(Err("nothing is known yet of the Pod and its Service".to_owned()));
        tokio::select! {
            // Signals are listened for first.
            biased;
            stopped = pod::stopped(member.is_going()) => stopped,
            never = serve::serve(options.port, move |path| respond(path, hear.borrow().clone())) => match never? {},
            () = decide(&options, &member, &said) => Ok(()),
        }
    })
}

async fn respond(path: String, said: Result<(), String>) -> serve::HttpResponse {
    match (path.as_str(), said) {
        ("/readyz", Ok(())) => serve::text(StatusCode::OK, "ScyllaDB may start"),
        ("/readyz", Err(reason)) => serve::text(StatusCode::SERVICE_UNAVAILABLE, reason),
        _ => serve::text(StatusCode::NOT_FOUND, "there is /readyz"),
    }
}

/// Decides anew whenever the pod or its Service changes.
async fn decide(options: &Options, member: &Member, said: &watch::Sender<Result<(), String>>) {
    let (mut pods, mut services) = (pin!(member.pod()), pin!(member.service()));
    let (mut pod, mut service) = (None, None);
    let mut ignited = Ignited::default();
    loop {
        tokio::select! {
            Some(version) = pods.next() => pod = version,
            Some(version) = services.next() => service = version,
            else => return,
        }
        let (nodes, clients) = (&options.nodes_broadcast_address_type, &options.clients_broadcast_address_type);
        let decision = ignition(pod.as_ref(), service.as_ref(), nodes, clients);
        let outcome = ignited.follow(decision, &options.shared).unwrap_or_else(|error| Err(format!("{error:#}")));
        said.send_if_modified(|before| {
            let is_news = *before != outcome;
            match &outcome {
                Ok(()) if is_news => info!("ScyllaDB may start"),
                Err(reason) if is_news => warn!("ScyllaDB must wait: {reason}"),
                _ => {}
            }
            *before = outcome;
            is_news
        });
    }
}

/// For which container the file was written.
#[derive(Debug, Default)]
struct Ignited(Option<String>);

impl Ignited {
    /// Writes the file once for each container, and removes it when ScyllaDB must wait. A sidecar that stops removes it
    /// too: it is written again for the next container, not for the one that stops.
    fn follow(&mut self, decision: Ignition, shared: &Shared) -> Result<Result<(), String>> {
        match decision {
            Ignition::Start { container_id } => {
                if self.0.as_ref() != Some(&container_id) {
                    pod::write_whole(&shared.ignition(), b"")?;
                    self.0 = Some(container_id);
                }
                Ok(Ok(()))
            }
            Ignition::Wait(reason) => {
                pod::remove(&shared.ignition())?;
                self.0 = None;
                Ok(Err(reason))
            }
        }
    }
}
