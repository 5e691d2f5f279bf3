//! Names that are truncated to a maximum length and end in a hash, so that they stay unique.

use serde_json::json;

/// Maximum length of the names of most objects.
pub const MAX_SUBDOMAIN: usize = 253;
/// Maximum length of the name of a Service or a Namespace.
pub const MAX_LABEL: usize = 63;

const HASH_LENGTH: usize = 5;

/// Why a name cannot be generated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// All parts are empty.
    #[error("a name needs at least one part that is not empty")]
    NoParts,
    /// The maximum length is shorter than the hash.
    #[error("a name of at most {max_length} characters is too short for its hash of {HASH_LENGTH} characters")]
    TooShort {
        /// The maximum length.
        max_length: usize,
    },
}

/// Returns the parts in lower case and joined by dashes, with a hash of the original parts at the end. The text before
/// the hash is truncated to `max_length`. Empty parts are ignored.
///
/// ```
/// # use messina_api::names::truncated_hashed_name;
/// let parts = ["ScyllaDBDatacenter", "basic"];
/// assert_eq!(truncated_hashed_name(253, &parts).as_deref(), Ok("scylladbdatacenter-basic-3tpwb"));
/// assert_eq!(truncated_hashed_name(12, &parts).as_deref(), Ok("scylla-3tpwb"));
/// ```
pub fn truncated_hashed_name(max_length: usize, parts: &[&str]) -> Result<String, NameError> {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Err(NameError::NoParts);
    }
    let hash = name_hash(&parts);
    let room = max_length.checked_sub(hash.len()).ok_or(NameError::TooShort { max_length })?;
    let name = parts.join("-").to_lowercase();
    Ok(match &name[..name.floor_char_boundary(room.saturating_sub(1))] {
        "" => hash,
        beginning => format!("{beginning}-{hash}"),
    })
}

/// Returns the first five characters of the FNV-1a hash of the parts in base 36.
pub(super) fn name_hash(parts: &[&str]) -> String {
    // The hash is that of a line of JSON, in which Go escapes these three characters.
    let line = format!("{}\n", json!(parts)).replace('<', r"\u003c").replace('>', r"\u003e").replace('&', r"\u0026");
    let mut hash = base36(fnv1a(line.as_bytes()));
    hash.truncate(HASH_LENGTH);
    hash
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(char::from(b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize]));
        number /= 36;
        if number == 0 {
            return digits.iter().rev().collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_fnv1a_in_base_36() {
        // The published test vectors of FNV-1a.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(base36(0), "0");
        assert_eq!(base36(35), "z");
        assert_eq!(base36(36 * 36 + 1), "101");
    }

    #[test]
    fn name_is_truncated_before_its_hash() {
        assert_eq!(truncated_hashed_name(9, &["a", "b"]).as_deref(), Ok("a-b-dma5s"));
        assert_eq!(truncated_hashed_name(7, &["a", "b"]).as_deref(), Ok("a-dma5s"));
        assert_eq!(truncated_hashed_name(6, &["a", "b"]).as_deref(), Ok("dma5s"));
        assert_eq!(truncated_hashed_name(4, &["a", "b"]), Err(NameError::TooShort { max_length: 4 }));
    }

    #[test]
    fn empty_parts_are_ignored() {
        assert_eq!(truncated_hashed_name(9, &["", "a", "", "b"]), truncated_hashed_name(9, &["a", "b"]));
        assert_eq!(truncated_hashed_name(9, &["", ""]), Err(NameError::NoParts));
        assert_eq!(truncated_hashed_name(9, &[]), Err(NameError::NoParts));
    }

    #[test]
    fn truncation_does_not_split_characters() {
        assert_eq!(truncated_hashed_name(8, &["aé"]).map(|name| name.len()), Ok(7));
    }
}
