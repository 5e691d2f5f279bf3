//! Metrics in Prometheus' text format.

use std::{fmt::Write, sync::Arc};

use http::StatusCode;

use crate::{
    node::{Mode, Node},
    web::{Request, Response},
};

const MEMORY_OF_A_SHARD: u64 = 512 << 20;

pub(crate) async fn respond(node: Arc<Node>, request: Request) -> Response {
    node.unpaused().await;
    match request.path.trim_end_matches('/') {
        "/metrics" => Response::text("text/plain; version=0.0.4", text(&node)),
        _ => Response::error(StatusCode::NOT_FOUND, "Not found"),
    }
}

fn text(node: &Node) -> String {
    let view = node.view();
    let shards = node.config.shards;
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, value: u64, per_shard: bool| {
        // Writing to a String does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for shard in 0..if per_shard { shards } else { 1 } {
            let _ = writeln!(text, "{name}{{shard=\"{shard}\"}} {value}");
        }
    };
    let writes = node.tables.lock().map_or(0, |tables| tables.writes());
    metric("scylla_database_total_writes", "counter", "Writes since the start", writes, true);
    metric("scylla_memory_total_memory", "gauge", "Memory of a shard in bytes", MEMORY_OF_A_SHARD, true);
    metric("scylla_node_operation_mode", "gauge", "What the node does", operation_mode(node.mode()), false);
    let (live, unreachable) = (view.live().len() as u64, view.down().len() as u64);
    // The node itself is not counted among the others.
    metric(
        "scylla_gossip_live",
        "gauge",
        "Other nodes that are up",
        live.saturating_sub(u64::from(node.is_gossiping())),
        false,
    );
    metric("scylla_gossip_unreachable", "gauge", "Other nodes that are down", unreachable, false);
    metric("scylla_gossip_heart_beat", "counter", "Own heartbeat", node.heartbeat(&node.own), false);
    text
}

/// ScyllaDB's numbers of modes.
fn operation_mode(mode: Mode) -> u64 {
    match mode {
        Mode::Starting => 1,
        Mode::Joining => 2,
        Mode::Normal => 3,
        Mode::Leaving => 4,
        Mode::Decommissioned => 5,
        Mode::Draining => 6,
        Mode::Drained => 7,
        Mode::Bootstrap => 10,
    }
}
