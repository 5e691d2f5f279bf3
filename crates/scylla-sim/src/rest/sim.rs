//! Fault injection, rows, and the state for failed tests.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use super::{bad_request, nothing, outcome};
use crate::{
    node::{
        Faults, Node,
        faults::{STEPS, crash},
    },
    web::{Request, Response},
};

pub(super) async fn respond(node: &Arc<Node>, request: &Request, segments: &[&str]) -> Response {
    match (&request.method, segments) {
        (&Method::GET, ["faults"]) => Response::json(&json!(node.faults())),
        (&Method::POST, ["faults"]) => change(node, request).await,
        (&Method::GET, ["steps"]) => Response::json(&json!(STEPS)),
        (&Method::GET, ["state"]) => state(node),
        (&Method::GET, ["rows"]) => Response::json(&json!(node.copies())),
        (&Method::POST, ["keyspaces"]) => match read(request) {
            Ok(keyspace) => outcome(node.create_keyspace(keyspace).await),
            Err(response) => response,
        },
        (&Method::POST, ["rows", keyspace]) => match read(request) {
            Ok(rows) => outcome(node.write_rows(keyspace, rows).await),
            Err(response) => response,
        },
        (&Method::POST, ["crash"]) => crash("on command"),
        (&Method::POST, ["lose-disk"]) => match node.disk.erase() {
            Ok(()) => crash("the disk is lost"),
            Err(error) => Response::error(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        _ => Response::error(StatusCode::NOT_FOUND, "Not found"),
    }
}

/// Parses the body.
fn read<T: DeserializeOwned>(request: &Request) -> Result<T, Response> {
    serde_json::from_slice(&request.body).map_err(|error| bad_request(error.to_string()))
}

/// Sets the faults in the body; others are unchanged.
async fn change(node: &Arc<Node>, request: &Request) -> Response {
    let changes: Map<String, Value> = match read(request) {
        Ok(changes) => changes,
        Err(response) => return response,
    };
    let Value::Object(mut faults) = json!(node.faults()) else { return nothing() };
    if let Some(unknown) = changes.keys().find(|name| !faults.contains_key(*name)) {
        return bad_request(format!("No such fault: {unknown}"));
    }
    if let Some(step) = changes.get("crash_at").and_then(Value::as_str).filter(|step| !STEPS.contains(step)) {
        return bad_request(format!("No such step: {step}; there are {}", STEPS.join(", ")));
    }
    faults.extend(changes);
    match Faults::deserialize(Value::Object(faults)) {
        Ok(new) => {
            node.set_faults(|faults| *faults = new).await;
            Response::json(&json!(node.faults()))
        }
        Err(error) => bad_request(error.to_string()),
    }
}

/// Returns the state of the node, without the effect of faults.
fn state(node: &Node) -> Response {
    Response::json(&json!({
        "host_id": node.own,
        "mode": node.mode().to_string(),
        "ring": node.ring(),
        "generation": node.generation(),
        "tokens": node.tokens().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "members": node.view().members.all().collect::<Vec<_>>(),
    }))
}
