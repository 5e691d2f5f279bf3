//! `messina ignition`: creates the file that ScyllaDB's container waits for, once ScyllaDB may start.

use std::pin::pin;

use anyhow::Result;
use futures::StreamExt;
use http::StatusCode;
use messina_api::scylla::v1alpha1::BroadcastAddressType;
use messina_plan::node::ignition::{Ignition, ignition};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{
    kubernetes::{Access, MemberApi},
    pod::{self, Shared, address_type},
    serve,
};

/// The node, and which addresses it needs before it starts.
#[derive(Debug, clap::Args)]
#[expect(missing_docs, reason = "the flattened groups document their own fields")]
pub struct Options {
    /// Name of the node's Service, which is also the pod's
    #[arg(long)]
    pub service_name: String,
    /// Type of the broadcast address for other nodes
    #[arg(long, value_parser = address_type)]
    pub nodes_broadcast_address_type: BroadcastAddressType,
    /// Type of the broadcast address for clients
    #[arg(long, value_parser = address_type)]
    pub clients_broadcast_address_type: BroadcastAddressType,
    /// Port on which /readyz is served: 200 once ScyllaDB may start
    #[arg(long, default_value_t = 42081)]
    pub port: u16,
    #[command(flatten)]
    pub shared: Shared,
    #[command(flatten)]
    pub access: Access,
}

/// Runs until the container is stopped.
pub fn run(options: Options) -> Result<()> {
    pod::runtime()?.block_on(async {
        let member = options.access.member(&options.service_name).await?;
        let (sender, receiver) = watch::channel(Err("the Pod and its Service have not been read yet".to_owned()));
        tokio::select! {
            // First, so that signal handlers are installed before anything else.
            biased;
            stopped = pod::wait_for_stop(member.resolve_if_terminating()) => stopped,
            never = serve::serve(options.port, move |path| respond(path, receiver.borrow().clone())) => match never? {},
            () = decide(&options, &member, &sender) => Ok(()),
        }
    })
}

async fn respond(path: String, decision: Result<(), String>) -> serve::HttpResponse {
    match (path.as_str(), decision) {
        ("/readyz", Ok(())) => serve::text(StatusCode::OK, "ScyllaDB may start"),
        ("/readyz", Err(reason)) => serve::text(StatusCode::SERVICE_UNAVAILABLE, reason),
        _ => serve::text(StatusCode::NOT_FOUND, "not found; available path: /readyz"),
    }
}

/// Decides whether ScyllaDB may start whenever the pod or its Service changes.
async fn decide(options: &Options, member: &MemberApi, sender: &watch::Sender<Result<(), String>>) {
    let (mut pods, mut services) = (pin!(member.watch_pod()), pin!(member.watch_service()));
    let (mut pod, mut service) = (None, None);
    let mut file = IgnitionFile::default();
    loop {
        tokio::select! {
            Some(version) = pods.next() => pod = version,
            Some(version) = services.next() => service = version,
            else => return,
        }
        let (nodes, clients) = (&options.nodes_broadcast_address_type, &options.clients_broadcast_address_type);
        let decision = ignition(pod.as_ref(), service.as_ref(), nodes, clients);
        let outcome = file.apply(decision, &options.shared).unwrap_or_else(|error| Err(format!("{error:#}")));
        sender.send_if_modified(|before| {
            let is_new = *before != outcome;
            match &outcome {
                Ok(()) if is_new => info!("ScyllaDB may start"),
                Err(reason) if is_new => warn!("ScyllaDB must not start yet: {reason}"),
                _ => {}
            }
            *before = outcome;
            is_new
        });
    }
}

/// The ignition file, with the ID of the container for which it was written.
#[derive(Debug, Default)]
struct IgnitionFile(Option<String>);

impl IgnitionFile {
    /// Writes the file once for each container, and removes it when ScyllaDB must not start. The sidecar removes it,
    /// too, when it stops: it is written again for the next container, not for the one that stops.
    fn apply(&mut self, decision: Ignition, shared: &Shared) -> Result<Result<(), String>> {
        match decision {
            Ignition::Start { container_id } => {
                if self.0.as_ref() != Some(&container_id) {
                    pod::write_atomically(&shared.ignition_file(), b"")?;
                    self.0 = Some(container_id);
                }
                Ok(Ok(()))
            }
            Ignition::Wait(reason) => {
                pod::remove(&shared.ignition_file())?;
                self.0 = None;
                Ok(Err(reason))
            }
        }
    }
}
