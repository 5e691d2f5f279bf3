//! Snapshots: files below the directory of their table, as a backup reads them.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use http::StatusCode;
use ring::digest;
use serde_json::{Value, json};

use super::{has_keyspace, no_keyspace, nothing, tables};
use crate::{
    disk::DiskError,
    node::{Mode, Node},
    web::{Request, Response},
};

const FILES: &[&str] = &["Data.db", "Index.db", "Filter.db", "Statistics.db", "Summary.db", "TOC.txt"];

/// The ID of a table, the same on every node.
pub(super) fn table_id(keyspace: &str, table: &str) -> String {
    let digest = digest::digest(&digest::SHA256, format!("{keyspace}.{table}").as_bytes());
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Takes a snapshot with the tag `tag`, of the keyspaces `kn` or all, of the tables `cf` or all.
pub(super) fn take(node: &Node, request: &Request) -> Response {
    let Some(tag) = request.parameter("tag").filter(|tag| !tag.contains('/') && !tag.starts_with('.')) else {
        return super::bad_request("You must supply a snapshot name.");
    };
    let list = |name| request.parameter(name).map(|list| list.split(',').collect::<Vec<_>>());
    let (keyspaces, requested) = (list("kn"), list("cf"));
    if let Some(unknown) = keyspaces.iter().flatten().find(|keyspace| !has_keyspace(node, keyspace)) {
        return no_keyspace(unknown);
    }
    if matches!(node.mode(), Mode::Starting | Mode::Joining | Mode::Bootstrap) {
        let message = "std::runtime_error (Cannot snapshot until bootstrap completes)";
        return Response::error(StatusCode::INTERNAL_SERVER_ERROR, message);
    }
    if node.faults().refuse_snapshots {
        return Response::error(StatusCode::INTERNAL_SERVER_ERROR, "std::runtime_error (snapshots fail on command)");
    }
    let chosen: Vec<(String, String)> = tables(node)
        .into_iter()
        .filter(|(keyspace, table)| {
            keyspaces.as_ref().is_none_or(|keyspaces| keyspaces.contains(&keyspace.as_str()))
                && requested.as_ref().is_none_or(|requested| requested.contains(&table.as_str()))
        })
        .collect();
    // A tag is used once.
    let is_there = |(keyspace, table): &(String, String)| directory(node, keyspace, table, tag).exists();
    if let Some((keyspace, _)) = chosen.iter().find(|one| is_there(one)) {
        let message = format!("std::runtime_error (Keyspace {keyspace}: snapshot {tag} already exists.)");
        return Response::error(StatusCode::INTERNAL_SERVER_ERROR, message);
    }
    for (keyspace, table) in &chosen {
        if let Err(source) = write(node, keyspace, table, tag) {
            let error = DiskError::Write { source };
            node.isolate(&error);
            return Response::error(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        }
    }
    nothing()
}

/// Returns the directory of a table's snapshot.
fn directory(node: &Node, keyspace: &str, table: &str, tag: &str) -> PathBuf {
    let table_directory = node.config.data_dir.join(keyspace).join(format!("{table}-{}", table_id(keyspace, table)));
    table_directory.join("snapshots").join(tag)
}

fn write(node: &Node, keyspace: &str, table: &str, tag: &str) -> io::Result<()> {
    let directory = directory(node, keyspace, table, tag);
    let generation = &table_id(tag, node.own.as_str())[..17];
    let names: Vec<String> = FILES.iter().map(|file| format!("me-3g00_0000_{generation}-big-{file}")).collect();
    for name in &names {
        node.disk.write(&directory.join(name), format!("{keyspace}.{table}\n").repeat(8).as_bytes())?;
    }
    let manifest = json!({ "files": names.iter().filter(|name| name.ends_with("-Data.db")).collect::<Vec<_>>() });
    node.disk.write(&directory.join("manifest.json"), manifest.to_string().as_bytes())?;
    let schema = format!("CREATE TABLE {keyspace}.{table} (key text PRIMARY KEY);\n");
    node.disk.write(&directory.join("schema.cql"), schema.as_bytes())
}

/// All snapshots, by tag.
pub(super) fn list(node: &Node) -> Response {
    let mut snapshots = BTreeMap::<String, Vec<Value>>::new();
    for (tag, keyspace, table, _) in found(&node.config.data_dir) {
        snapshots.entry(tag).or_default().push(json!({ "ks": keyspace, "cf": table, "total": 0, "live": 0 }));
    }
    Response::json(&json!(
        snapshots.iter().map(|(tag, tables)| json!({ "key": tag, "value": tables })).collect::<Vec<_>>()
    ))
}

/// Removes the snapshot `tag` or all, of the keyspaces `kn` or all.
pub(super) fn delete(node: &Node, request: &Request) -> Response {
    let keyspaces = request.parameter("kn").map(|list| list.split(',').collect::<Vec<_>>());
    for (tag, keyspace, _, path) in found(&node.config.data_dir) {
        let is_requested = request.parameter("tag").is_none_or(|requested| requested == tag)
            && keyspaces.as_ref().is_none_or(|keyspaces| keyspaces.contains(&keyspace.as_str()));
        if is_requested && let Err(error) = fs::remove_dir_all(path) {
            return Response::error(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        }
    }
    nothing()
}

/// Snapshots on the disk: tag, keyspace, table and directory.
fn found(data_dir: &Path) -> Vec<(String, String, String, PathBuf)> {
    let mut found = Vec::new();
    for keyspace in entries(data_dir) {
        for table in entries(&keyspace) {
            for snapshot in entries(&table.join("snapshots")) {
                let (keyspace, table) = (name(&keyspace), name(&table));
                let table = table.rsplit_once('-').map_or(table.clone(), |(table, _)| table.to_owned());
                found.push((name(&snapshot), keyspace, table, snapshot));
            }
        }
    }
    found.sort();
    found
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
