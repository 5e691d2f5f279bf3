//! `nodetool`, through the REST API.

use std::collections::BTreeMap;

use http::Method;
use serde_json::Value;

use super::{ToolError, client::Api};

/// Runs a command of `nodetool`.
pub async fn run(arguments: &[String]) -> Result<(), ToolError> {
    let (api, rest) = Api::of(arguments)?;
    let words: Vec<&str> = rest.iter().map(String::as_str).collect();
    match words[..] {
        ["status", ..] => status(&api).await?,
        ["info"] => info(&api).await?,
        ["drain"] => _ = api.post("/storage_service/drain").await?,
        ["decommission"] => _ = api.post("/storage_service/decommission").await?,
        ["removenode", host_id] => _ = api.post(&format!("/storage_service/remove_node?host_id={host_id}")).await?,
        ["statusbinary"] => running(&api, "/storage_service/native_transport").await?,
        ["statusgossip"] => running(&api, "/storage_service/gossiping").await?,
        ["enablebinary"] => _ = api.post("/storage_service/native_transport").await?,
        ["disablebinary"] => _ = api.call(Method::DELETE, "/storage_service/native_transport", String::new()).await?,
        ["version"] => println!("ReleaseVersion: {}", text(&api.get("/storage_service/release_version").await?)),
        ["cleanup", keyspace] => _ = api.post(&format!("/storage_service/keyspace_cleanup/{keyspace}")).await?,
        ["cleanup"] => _ = api.post("/storage_service/cleanup_all").await?,
        ["flush", keyspace] => _ = api.post(&format!("/storage_service/keyspace_flush/{keyspace}")).await?,
        ["flush"] => _ = api.post("/storage_service/flush").await?,
        ["snapshot", "-t", tag] => _ = api.post(&format!("/storage_service/snapshots?tag={tag}")).await?,
        ["snapshot", "-t", tag, keyspace] => {
            api.post(&format!("/storage_service/snapshots?tag={tag}&kn={keyspace}")).await?;
        }
        ["clearsnapshot", "-t", tag] => {
            api.call(Method::DELETE, &format!("/storage_service/snapshots?tag={tag}"), String::new()).await?;
        }
        ["listsnapshots"] => snapshots(&api).await?,
        ["help"] | ["--help"] => println!("{}", USAGE),
        [] => return Err(ToolError::Usage(USAGE.to_owned())),
        _ => {
            return Err(ToolError::Usage(format!(
                "error: unrecognized command or arguments: {}\n{USAGE}",
                words.join(" ")
            )));
        }
    }
    Ok(())
}

const USAGE: &str = "nodetool [-h HOST] [-p PORT] status | info | drain | decommission | removenode HOST-ID | statusbinary | statusgossip | \
enablebinary | disablebinary | version | cleanup [KEYSPACE] | flush [KEYSPACE] | snapshot -t TAG [KEYSPACE] | clearsnapshot -t TAG | listsnapshots";

async fn status(api: &Api) -> Result<(), ToolError> {
    let list = |value: &Value| value.as_array().into_iter().flatten().map(text).collect::<Vec<_>>();
    let up = list(&api.get("/gossiper/endpoint/live").await?);
    let down = list(&api.get("/gossiper/endpoint/down").await?);
    let joining = list(&api.get("/storage_service/nodes/joining").await?);
    let leaving = list(&api.get("/storage_service/nodes/leaving").await?);
    let hosts = api.get("/storage_service/host_id").await?;
    let host_ids: BTreeMap<String, String> =
        hosts.as_array().into_iter().flatten().map(|pair| (text(&pair["key"]), text(&pair["value"]))).collect();
    let mut datacenters = BTreeMap::<String, Vec<String>>::new();
    for address in up.iter().chain(&down) {
        let datacenter = text(&api.get(&format!("/snitch/datacenter?host={address}")).await?);
        let rack = text(&api.get(&format!("/snitch/rack?host={address}")).await?);
        let tokens = list(&api.get(&format!("/storage_service/tokens/{address}")).await?).len();
        let is_up = if up.contains(address) { 'U' } else { 'D' };
        let state = match address {
            _ if joining.contains(address) => 'J',
            _ if leaving.contains(address) => 'L',
            _ => 'N',
        };
        let host_id = host_ids.get(address).map_or("null", String::as_str);
        let line = format!("{is_up}{state} {address:<15} 0.00 KB {tokens:<6} ?    {host_id:<36} {rack}");
        datacenters.entry(datacenter).or_default().push(line);
    }
    for (datacenter, lines) in datacenters {
        let title = format!("Datacenter: {datacenter}");
        println!("{title}\n{}\nStatus=Up/Down\n|/ State=Normal/Leaving/Joining/Moving", "=".repeat(title.len()));
        println!("-- {:<15} {:<7} {:<6} Owns {:<36} Rack", "Address", "Load", "Tokens", "Host ID");
        lines.iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}

async fn snapshots(api: &Api) -> Result<(), ToolError> {
    println!("Snapshot name\tKeyspace name\tColumn family name");
    for snapshot in api.get("/storage_service/snapshots").await?.as_array().into_iter().flatten() {
        for table in snapshot["value"].as_array().into_iter().flatten() {
            println!("{}\t{}\t{}", text(&snapshot["key"]), text(&table["ks"]), text(&table["cf"]));
        }
    }
    Ok(())
}

async fn info(api: &Api) -> Result<(), ToolError> {
    let uptime = api.get("/system/uptime_ms").await?.as_u64().unwrap_or_default() / 1000;
    for (title, path) in [
        ("ID", "/storage_service/hostid/local"),
        ("Gossip active", "/storage_service/gossiping"),
        ("Native Transport active", "/storage_service/native_transport"),
        ("Data Center", "/snitch/datacenter"),
        ("Rack", "/snitch/rack"),
        ("Operation mode", "/storage_service/operation_mode"),
    ] {
        println!("{title:<24}: {}", text(&api.get(path).await?));
    }
    println!("{:<24}: {uptime}", "Uptime (seconds)");
    Ok(())
}

async fn running(api: &Api, path: &str) -> Result<(), ToolError> {
    println!("{}", if api.get(path).await? == Value::Bool(true) { "running" } else { "not running" });
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
