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
    /// Whether the user lacks the permission. Admission answers with the same code where something else is wrong.
    pub is_unauthorized: bool,
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

    /// What these users were answered since then, each given by how its name begins. Other lines are not parsed: many tests
    /// share a log.
    pub fn requests_by(&self, users: &[&str]) -> Result<Vec<Request>> {
        let written: Vec<String> = users.iter().map(|user| format!(r#""username":"{user}"#)).collect();
        let text = self.text()?;
        let lines = text.lines().filter(|line| written.iter().any(|user| line.contains(user)));
        let mut requests = lines.map(request).collect::<Result<Vec<_>>>()?;
        // The text may also stand in what was written.
        requests.retain(|request| users.iter().any(|user| request.user.starts_with(user)));
        Ok(requests)
    }

    /// What was written since then. The log of many tests is long, so what comes before is not read.
    pub fn text(&self) -> Result<String> {
        self.whole_lines().map(|(text, _)| text)
    }

    /// What was written since then, or since the last call.
    pub fn advance(&mut self) -> Result<String> {
        let (text, end) = self.whole_lines()?;
        self.from = end;
        Ok(text)
    }

    /// The lines that began since then and are written to their end, and where the last one ends.
    fn whole_lines(&self) -> Result<(String, u64)> {
        let doing = || format!("reading {}", self.file.display());
        let mut file = File::open(&self.file).doing(doing)?;
        // The byte before tells whether the first line began since then.
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
    fn log_gives_only_lines_that_are_whole_and_begin_after_its_place() {
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
    fn requests_by_a_user_are_found_among_those_of_others() {
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
