//! The REST API.

mod ring;
mod sim;
mod snapshots;

use std::{net::IpAddr, sync::Arc};

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    membership::{HostId, Status},
    node::{Mode, Node},
    rules::Refusal,
    web::{Request, Response},
};

/// Keyspaces that every node has, with some of their tables. The first two are of the node alone.
const SYSTEM_KEYSPACES: &[(&str, &[&str])] = &[
    ("system", &["local", "peers"]),
    ("system_schema", &["keyspaces", "tables"]),
    ("system_auth", &["roles"]),
    ("system_distributed", &["cdc_streams_descriptions_v2", "view_build_status"]),
    ("system_distributed_everywhere", &["cdc_generation_descriptions_v2"]),
    ("system_traces", &["events", "sessions"]),
];
const LOCAL_KEYSPACES: &[&str] = &["system", "system_schema"];

/// Responds to a request.
pub(crate) async fn respond(node: Arc<Node>, request: Request) -> Response {
    let path = request.path.clone();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    // Requests that change faults are served even while the node is paused.
    if segments.first() == Some(&"sim") {
        return sim::respond(&node, &request, &segments[1..]).await;
    }
    node.unpaused().await;
    let response = match request.method {
        Method::GET => get(&node, &request, &segments),
        Method::POST => post(&node, &request, &segments).await,
        Method::DELETE => delete(&node, &request, &segments),
        _ => None,
    };
    // A request from before a pause gets its response after it.
    node.unpaused().await;
    response.unwrap_or_else(|| Response::error(StatusCode::NOT_FOUND, "Not found"))
}

/// Returns ScyllaDB's empty response.
fn nothing() -> Response {
    Response::text("application/json", "")
}

fn bad_request(message: impl Into<String>) -> Response {
    Response::error(StatusCode::BAD_REQUEST, message)
}

fn get(node: &Arc<Node>, request: &Request, segments: &[&str]) -> Option<Response> {
    let config = &node.config;
    let value = match segments {
        ["storage_service", "operation_mode"] => json!(node.mode().to_string()),
        ["storage_service", "is_initialized"] => json!(node.mode() == Mode::Normal),
        ["storage_service", "hostid", "local"] => json!(node.own),
        ["storage_service", "host_id"] => {
            json!(
                node.view().members.ring().map(|m| json!({ "key": m.address, "value": m.host_id })).collect::<Vec<_>>()
            )
        }
        ["gossiper", "endpoint", "live"] => json!(node.view().live()),
        ["gossiper", "endpoint", "down"] => json!(node.view().down()),
        ["gossiper", "generation_number", address] => json!(member(node, address)?.1),
        ["gossiper", "heart_beat_version", address] => json!(node.heartbeat(&member(node, address)?.0)),
        ["failure_detector", "simple_states"] => {
            let view = node.view();
            let state = |address: &IpAddr, state| json!({ "key": address, "value": state });
            let up = view.live().iter().map(|address| state(address, "UP")).collect::<Vec<_>>();
            let down = view.down().iter().map(|address| state(address, "DOWN")).collect::<Vec<_>>();
            json!([up, down].concat())
        }
        ["storage_service", "nodes", "joining"] => json!(node.view().with_status(Status::Joining)),
        ["storage_service", "nodes", "leaving"] => json!(node.view().with_status(Status::Leaving)),
        ["storage_service", "nodes", "moving"] => json!([]),
        ["storage_service", "tokens"] => json!(ring::all_tokens(&node.view())),
        ["storage_service", "tokens", address] => match address.parse() {
            Ok(address) => json!(ring::tokens(&node.view(), address)),
            Err(_) => return Some(bad_request(format!("{address} is no address"))),
        },
        ["storage_service", "tokens_endpoint"] => ring::owners(&node.view()),
        ["storage_service", "describe_ring"] => json!(ring::describe(&node.view())),
        ["storage_service", "describe_ring", keyspace] => {
            if !has_keyspace(node, keyspace) {
                return Some(no_keyspace(keyspace));
            }
            json!(ring::describe(&node.view()))
        }
        ["storage_service", "native_transport"] => json!(node.serves_clients()),
        ["storage_service", "gossiping"] => json!(node.is_gossiping()),
        ["storage_service", "cluster_name"] => json!(config.cluster_name),
        ["storage_service", "scylla_release_version"] => json!(config.release_version),
        ["storage_service", "release_version"] => json!("3.0.8"),
        ["storage_service", "schema_version"] => json!(schema_version(node)),
        ["storage_service", "load"] => json!(0),
        ["storage_service", "load_map"] => {
            json!(node.view().members.ring().map(|m| json!({ "key": m.address, "value": 0 })).collect::<Vec<_>>())
        }
        ["storage_service", "keyspaces"] => keyspaces(node, request),
        ["storage_service", "snapshots"] => return Some(snapshots::list(node)),
        ["storage_service", "repair_status"] | ["storage_service", "repair_async", _] => json!("SUCCESSFUL"),
        ["storage_service", "active_repair"] => json!([]),
        ["storage_proxy", "schema_versions"] => schema_versions(node),
        ["snitch", "datacenter"] => return Some(snitch(node, request, |m| &m.datacenter, &config.datacenter)),
        ["snitch", "rack"] => return Some(snitch(node, request, |m| &m.rack, &config.rack)),
        ["snitch", "name"] => config.entries.get("endpoint_snitch").cloned().unwrap_or_default(),
        ["system", "uptime_ms"] => json!(u64::try_from(node.started.elapsed().as_millis()).unwrap_or(u64::MAX)),
        ["column_family", "name"] => {
            let names = tables(node).into_iter().map(|(keyspace, table)| format!("{keyspace}:{table}"));
            json!(names.collect::<Vec<_>>())
        }
        ["column_family", "metrics", "total_disk_space_used", _] => json!(1 << 20),
        ["task_manager", "list_modules"] => json!(["repair", "compaction", "node_ops", "tasks"]),
        ["task_manager", "list_module_tasks", _] => json!([]),
        ["task_manager", "ttl" | "user_ttl"] => json!(10),
        ["v2", "config", entry] => match config.entries.get(*entry) {
            Some(value) => value.clone(),
            None => return Some(bad_request(format!("No such config entry: {entry}"))),
        },
        _ => return None,
    };
    Some(Response::json(&value))
}

