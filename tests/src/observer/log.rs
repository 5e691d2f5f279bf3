//! Reads writes from the audit log.

use std::path::PathBuf;

use jiff::Timestamp;
use messina_testbed::audit;
use serde_json::Value;

use crate::expect_ok;

/// A write that was answered.
#[derive(Clone, Debug)]
pub struct Write {
    /// When the API server received it.
    pub received: Timestamp,
    /// When the API server answered it.
    pub answered: Timestamp,
    /// The user.
    pub user: String,
    /// The verb, such as `create` or `patch`.
    pub verb: String,
    /// The resource, followed by a slash and the subresource if there is one.
    pub resource: String,
    /// The namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The HTTP status code of the response.
    pub code: u16,
    /// The body of the request.
    pub body: Value,
    /// The resulting object, for kinds whose responses the log has.
    pub result: Value,
}

impl Write {
    /// Parses a line of the log; none for reads, and for requests that are not answered yet.
    pub fn read(line: &str) -> Option<Self> {
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("the audit log: {error}: {line}"));
        let text = |path: &str| entry.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let verb = text("/verb");
        let code = entry.pointer("/responseStatus/code").and_then(Value::as_u64).unwrap_or_default() as u16;
        if ["get", "list", "watch"].contains(&verb.as_str()) || text("/stage") != "ResponseComplete" {
            return None;
        }
        let time = |path: &str| expect_ok(text(path).parse::<Timestamp>());
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

    /// Whether it succeeded.
    pub fn is_done(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// The UID of the object afterwards.
    pub fn uid(&self) -> Option<&str> {
        self.result["metadata"]["uid"].as_str()
    }
}

/// The writes to one namespace, read incrementally.
#[derive(Debug)]
pub struct Log {
    log: audit::Log,
    namespace: String,
}

impl Log {
    /// The writes from now on.
    pub fn from_now(file: PathBuf, namespace: &str) -> Self {
        Self { log: expect_ok(audit::Log::from_now(file)), namespace: namespace.into() }
    }

    /// The writes since the last call.
    pub fn more(&mut self) -> Vec<Write> {
        // Many tests share a log: lines of other namespaces are not parsed.
        let named = format!(r#""namespace":"{}""#, self.namespace);
        let text = expect_ok(self.log.advance());
        let writes = text.lines().filter(|line| line.contains(&named)).filter_map(Write::read);
        writes.filter(|write| write.namespace == self.namespace).collect()
    }
}
