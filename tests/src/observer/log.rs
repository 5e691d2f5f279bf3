//! What was written, from the API server's audit log.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
};

use jiff::Timestamp;
use serde_json::Value;

use crate::well;

/// A write that was answered.
#[derive(Clone, Debug)]
pub struct Write {
    /// When it was asked for.
    pub received: Timestamp,
    /// When it was done.
    pub answered: Timestamp,
    /// Who made it.
    pub user: String,
    /// What was done, such as `create` or `patch`.
    pub verb: String,
    /// The kind in its plural, with the subresource behind a slash.
    pub resource: String,
    /// The namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The answer's code.
    pub code: u16,
    /// What was sent.
    pub body: Value,
    /// The object as it was afterwards, for kinds of which the log keeps that.
    pub result: Value,
}

impl Write {
    /// From a line of the log; none for what is no write, and for one that failed.
    pub fn read(line: &str) -> Option<Self> {
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("the audit log: {error}: {line}"));
        let text = |path: &str| entry.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let verb = text("/verb");
        let code = entry.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default() as u16;
        if ["get", "list", "watch"].contains(&verb.as_str()) || text("/stage") != "ResponseComplete" {
            return None;
        }
        let time = |path: &str| well(text(path).parse::<Timestamp>());
        let subresource = text("/objectRef/subresource");
        let separator = if subresource.is_empty() { "" } else { "/" };
        let (body, result) = (entry["requestObject"].clone(), entry["responseObject"].clone());
        let named = Some(text("/objectRef/name")).filter(|name| !name.is_empty());
        let name = named.unwrap_or_else(|| result["metadata"]["name"].as_str().unwrap_or_default().to_owned());
        Some(Self {
            received: time("/requestReceivedTimestamp"),
            answered: time("/stageTimestamp"),
            user: text("/user/username"),
            resource: format!("{}{separator}{subresource}", text("/objectRef/resource")),
            namespace: text("/objectRef/namespace"),
            name,
            verb,
            code,
            body,
            result,
        })
    }

    /// Whether it came about.
    pub fn is_done(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The UID of the object afterwards.
    pub fn uid(&self) -> Option<&str> {
        self.result["metadata"]["uid"].as_str()
    }
}

/// The log, read on and on.
#[derive(Debug)]
pub struct Log {
    file: PathBuf,
    namespace: String,
    place: u64,
}

impl Log {
    /// From its beginning: what was written into a namespace.
    pub fn new(file: PathBuf, namespace: &str) -> Self {
        Self { file, namespace: namespace.into(), place: 0 }
    }

    /// From now on.
    pub fn from_now(file: PathBuf, namespace: &str) -> Self {
        let place = well(file.metadata()).len();
        Self { file, namespace: namespace.into(), place }
    }

    /// What was written since the last time.
    pub fn more(&mut self) -> Vec<Write> {
        let mut file = well(File::open(&self.file));
        well(file.seek(SeekFrom::Start(self.place)));
        let mut bytes = Vec::new();
        well(file.read_to_end(&mut bytes));
        // The last line may be half written.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.place += whole as u64;
        let text = String::from_utf8_lossy(&bytes[..whole]);
        let writes = text.lines().filter_map(Write::read);
        writes.filter(|write| write.namespace == self.namespace).collect()
    }
}
