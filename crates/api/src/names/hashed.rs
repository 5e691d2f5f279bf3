//! Names that are cut to a length and end in a hash, so that they stay different.

use serde_json::json;

/// Longest name of most objects.
pub const MAX_SUBDOMAIN: usize = 253;
/// Longest name of a Service or a Namespace.
pub const MAX_LABEL: usize = 63;

const HASH_LENGTH: usize = 5;

/// Why there is no such name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is nothing to make a name of.
    #[error("a name cannot be made of empty parts alone")]
    NoParts,
    /// Not even the hash has room.
    #[error("a name of at most {max_length} characters has no room for its hash of {HASH_LENGTH}")]
    TooShort {
        /// The length that was asked for.
        max_length: usize,
    },
}

/// The parts, joined by dashes and in lower case, and a hash of the parts as they were given. What has no room in
/// `max_length` is cut off before the hash. Empty parts do not count.
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

/// Five characters that stand for the parts: the beginning of their FNV-1a hash in base 36.
pub(super) fn name_hash(parts: &[&str]) -> String {
    // The hash is taken over a line of JSON, in which Go, unlike others, writes these three as escapes.
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
    fn the_hash_is_fnv1a_in_base_36() {
        // The published test vectors of FNV-1a.
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(base36(0), "0");
        assert_eq!(base36(35), "z");
        assert_eq!(base36(36 * 36 + 1), "101");
    }

    #[test]
    fn a_name_is_cut_before_its_hash() {
        assert_eq!(truncated_hashed_name(9, &["a", "b"]).as_deref(), Ok("a-b-dma5s"));
        assert_eq!(truncated_hashed_name(7, &["a", "b"]).as_deref(), Ok("a-dma5s"));
        assert_eq!(truncated_hashed_name(6, &["a", "b"]).as_deref(), Ok("dma5s"));
        assert_eq!(truncated_hashed_name(4, &["a", "b"]), Err(NameError::TooShort { max_length: 4 }));
    }

    #[test]
    fn empty_parts_do_not_count() {
        assert_eq!(truncated_hashed_name(9, &["", "a", "", "b"]), truncated_hashed_name(9, &["a", "b"]));
        assert_eq!(truncated_hashed_name(9, &["", ""]), Err(NameError::NoParts));
        assert_eq!(truncated_hashed_name(9, &[]), Err(NameError::NoParts));
    }

    #[test]
    fn a_character_is_never_cut_in_two() {
        assert_eq!(truncated_hashed_name(8, &["aé"]).map(|name| name.len()), Ok(7));
    }
}
