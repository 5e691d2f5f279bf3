//! Kernel settings (sysctls) of Kubernetes nodes: which of them a datacenter may set.
//!
//! A privileged container sets them for the whole Kubernetes node, and some of them run programs as root there
//! (`kernel.core_pattern`). So a datacenter may only set those that are harmless to other pods, and those that the
//! administrator of the operator allows.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// The kernel settings that every datacenter may set.
pub const USUAL: [&str; 3] = ["fs.aio-max-nr", "net.*", "vm.*"];

/// An invalid name of a kernel setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a valid name of a kernel setting: use the form fs.aio-max-nr")]
pub struct NotAName(String);

/// The name of a kernel setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Directories and file below `/proc/sys`. None is empty, `.` or `..`.
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

/// Splits a name at dots, or at slashes if the first separator is a slash. Where dots separate, a slash stands for a
/// dot in a part, as in names of network interfaces: `net.ipv4.conf.eth0/1.forwarding`. `sysctl` parses names in the
/// same way.
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

/// A pattern of kernel settings: one (`kernel.numa_balancing`) or all below a prefix (`fs.*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<String>,
    /// Whether it ends with a wildcard.
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

/// The kernel settings that datacenters may set: the default ones, and others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowed(Vec<Pattern>);

impl Allowed {
    /// Allows the default settings, and these.
    pub fn with(others: impl IntoIterator<Item = Pattern>) -> Self {
        Self(others.into_iter().collect())
    }

    /// Whether a setting is allowed by default.
    pub fn is_usual(name: &Name) -> bool {
        USUAL.iter().filter_map(|text| text.parse().ok()).any(|pattern: Pattern| pattern.matches(name))
    }

    /// Returns the additional pattern that a setting matches.
    pub fn other(&self, name: &Name) -> Option<&Pattern> {
        self.0.iter().find(|pattern| pattern.matches(name))
    }

    /// Whether a setting is allowed.
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

/// Splits `name=value`.
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

    /// Each of them would be below `net` if only the beginning were checked.
    #[test]
    fn path_traversal_is_rejected() {
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
    fn only_default_settings_are_allowed_without_patterns() {
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
    fn patterns_allow_a_name_or_all_below_a_prefix() {
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
    fn default_settings_are_valid_patterns() {
        assert!(USUAL.iter().all(|text| text.parse::<Pattern>().is_ok()));
        let allowed = Allowed::with(["kernel.numa_balancing".parse().unwrap()]);
        assert_eq!(allowed.to_string(), "fs.aio-max-nr, net.*, vm.*, kernel.numa_balancing");
    }
}
