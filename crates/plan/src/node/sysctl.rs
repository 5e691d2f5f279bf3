//! Kernel settings (sysctls) of Kubernetes nodes: which of them a datacenter may set.
//!
//! They are set by a privileged container, for all that runs on the Kubernetes node, and some of them run programs as root there
//! (`kernel.core_pattern`). So only those are set that are known to be harmless to others, and those that who runs the operator
//! allows.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// What every datacenter may set.
pub const USUAL: [&str; 3] = ["fs.aio-max-nr", "net.*", "vm.*"];

/// A text that names no kernel setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no name of a kernel setting: write it as fs.aio-max-nr")]
pub struct NotAName(String);

/// The name of a kernel setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Folders and file below `/proc/sys`. None is empty, `.` or `..`.
    parts: Vec<String>,
}

impl Name {
    /// Its path below `/proc/sys`.
    pub fn path(&self) -> String {
        self.parts.join("/")
    }
}

impl FromStr for Name {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let parts = parts(text).filter(|parts| parts.len() > 1);
        parts.map(|parts| Self { parts }).ok_or_else(|| NotAName(text.to_owned()))
    }
}

/// Dots divide the parts of a name, unless the first divider is a slash. Where dots divide, a slash stands for a dot in a part,
/// as in names of network interfaces: `net.ipv4.conf.eth0/1.forwarding`. `sysctl` reads names in the same way.
fn parts(text: &str) -> Option<Vec<String>> {
    let first = text.find(['.', '/']).map(|at| &text[at..]);
    let parts: Vec<String> = if first.is_some_and(|rest| rest.starts_with('/')) {
        text.split('/').map(ToOwned::to_owned).collect()
    } else {
        text.split('.').map(|part| part.replace('/', ".")).collect()
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_part = |part: &String| part.bytes().all(is_plain) && part.bytes().any(|byte| byte != b'.');
    parts.iter().all(is_part).then_some(parts)
}

/// A kernel setting, or all below one name: `kernel.numa_balancing`, `fs.*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<String>,
    /// Whether more parts follow.
    is_open: bool,
}

impl Pattern {
    fn matches(&self, name: &Name) -> bool {
        name.parts.starts_with(&self.parts) && (name.parts.len() > self.parts.len()) == self.is_open
    }
}

impl FromStr for Pattern {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let text = text.trim();
        let folder = text.strip_suffix(".*").or(text.strip_suffix("/*"));
        let parts = parts(folder.unwrap_or(text)).filter(|parts| folder.is_some() || parts.len() > 1);
        let parts = parts.ok_or_else(|| NotAName(text.to_owned()))?;
        Ok(Self { text: text.to_owned(), parts, is_open: folder.is_some() })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Which kernel settings may be set: the usual ones, and others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed(Vec<Pattern>);

impl Allowed {
    /// The usual ones, and these.
    pub fn with(others: impl IntoIterator<Item = Pattern>) -> Self {
        Self(others.into_iter().collect())
    }

    /// Whether a setting is one of the usual ones.
    pub fn is_usual(name: &Name) -> bool {
        USUAL.iter().filter_map(|text| text.parse().ok()).any(|pattern: Pattern| pattern.matches(name))
    }

    /// The pattern besides the usual ones that a setting matches.
    pub fn other(&self, name: &Name) -> Option<&Pattern> {
        self.0.iter().find(|pattern| pattern.matches(name))
    }

    /// Whether a setting may be set.
    pub fn has(&self, name: &Name) -> bool {
        Self::is_usual(name) || self.other(name).is_some()
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = self.0.iter().map(ToString::to_string);
        let all: Vec<String> = USUAL.into_iter().map(ToOwned::to_owned).chain(others).collect();
        formatter.write_str(&all.join(", "))
    }
}

/// Divides `name=value`.
pub fn divide(setting: &str) -> Option<(&str, &str)> {
    setting.split_once('=').map(|(name, value)| (name.trim(), value.trim()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn allows(others: &[&str], name: &str) -> bool {
        let allowed = Allowed::with(others.iter().map(|text| text.parse().unwrap()));
        name.parse().is_ok_and(|name| allowed.has(&name))
    }

    #[test]
    fn names_are_paths() {
        for (name, path) in [
            ("fs.aio-max-nr", "fs/aio-max-nr"),
            ("fs/aio-max-nr", "fs/aio-max-nr"),
            ("net.ipv4.conf.eth0/1.forwarding", "net/ipv4/conf/eth0.1/forwarding"),
            ("net/ipv4/conf/eth0.1/forwarding", "net/ipv4/conf/eth0.1/forwarding"),
        ] {
            assert_eq!(name.parse::<Name>().unwrap().path(), path, "{name}");
        }
    }

    /// Each of them is below `net` for who looks at its beginning only.
    #[test]
    fn tricks_with_paths_are_no_names() {
        for name in [
            "net/../kernel/core_pattern",
            "net.//.kernel.core_pattern",
            "net./.kernel.core_pattern",
            "net/./core/somaxconn",
            "net//core/somaxconn",
            "net..kernel.core_pattern",
            "net.../kernel.core_pattern",
            "net.../x",
            "net/.../x",
            "/net/core/somaxconn",
            "/proc/sys/net/core/somaxconn",
            ".net.core",
            "net.",
            "net/",
            "net",
            "",
            "net.core.somax conn",
            "net.core\0.somaxconn",
            "net.core.somaxconn\n",
            "net.ipv4.*",
        ] {
            assert!(name.parse::<Name>().is_err(), "{name:?}");
        }
    }

    #[test]
    fn only_some_settings_are_allowed() {
        for name in ["fs.aio-max-nr", "fs/aio-max-nr", "net.core.somaxconn", "net/core/somaxconn", "vm.swappiness"] {
            assert!(allows(&[], name), "{name}");
        }
        for name in
            ["kernel.core_pattern", "kernel/core_pattern", "fs.suid_dumpable", "fs.aio-max-nr.x", "network.x", "vmx.y"]
        {
            assert!(!allows(&[], name), "{name}");
        }
    }

    #[test]
    fn others_are_allowed_by_name_or_by_folder() {
        let others = ["kernel.numa_balancing", "fs.*"];
        for (name, is_allowed) in [
            ("kernel.numa_balancing", true),
            ("kernel/numa_balancing", true),
            ("kernel.numa_balancing.x", false),
            ("kernel.core_pattern", false),
            ("fs.file-max", true),
            ("net.core.somaxconn", true),
        ] {
            assert_eq!(allows(&others, name), is_allowed, "{name}");
        }
        assert!(allows(&["kernel/sched/*"], "kernel.sched.x") && !allows(&["kernel/sched/*"], "kernel.core_pattern"));
        assert!(!allows(&["kernel/sched.*"], "kernel.core_pattern"));
        for pattern in ["*", "kernel", "kernel.*.x", "kernel/../fs.*", "", ".*"] {
            assert!(pattern.parse::<Pattern>().is_err(), "{pattern:?}");
        }
    }

    #[test]
    fn the_usual_settings_are_patterns() {
        assert!(USUAL.iter().all(|text| text.parse::<Pattern>().is_ok()));
        let allowed = Allowed::with(["kernel.numa_balancing".parse().unwrap()]);
        assert_eq!(allowed.to_string(), "fs.aio-max-nr, net.*, vm.*, kernel.numa_balancing");
    }
}
