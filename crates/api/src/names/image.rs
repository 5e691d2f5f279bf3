//! The version in the name of an image.

/// An image without a tag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("image {image:?} has no tag, so its version is unknown: use <repository>:<version>")]
pub struct NoVersion {
    /// The image.
    pub image: String,
}

/// Returns the version of an image, which is its tag.
///
/// ```
/// # use messina_api::names::image_version;
/// assert_eq!(image_version("mirror:5000/scylladb/scylla:2025.4.1@sha256:12a9"), Ok("2025.4.1"));
/// ```
pub fn image_version(image: &str) -> Result<&str, NoVersion> {
    let without_digest = image.split_once('@').map_or(image, |(name, _)| name);
    // A colon before the last slash is that of a port of the registry.
    let last_part = without_digest.rsplit_once('/').map_or(without_digest, |(_, last)| last);
    match last_part.split_once(':') {
        Some((name, tag)) if !name.is_empty() && !tag.is_empty() => Ok(tag),
        _ => Err(NoVersion { image: image.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_is_the_version() {
        assert_eq!(image_version("scylla:2026.2.4"), Ok("2026.2.4"));
        assert_eq!(image_version("docker.io/scylladb/scylla:2026.2.4"), Ok("2026.2.4"));
    }

    #[test]
    fn port_or_digest_is_not_a_version() {
        for image in ["", "scylladb/scylla", "mirror:5000/scylla", "scylladb/scylla@sha256:12a9", "scylladb/scylla:"] {
            assert_eq!(image_version(image), Err(NoVersion { image: image.into() }));
        }
    }
}
