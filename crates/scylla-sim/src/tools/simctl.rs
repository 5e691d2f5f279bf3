//! `simctl`: fault injection and rows of a simulated node.

use http::Method;
use serde_json::{Map, Value, json};

use super::{ToolError, client::Api};
use crate::{args, node::faults::STEPS};

/// Runs a command of `simctl`.
pub async fn run(arguments: &[String]) -> Result<(), ToolError> {
    let (api, rest) = Api::of(arguments)?;
    let words: Vec<&str> = rest.iter().map(String::as_str).collect();
    let list = |names: &[&str]| json!(names.iter().flat_map(|names| names.split(',')).collect::<Vec<_>>());
    let faults = match words[..] {
        ["pause"] => json!({ "is_paused": true }),
        ["resume"] => json!({ "is_paused": false }),
        ["bootstrap-duration", time] => json!({ "bootstrap_ms": milliseconds(time)? }),
        ["decommission-duration", time] => json!({ "decommission_ms": milliseconds(time)? }),
        ["refuse-from", ref names @ ..] => json!({ "refuse_from": list(names) }),
        ["refuse-to", ref names @ ..] => json!({ "refuse_to": list(names) }),
        ["refuse", ref names @ ..] => json!({ "refuse_from": list(names), "refuse_to": list(names) }),
        ["crash-at", "never"] => json!({ "crash_at": null }),
        ["crash-at", step] => json!({ "crash_at": step, "crash_once": false }),
        ["full-disk", "on"] => json!({ "is_disk_full": true }),
        ["full-disk", "off"] => json!({ "is_disk_full": false }),
        ["view", "frozen"] => json!({ "is_view_frozen": true }),
        ["view", "down", ref names @ ..] => json!({ "report_down": list(names) }),
        ["view", "up", ref names @ ..] => json!({ "report_up": list(names) }),
        ["view", "true"] => json!({ "is_view_frozen": false, "report_down": [], "report_up": [] }),
        ["schema", "common"] => json!({ "schema": null }),
        ["schema", version] => json!({ "schema": version }),
        ["snapshots", "refused"] => json!({ "refuse_snapshots": true }),
        ["snapshots", "granted"] => json!({ "refuse_snapshots": false }),
        ["cleanups", "refused"] => json!({ "refuse_cleanups": true }),
        ["cleanups", "granted"] => json!({ "refuse_cleanups": false }),
        ["replicas", "none"] => json!({ "replicas": null }),
        ["replicas", count] => match count.parse::<usize>() {
            Ok(count) => json!({ "replicas": count }),
            Err(_) => return Err(ToolError::Usage(format!("{count} is no number"))),
        },
        ["keyspace", name, ref factors @ ..] if !factors.is_empty() => {
            let keyspace = json!({ "name": name, "replication": replication(factors)? });
            return print(&api.call(Method::POST, "/sim/keyspaces", keyspace.to_string()).await?);
        }
        ["write", keyspace, ref rows @ ..] if !rows.is_empty() => {
            let rows = pairs(rows)?.into_iter().map(|(key, value)| (key.to_owned(), json!(value)));
            let rows = Value::Object(rows.collect());
            return print(&api.call(Method::POST, &format!("/sim/rows/{keyspace}"), rows.to_string()).await?);
        }
        ["rows"] => return print(&api.get("/sim/rows").await?),
        ["faults"] => json!({}),
        ["config", entry] => return print(&api.get(&format!("/v2/config/{entry}")).await?),
        ["state"] => return print(&api.get("/sim/state").await?),
        ["steps"] => {
            STEPS.iter().for_each(|step| println!("{step}"));
            return Ok(());
        }
        ["crash"] => return died(api.post("/sim/crash").await),
        ["lose-disk"] => return died(api.post("/sim/lose-disk").await),
        _ => return Err(ToolError::Usage(USAGE.to_owned())),
    };
    print(&api.call(Method::POST, "/sim/faults", faults.to_string()).await?)
}

const USAGE: &str = "simctl [-h HOST] [-p PORT] COMMAND

  pause | resume                       response nobody, but stay; response again
  refuse-from|refuse-to|refuse [NODE...]  do not listen to, speak to, or either; by host ID or address; none to end it
  bootstrap-duration|decommission-duration TIME
  crash                                end now, as if killed
  crash-at STEP|never                  end at a step; `steps` lists them
  lose-disk                            remove everything on the disk and end
  full-disk on|off                     no room for state and snapshots
  view frozen | down [NODE...] | up [NODE...] | true   what the REST API tells of the ring
  schema VERSION|common                the schema that the node has, if not that of all others
  snapshots refused|granted            whether the node value_type snapshots
  cleanups refused|granted             whether the node cleans up
  replicas COUNT|none                  how many replicas a keyspace has in each datacenter: no fewer nodes may stay
  keyspace NAME DATACENTER=FACTOR...   create a keyspace
  write KEYSPACE KEY=VALUE...          write rows to their replicas, at consistency level QUORUM
  rows                                 the keyspaces and rows that are on the node's disk
  config ENTRY                         what the node reads in scylla.yaml
  faults | state | steps               what is in force; what the node knows; the named steps";

fn pairs<'a>(words: &[&'a str]) -> Result<Vec<(&'a str, &'a str)>, ToolError> {
    let pair = |word: &&'a str| word.split_once('=').ok_or_else(|| ToolError::Usage(format!("{word} has no =")));
    words.iter().map(pair).collect()
}

fn replication(words: &[&str]) -> Result<Value, ToolError> {
    let mut factors = Map::new();
    for (datacenter, factor) in pairs(words)? {
        let factor: usize = factor.parse().map_err(|_| ToolError::Usage(format!("{factor} is no number")))?;
        factors.insert(datacenter.to_owned(), json!(factor));
    }
    Ok(Value::Object(factors))
}

fn milliseconds(text: &str) -> Result<u64, ToolError> {
    let time = args::duration(text).ok_or_else(|| ToolError::Usage(format!("{text} is no time")))?;
    Ok(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// A node that crashes on request does not respond.
fn died(response: Result<Value, ToolError>) -> Result<(), ToolError> {
    match response {
        Err(ToolError::Response(message)) if message.starts_with("error executing") => {
            Err(ToolError::Response(message))
        }
        _ => Ok(()),
    }
}

fn print(value: &Value) -> Result<(), ToolError> {
    println!("{}", serde_json::to_string_pretty(value).map_err(std::io::Error::from)?);
    Ok(())
}
