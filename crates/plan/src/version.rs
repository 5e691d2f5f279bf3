//! Versions of ScyllaDB, such as 2026.2.4 or 2026.3.0-rc1.

use std::cmp::Ordering;

/// A semantic version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version(semver::Version);

impl Version {
    pub(crate) const fn release(major: u64, minor: u64, patch: u64) -> Self {
        Self(semver::Version::new(major, minor, patch))
    }

    /// Parses the tag of an image; none if it is no version, such as `latest`. Tags need not be strict semantic
    /// versions: `2026.2.1-x86_64` and `2026.02.1` are versions, too.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (release, pre_release) = match text.split_once('-') {
            Some((_, "")) => return None,
            Some((release, pre_release)) => (release, pre_release),
            None => (text, ""),
        };
        let mut numbers = release.split('.').map(number);
        let release = (numbers.next()??, numbers.next()??, numbers.next()??);
        if numbers.next().is_some() {
            return None;
        }
        let pre = semver::Prerelease::new(&strict(pre_release)).ok()?;
        let (major, minor, patch) = release;
        Some(Self(semver::Version { pre, ..semver::Version::new(major, minor, patch) }))
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

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Returns the identifiers of a pre-release as semantic versioning requires them: without underscores, and numbers
/// without leading zeros.
fn strict(pre_release: &str) -> String {
    let identifiers = pre_release.split('.').map(|identifier| match number(identifier) {
        Some(number) => number.to_string(),
        None => identifier.replace('_', "-"),
    });
    identifiers.collect::<Vec<_>>().join(".")
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
    fn tags_that_are_no_strict_semantic_versions_can_be_compared() {
        let ascending = [
            ["2026.2.1-x86_64", "2026.2.2-x86_64"],
            ["2026.02.0", "2026.2.1"],
            ["2026.2.1-01", "2026.2.1-2"],
            ["2026.2.1-0.20260101.012345678901", "2026.2.1-0.20260102.0012345678901"],
            ["2026.2.1-rc1_a", "2026.2.1"],
            ["2026.2.1-rc.9", "2026.2.1-rc.10"],
        ];
        for [older, newer] in ascending {
            assert!(version(newer).is_at_least(&version(older)), "{newer}");
            assert!(!version(older).is_at_least(&version(newer)), "{older}");
        }
    }

    #[test]
    fn invalid_versions_are_rejected() {
        for text in [
            "",
            "latest",
            "2026",
            "2026.2",
            "2026.2.0-",
            "2026.2.x",
            "2026..1",
            "+1.2.3",
            "1.2.+3",
            "1.2.3.4",
            "1.2.3-a..b",
        ] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }
}
