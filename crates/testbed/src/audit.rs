//! What the API server was asked, from its audit log.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

use serde_json::Value;

use crate::error::{Doing, Result, malformed};

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    /// Who asked.
    pub user: String,
    /// What was to be done, such as `create` or `watch`.
    pub verb: String,
    /// The group of the kind; empty for the core of Kubernetes.
    pub group: String,
    /// The kind in its plural, with the subresource behind a slash.
    pub resource: String,
    /// The namespace; empty where there is none.
    pub namespace: String,
    /// The object's name; empty where none was named.
    pub name: String,
    /// The answer's code.
    pub code: u16,
}

/// A cluster's audit log, from a place in it on.
#[derive(Clone, Debug)]
pub struct Log {
    file: PathBuf,
    from: u64,
}

impl Log {
    /// The log from its beginning.
    pub fn new(file: PathBuf) -> Self {
        Self { file, from: 0 }
    }

    /// The log from now on.
    pub fn from_now(file: PathBuf) -> Result<Self> {
        let from = fs::metadata(&file).doing(|| format!("looking at {}", file.display()))?.len();
        Ok(Self { file, from })
    }

    /// What was answered since then. Watches are there when they began and when they ended.
    pub fn requests(&self) -> Result<Vec<Request>> {
        self.text()?.lines().map(request).collect()
    }

    /// What was written since then. The log of many tests is long, so what comes before is not read.
    pub fn text(&self) -> Result<String> {
        let doing = || format!("reading {}", self.file.display());
        let mut file = File::open(&self.file).doing(doing)?;
        file.seek(SeekFrom::Start(self.from)).doing(doing)?;
        let mut text = String::new();
        file.read_to_string(&mut text).doing(doing)?;
        Ok(text)
    }
}

fn request(line: &str) -> Result<Request> {
    let entry: Value = serde_json::from_str(line).map_err(malformed("reading the audit log"))?;
    let text = |path: &str| entry.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let subresource = text("/objectRef/subresource");
    let separator = if subresource.is_empty() { "" } else { "/" };
    Ok(Request {
        user: text("/user/username"),
        verb: text("/verb"),
        group: text("/objectRef/apiGroup"),
        resource: format!("{}{separator}{subresource}", text("/objectRef/resource")),
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: entry.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default() as u16,
    })
}
