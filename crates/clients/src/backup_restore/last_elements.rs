//! Reduces a response while it arrives.
//!
//! The list of delta snapshots has no maximum length, and only its last element is needed. So elements are dropped as
//! soon as the next one begins, and the length of the rest is limited. The caller validates the JSON.

/// Maximum length of the reduced text: a full snapshot and a delta snapshot take less than 1 KiB.
pub(super) const MAX_KEPT: usize = 64 << 10;

/// A JSON document reduced to the last element of each array that is a field of its outermost object.
#[derive(Debug, Default)]
pub(super) struct LastElements {
    text: Vec<u8>,
    /// Number of open objects and arrays.
    depth: usize,
    /// Where the current element of such an array begins in the text; none outside of one.
    element: Option<usize>,
    in_string: bool,
    is_escaped: bool,
}

/// The reduced response is still too long.
#[derive(Debug, thiserror::Error)]
#[error("a snapshot in the response is longer than {MAX_KEPT} bytes")]
pub(super) struct TooLong;

impl LastElements {
    /// Adds received bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        for byte in bytes {
            self.add_byte(*byte);
            if self.text.len() > MAX_KEPT {
                return Err(TooLong);
            }
        }
        Ok(())
    }

    /// Returns the reduced text.
    pub(super) fn into_text(self) -> Vec<u8> {
        self.text
    }

    fn add_byte(&mut self, byte: u8) {
        if self.in_string {
            self.in_string = self.is_escaped || byte != b'"';
            self.is_escaped = !self.is_escaped && byte == b'\\';
            self.text.push(byte);
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => {
                self.depth += 1;
                if byte == b'[' && self.depth == 2 {
                    self.element = Some(self.text.len() + 1);
                }
            }
            b'}' | b']' => {
                if self.depth == 2 {
                    self.element = None;
                }
                self.depth = self.depth.saturating_sub(1);
            }
            b',' if self.depth == 2 => {
                if let Some(start) = self.element {
                    self.text.truncate(start);
                    return;
                }
            }
            _ => {}
        }
        self.text.push(byte);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn kept(text: &str) -> String {
        let mut last_elements = LastElements::default();
        // Byte by byte, as the network may split it.
        text.bytes().for_each(|byte| last_elements.add(&[byte]).unwrap());
        String::from_utf8(last_elements.into_text()).unwrap()
    }

    #[test]
    fn arrays_are_reduced_to_their_last_element_and_the_rest_is_unchanged() {
        let odd = r#"a","]},{[\"#;
        let snapshot = |name: &str| json!({"snapName": name, "list": [1, [2, 3], {"x": [4, 5]}], "no": null});
        let snapshots = [snapshot("1"), snapshot(odd), snapshot("\"")];
        for full in [Value::Null, snapshot(odd)] {
            for count in 0..=snapshots.len() {
                let whole =
                    json!({"fullSnapshot": full, "deltaSnapshots": &snapshots[..count], "after": [[1, 2], [3, 4]]});
                let read: Value = serde_json::from_str(&kept(&whole.to_string())).unwrap();
                let last: Vec<&Value> = snapshots[..count].iter().rev().take(1).collect();
                assert_eq!(read, json!({"fullSnapshot": full, "deltaSnapshots": last, "after": [[3, 4]]}));
            }
        }
        for whole in ["null", "[1,2]", r#""a,b""#, r#"{"a": "[1,2]"}"#, "}}],{\"a\":[1,2", ""] {
            assert_eq!(kept(whole).is_empty(), whole.is_empty());
        }
        assert_eq!(kept("[1,2]"), "[1,2]");
    }

    #[test]
    fn memory_is_limited_for_any_number_of_elements() {
        let mut last_elements = LastElements::default();
        last_elements.add(br#"{"deltaSnapshots":[{}"#).unwrap();
        for number in 0..100_000 {
            last_elements.add(format!(r#",{{"snapName":"{number}"}}"#).as_bytes()).unwrap();
            assert!(last_elements.text.capacity() < 200, "{}", last_elements.text.capacity());
        }
        last_elements.add(b"]}").unwrap();
        assert_eq!(last_elements.into_text(), br#"{"deltaSnapshots":[{"snapName":"99999"}]}"#);
    }

    #[test]
    fn element_over_the_limit_is_rejected() {
        for start in [r#"{"deltaSnapshots":[{"snapName":""#, r#"{"fullSnapshot":{"snapName":""#, "[", ""] {
            let mut last_elements = LastElements::default();
            last_elements.add(start.as_bytes()).unwrap();
            assert!(last_elements.add(&vec![b'a'; MAX_KEPT]).is_err() || start.is_empty());
            assert!(last_elements.add(b"aa").is_err());
        }
    }
}
