//! The operator's requests, from the audit log.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
};

use jiff::Timestamp;
use serde::Deserialize;

use super::process::USER;
use crate::error::{Doing, Result};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    verb: String,
    user: User,
    object_ref: Option<ObjectRef>,
    response_status: Option<Status>,
    request_received_timestamp: Timestamp,
}

#[derive(Debug, Deserialize)]
struct User {
    username: String,
}

#[derive(Debug, Deserialize)]
struct ObjectRef {
    resource: Option<String>,
    subresource: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Status {
    code: Option<u16>,
}

impl Entry {
    fn resource(&self) -> String {
        let Some(ObjectRef { resource, subresource }) = &self.object_ref else { return String::new() };
        let parts = [resource.as_deref(), subresource.as_deref()];
        parts.into_iter().flatten().collect::<Vec<_>>().join("/")
    }

    fn code(&self) -> u16 {
        self.response_status.as_ref().and_then(|status| status.code).unwrap_or_default()
    }

    fn is_write(&self) -> bool {
        !["get", "list"].contains(&self.verb.as_str())
    }

    fn is_creation(&self) -> bool {
        self.verb == "create" && self.code() == 201 && self.resource() != "events"
    }
}

/// Requests of the operator other than watches and those for the lease.
#[derive(Debug)]
pub(super) struct Requests {
    from: Timestamp,
    entries: Vec<Entry>,
}

/// The requests since this time.
pub(super) fn since(log: &Path, from: Timestamp) -> Result<Requests> {
    let file = File::open(log).doing(|| format!("reading {}", log.display()))?;
    let is_asked = |entry: &Entry| {
        entry.user.username == USER
            && entry.request_received_timestamp >= from
            && entry.verb != "watch"
            && entry.resource() != "leases"
    };
    // The last line may be incomplete. It is not of the operator, because the caller has waited.
    let lines = BufReader::new(file).lines().map_while(std::io::Result::ok).filter(|line| line.contains(USER));
    let entries = lines.filter_map(|line| serde_json::from_str::<Entry>(&line).ok()).filter(is_asked).collect();
    Ok(Requests { from, entries })
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn writes(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_write()).count()
    }

    pub(super) fn created(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_creation()).count()
    }

    /// The number of reads of single objects.
    pub(super) fn reads(&self) -> usize {
        self.entries.iter().filter(|entry| entry.verb == "get").count()
    }

    pub(super) fn conflicts(&self) -> usize {
        self.entries.iter().filter(|entry| entry.code() == 409).count()
    }

    pub(super) fn until_last_creation(&self) -> f64 {
        self.until_last(Entry::is_creation)
    }

    pub(super) fn until_last_write(&self) -> f64 {
        self.until_last(Entry::is_write)
    }

    fn until_last(&self, counts: impl Fn(&Entry) -> bool) -> f64 {
        let times = self.entries.iter().filter(|entry| counts(entry)).map(|entry| entry.request_received_timestamp);
        times.max().map_or(0.0, |last| last.duration_since(self.from).as_secs_f64())
    }

    /// The number of requests by verb, resource and status code.
    pub(super) fn by_kind(&self) -> String {
        let mut kinds = BTreeMap::<String, usize>::new();
        for entry in &self.entries {
            *kinds.entry(format!("{} {} {}", entry.verb, entry.resource(), entry.code())).or_default() += 1;
        }
        kinds.into_iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
    }
}
