//! Versions of ScyllaDB, such as 2026.2.4 or 2026.3.0-rc1.

use std::cmp::Ordering;

/// A semantic version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version(semver::Version);

impl Version {
    pub(crate) const fn release(major: u64, minor: u64, patch: u64) -> Self {
        Self(semver::Version::new(major, minor, patch))
    }

    /// Parses a version; none if it is invalid, such as `latest`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        semver::Version::parse(text).ok().map(Self)
    }

    /// Whether this is `other` or newer. A pre-release is older than its release.
    pub(crate) fn is_at_least(&self, other: &Self) -> bool {
        self.0.cmp_precedence(&other.0) != Ordering::Less
    }

    /// Whether this is `other`, one of its pre-releases, or newer.
    pub(crate) fn is_of_line(&self, other: &Self) -> bool {
        let release = |version: &semver::Version| (version.major, version.minor, version.patch);
        release(&self.0) >= release(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        Version::parse(text).unwrap_or(Version::release(0, 0, 0))
    }

    #[test]
    fn pre_release_is_older_than_its_release() {
        let required = Version::release(2026, 2, 0);
        for (text, expected) in [
            ("2026.2.0", true),
            ("2026.10.0", true),
            ("2027.1.0-rc1", true),
            ("2026.2.0-rc1", false),
            ("2026.1.9", false),
        ] {
            assert_eq!(version(text).is_at_least(&required), expected, "{text}");
        }
        assert!(version("2026.2.0-rc1").is_of_line(&required));
        assert!(!version("2026.1.9").is_of_line(&required));
    }

    #[test]
    fn invalid_versions_are_rejected() {
        for text in ["", "latest", "2026", "2026.2", "2026.2.0-", "2026.2.x", "2026..1", "+1.2.3", "1.2.+3"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }
}
