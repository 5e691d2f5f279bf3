//! What the name of an image says.

/// Why an image does not say which version it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("image {image:?} has no tag, so its version is not known: name it as <repository>:<version>")]
pub struct NoVersion {
    /// The image.
    pub image: String,
}

/// The version in the name of an image, which is its tag.
///
/// ```
/// # use messina_api::names::image_version;
/// assert_eq!(image_version("mirror:5000/scylladb/scylla:2025.4.1@sha256:12a9"), Ok("2025.4.1"));
/// ```
pub fn image_version(image: &str) -> Result<&str, NoVersion> {
    let without_digest = image.split_once('@').map_or(image, |(name, _)| name);
    // A colon before the last slash is that of a registry's port.
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
    fn a_tag_is_a_version() {
        assert_eq!(image_version("scylla:2026.2.4"), Ok("2026.2.4"));
        assert_eq!(image_version("docker.io/scylladb/scylla:2026.2.4"), Ok("2026.2.4"));
    }

    #[test]
    fn a_port_or_a_digest_is_no_version() {
        for image in ["", "scylladb/scylla", "mirror:5000/scylla", "scylladb/scylla@sha256:12a9", "scylladb/scylla:"] {
            assert_eq!(image_version(image), Err(NoVersion { image: image.into() }));
        }
    }
}
