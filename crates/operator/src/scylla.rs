//! Requests to ScyllaDB's REST API whose results are types of the crate `plan`.

use messina_clients::scylla::{Error, Node};
use messina_plan::node::{Mode, ring::View};

/// Returns the node's operation mode.
pub(crate) async fn mode(node: Node) -> Result<Mode, Error> {
    let Ok(mode) = node.operation_mode().await?.parse();
    Ok(mode)
}

/// Returns the token ring as this node sees it.
pub(crate) async fn view(node: Node) -> Result<View, Error> {
    Ok(View {
        host_ids: node.host_ids().await?,
        live: node.live().await?,
        down: node.down().await?,
        joining: node.joining().await?,
        leaving: node.leaving().await?,
        moving: node.moving().await?,
    })
}
