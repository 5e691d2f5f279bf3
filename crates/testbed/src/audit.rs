//! Reads requests from the audit log of an API server.

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
    /// The user.
    pub user: String,
    /// The verb, such as `create` or `watch`.
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, followed by a slash and the subresource if there is one.
    pub resource: String,
    /// The namespace; empty if there is none.
    pub namespace: String,
    /// The object's name; empty if the request has none.
    pub name: String,
    /// The HTTP status code of the response.
    pub code: u16,
    /// Whether the user lacks the permission. Admission plugins reject requests with the same code for other reasons.
    pub is_unauthorized: bool,
}

/// A cluster's audit log, from some position on.
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
        let from = fs::metadata(&file).doing(|| format!("reading the size of {}", file.display()))?.len();
        Ok(Self { file, from })
    }

    /// The requests that were answered since then. A watch appears at its beginning and at its end.
    pub fn requests(&self) -> Result<Vec<Request>> {
        self.text()?.lines().map(request).collect()
    }

    /// The requests since then of users whose names begin with one of these. Other lines are not parsed, because many
    /// tests share a log.
    pub fn requests_by(&self, users: &[&str]) -> Result<Vec<Request>> {
        let written: Vec<String> = users.iter().map(|user| format!(r#""username":"{user}"#)).collect();
        let text = self.text()?;
        let lines = text.lines().filter(|line| written.iter().any(|user| line.contains(user)));
        let mut requests = lines.map(request).collect::<Result<Vec<_>>>()?;
        // The text may also occur in the body of a request.
        requests.retain(|request| users.iter().any(|user| request.user.starts_with(user)));
        Ok(requests)
    }

    /// The text of the log since then. Earlier text is not read, because the log of many tests is long.
    pub fn text(&self) -> Result<String> {
        self.whole_lines().map(|(text, _)| text)
    }

    /// The text of the log since then, or since the last call.
    pub fn advance(&mut self) -> Result<String> {
        let (text, end) = self.whole_lines()?;
        self.from = end;
        Ok(text)
    }

    /// The complete lines that begin after the position, and the position after the last of them.
    fn whole_lines(&self) -> Result<(String, u64)> {
        let doing = || format!("reading {}", self.file.display());
        let mut file = File::open(&self.file).doing(doing)?;
        // The byte before shows whether the first line begins at the position.
        let begin = self.from.saturating_sub(1);
        file.seek(SeekFrom::Start(begin)).doing(doing)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).doing(doing)?;
        let after = |newline: Option<usize>| newline.map_or(0, |place| place + 1);
        let is_newline = |byte: &u8| *byte == b'\n';
        let first = if self.from == 0 { 0 } else { after(bytes.iter().position(is_newline)) };
        let end = after(bytes.iter().rposition(is_newline));
        if first >= end {
            return Ok((String::new(), self.from));
        }
        bytes.truncate(end);
        bytes.drain(..first);
        let text = String::from_utf8(bytes).map_err(malformed(format!("reading {}", self.file.display())))?;
        Ok((text, begin + end as u64))
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
        is_unauthorized: text("/annotations/authorization.k8s.io~1decision") == "forbid",
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn log_returns_only_complete_lines_after_its_position() {
        let file = std::env::temp_dir().join(format!("messina-audit-test-{}", std::process::id()));
        let write = |text: &str| fs::write(&file, text).unwrap();
        write("one\ntwo\n");
        let mut whole = Log::new(file.clone());
        let mut later = Log::from_now(file.clone()).unwrap();
        assert_eq!((whole.advance().unwrap(), later.advance().unwrap()), ("one\ntwo\n".into(), String::new()));
        write("one\ntwo\nthr");
        let mut within = Log::from_now(file.clone()).unwrap();
        assert_eq!((later.advance().unwrap(), within.advance().unwrap()), (String::new(), String::new()));
        write("one\ntwo\nthree\nfour\nfi");
        assert_eq!(later.advance().unwrap(), "three\nfour\n");
        assert_eq!(within.text().unwrap(), "four\n");
        assert_eq!(within.advance().unwrap(), "four\n");
        assert_eq!((later.text().unwrap(), within.text().unwrap()), (String::new(), String::new()));
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn requests_are_selected_by_user() {
        let file = std::env::temp_dir().join(format!("messina-audit-users-test-{}", std::process::id()));
        let line =
            |user: &str, said: &str| format!(r#"{{"user":{{"username":"{user}"}},"verb":"get","said":"{said}"}}"#);
        let quoting = r#"{"user":{"username":"other"},"requestObject":{"username":"a:one"}}"#;
        fs::write(&file, [&line("a:one", ""), "no JSON", &line("b:one", ""), quoting, ""].join("\n")).unwrap();
        let log = Log::new(file.clone());
        let users =
            |begin: &[&str]| log.requests_by(begin).unwrap().into_iter().map(|one| one.user).collect::<Vec<_>>();
        assert_eq!(users(&["a:"]), ["a:one"]);
        assert_eq!(users(&["a:one", "b:"]), ["a:one", "b:one"]);
        fs::remove_file(&file).unwrap();
    }
}
