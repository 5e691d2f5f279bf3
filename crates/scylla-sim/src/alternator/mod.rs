//! A little of Alternator, ScyllaDB's DynamoDB-compatible API: enough to see that requests reach a node and are
//! checked. Tables are kept in memory and forwarded to all nodes that are up.

mod signature;

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard, PoisonError},
};

use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    node::Node,
    web::{Request, Response},
};

const JSON: &str = "application/x-amz-json-1.0";

/// An error in the format of DynamoDB.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    kind: &'static str,
    message: String,
}

impl Fault {
    fn new(kind: &'static str, message: &str) -> Self {
        Self { kind, message: message.to_owned() }
    }

    fn invalid(message: &str) -> Self {
        Self::new("ValidationException", message)
    }
}

/// The tables.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Tables {
    tables: BTreeMap<String, Table>,
    writes: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Table {
    key_schema: Value,
    attributes: Value,
    created: f64,
    /// By key, in JSON.
    items: BTreeMap<String, Value>,
}

pub(crate) async fn respond(node: Arc<Node>, request: Request) -> Response {
    node.unpaused().await;
    let path = request.path.trim_end_matches('/');
    match (&request.method, path) {
        (&Method::GET, "") => {
            let host = request.header("host").unwrap_or_default();
            Response::text("text/plain", format!("healthy: {host}"))
        }
        (&Method::GET, "/localnodes") => {
            let view = node.view();
            let live = view.live();
            let is_local = |address| view.members.at(address).is_some_and(|m| m.datacenter == node.config.datacenter);
            Response::json(&json!(live.into_iter().filter(|&address| is_local(address)).collect::<Vec<_>>()))
        }
        (&Method::POST, "") => match operate(&node, &request).await {
            Ok(value) => Response { content_type: JSON, ..Response::json(&value) },
            Err(fault) => {
                let body = json!({ "__type": format!("com.amazonaws.dynamodb.v20120810#{}", fault.kind), "message": fault.message });
                Response { status: StatusCode::BAD_REQUEST, content_type: JSON, ..Response::json(&body) }
            }
        },
        _ => Response::error(StatusCode::NOT_FOUND, "Not found"),
    }
}

async fn operate(node: &Arc<Node>, request: &Request) -> Result<Value, Fault> {
    let config = &node.config.alternator;
    if config.enforces_authorization {
        signature::check(request, &config.users, Timestamp::now())?;
    }
    let target = request.header("x-amz-target").unwrap_or_default();
    let operation = target.rsplit('.').next().unwrap_or_default();
    let body: Value = serde_json::from_slice(&request.body).map_err(|error| Fault::invalid(&error.to_string()))?;
    let response = node.lock_tables().operate(operation, &body)?;
    if matches!(operation, "CreateTable" | "PutItem") {
        node.forward_write(json!({ "operation": operation, "body": body })).await;
    }
    Ok(response)
}

impl Node {
    fn lock_tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a write that another node forwarded.
    pub(crate) fn apply_write(&self, write: &Value) {
        let operation = write["operation"].as_str().unwrap_or_default();
        // An existing table is not created again; the node that received the request has reported that to its client.
        let _ = self.lock_tables().operate(operation, &write["body"]);
    }

    pub(crate) fn dump_tables(&self) -> Value {
        json!(*self.lock_tables())
    }

    pub(crate) fn replace_tables(&self, dump: &Value) {
        if let Ok(tables) = Tables::deserialize(dump) {
            *self.lock_tables() = tables;
        }
    }
}