async fn post(node: &Arc<Node>, request: &Request, segments: &[&str]) -> Option<Response> {
    Some(match segments {
        ["storage_service", "decommission"] => {
            let node = Arc::clone(node);
            // It continues when the client disconnects.
            let work = tokio::spawn(async move { node.decommission().await });
            outcome(work.await.unwrap_or_else(|error| Err(Refusal::final_(error.to_string()))))
        }
        ["storage_service", "remove_node"] => {
            let Some(dead) = request.parameter("host_id").and_then(HostId::parse) else {
                return Some(bad_request("host_id is missing or no host ID"));
            };
            let node = Arc::clone(node);
            let work = tokio::spawn(async move { node.remove(dead).await });
            outcome(work.await.unwrap_or_else(|error| Err(Refusal::final_(error.to_string()))))
        }
        ["storage_service", "drain"] => {
            if !matches!(node.mode(), Mode::Normal | Mode::Drained) {
                return Some(Response::error(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    format!("drain: the node is in {} mode", node.mode()),
                ));
            }
            let node = Arc::clone(node);
            let _ = tokio::spawn(async move { node.drain().await }).await;
            nothing()
        }
        ["storage_service", "native_transport"] => {
            if node.mode() != Mode::Normal || !node.is_gossiping() {
                return Some(Response::error(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the node is not able to serve clients",
                ));
            }
            node.serve_clients(true);
            nothing()
        }
        ["storage_service", "keyspace_cleanup", keyspace] => match has_keyspace(node, keyspace) {
            true => cleanup(node, Some(keyspace)).await,
            false => no_keyspace(keyspace),
        },
        ["storage_service", "keyspace_compaction", keyspace] => match has_keyspace(node, keyspace) {
            true => Response::json(&json!(0)),
            false => no_keyspace(keyspace),
        },
        ["storage_service", "keyspace_flush", keyspace] => match has_keyspace(node, keyspace) {
            true => nothing(),
            false => no_keyspace(keyspace),
        },
        ["storage_service", "cleanup_all"] => cleanup(node, None).await,
        ["storage_service", "flush" | "force_terminate_repair"] => nothing(),
        ["storage_service", "tablets", "balancing"] => nothing(),
        ["storage_service", "repair_async", keyspace] => match has_keyspace(node, keyspace) {
            true => Response::json(&json!(node.heartbeat(&node.own).max(1))),
            false => no_keyspace(keyspace),
        },
        ["storage_service", "snapshots"] => snapshots::take(node, request),
        ["compaction_manager", "stop_compaction"] => nothing(),
        ["raft", "read_barrier"] => nothing(),
        ["task_manager", "ttl" | "user_ttl"] => Response::json(&json!(10)),
        _ => return None,
    })
}

