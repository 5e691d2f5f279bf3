//! What ScyllaDB says, in the words of decisions.

use messina_clients::scylla::{Error, Node};
use messina_plan::node::{Mode, ring::View};

/// What the node is doing.
pub(crate) async fn mode(node: Node) -> Result<Mode, Error> {
    let Ok(mode) = node.operation_mode().await?.parse();
    Ok(mode)
}

/// The ring as this node sees it.
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