impl Tables {
    /// Returns the number of writes.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    fn operate(&mut self, operation: &str, body: &Value) -> Result<Value, Fault> {
        match operation {
            "ListTables" => Ok(json!({ "TableNames": self.tables.keys().collect::<Vec<_>>() })),
            "CreateTable" => self.create(body),
            "DescribeTable" => {
                let (name, table) = self.table(body)?;
                Ok(json!({ "Table": table.describe(name) }))
            }
            "PutItem" => self.put(body),
            "GetItem" => {
                let (_, table) = self.table(body)?;
                let key = table.key_of(&body["Key"])?;
                Ok(table.items.get(&key).map_or(json!({}), |item| json!({ "Item": item })))
            }
            _ => Err(Fault::new("UnknownOperationException", &format!("Unsupported operation {operation}"))),
        }
    }

    fn create(&mut self, body: &Value) -> Result<Value, Fault> {
        let name = body["TableName"].as_str().ok_or_else(|| Fault::invalid("TableName is missing"))?;
        if self.tables.contains_key(name) {
            return Err(Fault::new("ResourceInUseException", &format!("Table {name} already exists")));
        }
        if body["KeySchema"].as_array().is_none_or(Vec::is_empty) {
            return Err(Fault::invalid("KeySchema is missing"));
        }
        let table = Table {
            key_schema: body["KeySchema"].clone(),
            attributes: body["AttributeDefinitions"].clone(),
            created: Timestamp::now().as_second() as f64,
            items: BTreeMap::new(),
        };
        let description = table.describe(name);
        self.tables.insert(name.to_owned(), table);
        self.writes += 1;
        Ok(json!({ "TableDescription": description }))
    }

    fn put(&mut self, body: &Value) -> Result<Value, Fault> {
        let (name, table) = self.table(body)?;
        let (name, key) = (name.to_owned(), table.key_of(&body["Item"])?);
        if let Some(table) = self.tables.get_mut(&name) {
            table.items.insert(key, body["Item"].clone());
        }
        self.writes += 1;
        Ok(json!({}))
    }

    fn table<'a>(&self, body: &'a Value) -> Result<(&'a str, &Table), Fault> {
        let name = body["TableName"].as_str().ok_or_else(|| Fault::invalid("TableName is missing"))?;
        let missing = || {
            Fault::new("ResourceNotFoundException", &format!("Requested resource not found: Table: {name} not found"))
        };
        Ok((name, self.tables.get(name).ok_or_else(missing)?))
    }
}

impl Table {
    fn describe(&self, name: &str) -> Value {
        json!({
            "TableName": name,
            "TableStatus": "ACTIVE",
            "KeySchema": self.key_schema,
            "AttributeDefinitions": self.attributes,
            "CreationDateTime": self.created,
            "BillingModeSummary": { "BillingMode": "PAY_PER_REQUEST" },
        })
    }

    /// Returns the values of the key attributes of an item.
    fn key_of(&self, item: &Value) -> Result<String, Fault> {
        let names = self.key_schema.as_array().into_iter().flatten().filter_map(|part| part["AttributeName"].as_str());
        let mut key = Vec::new();
        for name in names {
            match item.get(name) {
                Some(value) => key.push(value),
                None => return Err(Fault::invalid(&format!("The key attribute {name} is missing"))),
            }
        }
        Ok(json!(key).to_string())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn item_is_returned_after_it_was_stored() {
        let mut tables = Tables::default();
        let create = json!({ "TableName": "t", "KeySchema": [{ "AttributeName": "id", "KeyType": "HASH" }] });
        tables.operate("CreateTable", &create).unwrap();
        assert_eq!(tables.operate("CreateTable", &create).unwrap_err().kind, "ResourceInUseException");
        let item = json!({ "id": { "S": "a" }, "value": { "N": "1" } });
        tables.operate("PutItem", &json!({ "TableName": "t", "Item": item })).unwrap();
        let get = |key| json!({ "TableName": "t", "Key": { "id": { "S": key } } });
        assert_eq!(tables.operate("GetItem", &get("a")).unwrap(), json!({ "Item": item }));
        assert_eq!(tables.operate("GetItem", &get("b")).unwrap(), json!({}));
        assert_eq!(tables.operate("ListTables", &json!({})).unwrap(), json!({ "TableNames": ["t"] }));
        let other = json!({ "TableName": "other" });
        assert_eq!(tables.operate("DescribeTable", &other).unwrap_err().kind, "ResourceNotFoundException");
        assert_eq!(tables.operate("DropTable", &other).unwrap_err().kind, "UnknownOperationException");
    }
}