fn delete(node: &Arc<Node>, request: &Request, segments: &[&str]) -> Option<Response> {
    Some(match segments {
        ["storage_service", "native_transport"] => {
            node.serve_clients(false);
            nothing()
        }
        ["storage_service", "snapshots"] => snapshots::delete(node, request),
        _ => return None,
    })
}

async fn cleanup(node: &Arc<Node>, keyspace: Option<&str>) -> Response {
    match node.clean_up(keyspace).await {
        Ok(()) => Response::json(&json!(0)),
        Err(refusal) => outcome(Err(refusal)),
    }
}

fn outcome(outcome: Result<(), Refusal>) -> Response {
    match outcome {
        Ok(()) => nothing(),
        Err(refusal) => {
            crate::log::error("api", &refusal.reason);
            Response::error(StatusCode::INTERNAL_SERVER_ERROR, format!("std::runtime_error ({})", refusal.reason))
        }
    }
}

fn member(node: &Node, address: &str) -> Option<(HostId, u64)> {
    let view = node.view();
    let member = view.members.at(address.parse().ok()?)?;
    Some((member.host_id.clone(), member.generation))
}

fn snitch(node: &Node, request: &Request, place: fn(&crate::membership::Member) -> &String, own: &str) -> Response {
    let Some(host) = request.parameter("host") else { return Response::json(&json!(own)) };
    let view = node.view();
    match host.parse().ok().and_then(|address| view.members.at(address)) {
        Some(member) => Response::json(&json!(place(member))),
        None => bad_request(format!("{host} is not a member of the cluster")),
    }
}

/// Returns the keyspaces of the requested type.
fn keyspaces(node: &Node, request: &Request) -> Value {
    let created = node.created_keyspaces();
    let users = node.config.keyspaces.keys().chain(&created).map(String::as_str);
    let system = SYSTEM_KEYSPACES.iter().map(|(keyspace, _)| *keyspace);
    match (request.parameter("replication"), request.parameter("type")) {
        (Some("tablets"), _) => json!([]),
        (_, Some("user")) => json!(users.collect::<Vec<_>>()),
        (_, Some("non_local_strategy")) => {
            json!(users.chain(system.filter(|keyspace| !LOCAL_KEYSPACES.contains(keyspace))).collect::<Vec<_>>())
        }
        _ => json!(users.chain(system).collect::<Vec<_>>()),
    }
}

/// Returns all tables, each with its keyspace. A keyspace that a test created has one.
fn tables(node: &Node) -> Vec<(String, String)> {
    let users = node.config.keyspaces.iter();
    let users = users.flat_map(|(keyspace, tables)| tables.iter().map(move |table| (keyspace.clone(), table.clone())));
    let created = node.created_keyspaces().into_iter().map(|keyspace| (keyspace, "rows".to_owned()));
    let system =
        SYSTEM_KEYSPACES.iter().flat_map(|(keyspace, tables)| tables.iter().map(move |table| (keyspace, table)));
    users.chain(created).chain(system.map(|(keyspace, table)| ((*keyspace).into(), (*table).into()))).collect()
}

fn has_keyspace(node: &Node, keyspace: &str) -> bool {
    tables(node).iter().any(|(known, _)| known == keyspace)
}

fn no_keyspace(keyspace: &str) -> Response {
    bad_request(format!("Can't find a keyspace {keyspace}"))
}

/// Returns the schema version: nodes with the same keyspaces have the same one.
fn schema_version(node: &Node) -> String {
    node.faults().schema.unwrap_or_else(|| common_schema_version(node))
}

fn common_schema_version(node: &Node) -> String {
    let digits =
        snapshots::table_id("schema", &tables(node).iter().map(|(k, t)| format!("{k}.{t}")).collect::<String>());
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

fn schema_versions(node: &Node) -> Value {
    let view = node.view();
    let (own, common) = (schema_version(node), common_schema_version(node));
    let address = node.config.broadcast_address;
    let (here, there): (Vec<_>, Vec<_>) = view.live().into_iter().partition(|live| own != common && *live == address);
    let sides = [(own, here), (common, there)].into_iter().filter(|(_, addresses)| !addresses.is_empty());
    let mut versions: Vec<Value> = sides.map(|(version, nodes)| json!({ "key": version, "value": nodes })).collect();
    if !view.down().is_empty() {
        versions.push(json!({ "key": "UNREACHABLE", "value": view.down() }));
    }
    json!(versions)
}
