//! `scylla sstable query`: reads the files of `system.local` without a running node.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::ToolError;
use crate::disk;

/// Runs `scylla sstable`.
pub fn run(arguments: &[String]) -> Result<(), ToolError> {
    println!("{}", query_output(arguments)?);
    Ok(())
}

/// Returns the output.
fn query_output(arguments: &[String]) -> Result<String, ToolError> {
    let [operation, arguments @ ..] = arguments else { return Err(usage("error: an operation is missing")) };
    if operation != "query" {
        return Err(usage(&format!("error: the operation {operation} is not simulated; only query is")));
    }
    let mut options = Map::new();
    let mut files = Vec::new();
    let mut arguments = arguments.iter().peekable();
    while let Some(argument) = arguments.next() {
        match argument.strip_prefix("--") {
            None => files.push(PathBuf::from(argument)),
            Some("system-schema") => {}
            Some(option) => {
                let (name, value) = match option.split_once('=') {
                    Some((name, value)) => (name, Some(value.to_owned())),
                    None => (option, arguments.next().cloned()),
                };
                if ![
                    "scylla-data-dir",
                    "scylla-yaml-file",
                    "output-format",
                    "keyspace",
                    "table",
                    "query",
                    "logger-log-level",
                ]
                .contains(&name)
                {
                    return Err(usage(&format!("error: unrecognised option '--{name}'")));
                }
                options.insert(name.to_owned(), json!(value));
            }
        }
    }
    let option = |name: &str| options.get(name).and_then(Value::as_str);
    if (option("keyspace"), option("table")) != (Some("system"), Some("local")) {
        return Err(usage("error: only the table system.local is simulated"));
    }
    if files.is_empty() {
        return Err(usage("error: no sstables specified on the command line"));
    }
    let columns = columns(option("query").unwrap_or("SELECT * FROM scylla_sstable.local"))?;
    let mut rows = Vec::new();
    for file in &files {
        let local = disk::read(file)
            .map_err(|error| ToolError::Response(format!("error loading sstable {}: {error}", file.display())))?;
        rows.push(row(&local, &columns)?);
    }
    // Several files are one table with one row; the last one is the newest.
    let rows = rows.pop().into_iter().collect::<Vec<_>>();
    match option("output-format") {
        Some("json") => Ok(json!(rows).to_string()),
        Some("text") | None => Ok(rows.iter().map(table).collect()),
        Some(format) => Err(usage(&format!("error: invalid output-format: {format}"))),
    }
}

fn usage(message: &str) -> ToolError {
    ToolError::Usage(message.to_owned())
}

/// The columns of `SELECT a, b FROM scylla_sstable.local`.
fn columns(query: &str) -> Result<Vec<String>, ToolError> {
    let words = query.trim().trim_end_matches(';').replace(',', " ");
    let words: Vec<&str> = words.split_whitespace().collect();
    match words[..] {
        [select, ref columns @ .., from, "scylla_sstable.local"]
            if select.eq_ignore_ascii_case("select") && from.eq_ignore_ascii_case("from") && !columns.is_empty() =>
        {
            Ok(columns.iter().map(|column| (*column).to_owned()).collect())
        }
        _ => Err(usage(&format!("error: cannot run this query on scylla_sstable.local: {query}"))),
    }
}

fn row(local: &disk::Local, columns: &[String]) -> Result<Map<String, Value>, ToolError> {
    let all = json!({
        "key": "local",
        "bootstrapped": local.bootstrapped,
        "cluster_name": local.cluster_name,
        "data_center": local.data_center,
        "host_id": local.host_id,
        "rack": local.rack,
        "release_version": local.release_version,
    });
    let Value::Object(all) = all else { return Ok(Map::new()) };
    if columns == ["*"] {
        return Ok(all);
    }
    let column = |name: &String| match all.get(name) {
        Some(value) => Ok((name.clone(), value.clone())),
        None => Err(usage(&format!("error: Unrecognized name {name}"))),
    };
    columns.iter().map(column).collect()
}

fn table(row: &Map<String, Value>) -> String {
    let cells: Vec<(&str, &str)> =
        row.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default())).collect();
    let line = |cells: Vec<String>| format!(" {}\n", cells.join(" | "));
    let width = |(name, value): &(&str, &str)| name.len().max(value.len());
    let head = line(cells.iter().map(|cell| format!("{:<1$}", cell.0, width(cell))).collect());
    let rule: String = cells.iter().map(|cell| "-".repeat(width(cell) + 2)).collect::<Vec<_>>().join("+") + "\n";
    head + &rule + &line(cells.iter().map(|cell| format!("{:<1$}", cell.1, width(cell))).collect())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn query_selects_columns_of_one_table() {
        assert_eq!(columns("SELECT bootstrapped FROM scylla_sstable.local").unwrap(), ["bootstrapped"]);
        assert_eq!(columns("select host_id, rack from scylla_sstable.local;").unwrap(), ["host_id", "rack"]);
        assert!(columns("SELECT bootstrapped FROM system.local").is_err());
        assert!(columns("DELETE FROM scylla_sstable.local").is_err());
    }
}
