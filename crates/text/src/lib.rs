//! What all crates share: sanitizing text of other programs and of users before people see it, reasons and backoffs.
//!
//! Text of pods, ScyllaDB, etcd, sidecars, webhooks and users ends up in conditions, events and terminals. There it
//! must not move the cursor, hide or reverse other text, pretend to be another line, or be of any length. It is
//! sanitized where it comes in (clients, the API server's responses) and once more where it goes out (statuses, events,
//! what `kubectl messina` reads).

mod backoff;
mod reason;

pub use backoff::Backoff;
pub use reason::Reason;
use serde_json::Value;

/// Replaces the text that was cut off.
const CUT: &str = "...";

/// Returns one line without control characters, of at most `longest` characters.
pub fn line(text: &str, longest: usize) -> String {
    let words = visible(text);
    cut(&words.split_whitespace().collect::<Vec<_>>().join(" "), longest)
}

/// Returns lines without other control characters, of at most `longest` characters altogether.
pub fn lines(text: &str, longest: usize) -> String {
    let is_safe = |letter: char| letter == '\n' || !is_unsafe(letter);
    if text.chars().all(is_safe) { cut(text, longest) } else { cut(&visible(text), longest) }
}

/// Sanitizes all texts in a value, each to at most `longest` characters. Names of fields stay as they are.
pub fn sanitize(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => {
            // Most texts need no change.
            let safe = lines(text, longest);
            if safe != *text {
                *text = safe;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| sanitize(item, longest)),
        Value::Object(fields) => fields.values_mut().for_each(|field| sanitize(field, longest)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a text is a UUID, as ScyllaDB writes host IDs.
pub fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|letter| letter.is_ascii_hexdigit()))
}

/// Removes escape sequences and invisible characters, and replaces other line ends by line feeds.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            // A terminal would overwrite the line after a lone carriage return.
            '\r' | '\n' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}' => {
                if letter == '\r' {
                    letters.next_if_eq(&'\n');
                }
                shown.push('\n');
            }
            '\t' => shown.push(' '),
            '\u{1b}' => {
                if letters.next_if_eq(&'[').is_some() {
                    skip_sequence(&mut letters);
                }
            }
            '\u{9b}' => skip_sequence(&mut letters),
            letter if is_unsafe(letter) => {}
            letter => shown.push(letter),
        }
    }
    shown
}

/// Skips the rest of a control sequence: parameters, and the letter that ends it. Other characters are left.
fn skip_sequence(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while letters.next_if(|letter| (' '..='?').contains(letter)).is_some() {}
    letters.next_if(|letter| ('@'..='~').contains(letter));
}

/// Whether it is a control character, is invisible, or reverses other characters.
fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(longest.saturating_sub(CUT.len())).collect();
            kept + CUT
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn characters_that_move_hide_or_reverse_text_are_removed() {
        for (text, expected) in [
            ("plain, with an ä and a 節", "plain, with an ä and a 節"),
            ("\u{1b}[2J\u{1b}[1;31mred\u{1b}[0m", "red"),
            ("\u{9b}31mred", "red"),
            ("\u{1b}]0;title\u{7}rest", "]0;titlerest"),
            ("\u{1b}[", ""),
            ("a\u{1b}[31", "a"),
            ("a\u{8}\u{0}\u{7f}b", "ab"),
            ("abc\rdone", "abc\ndone"),
            ("abc\r\ndone", "abc\ndone"),
            ("a\tb", "a b"),
            ("user\u{202e}txt.exe\u{2066}x\u{2069}", "usertxt.exex"),
            ("re\u{200b}move\u{feff}node\u{e0041}", "removenode"),
            ("one\u{2028}two\u{85}three", "one\ntwo\nthree"),
        ] {
            assert_eq!(lines(text, 100), expected, "{text:?}");
        }
        assert_eq!(line(" one\n\ttwo\r\u{1b}[1A three ", 100), "one two three");
    }

    #[test]
    fn long_text_is_cut_at_a_character_boundary() {
        assert_eq!(lines("ääää", 4), "ääää");
        assert_eq!(lines("äääää", 4), "ä...");
        assert_eq!(line("abcdef", 5), "ab...");
    }

    #[test]
    fn all_texts_of_a_value_are_sanitized() {
        let mut value = json!({"a": ["x\u{1b}[1m", {"b": "\u{202e}y\nz", "c": 1}], "d": null});
        sanitize(&mut value, 100);
        assert_eq!(value, json!({"a": ["x", {"b": "y\nz", "c": 1}], "d": null}));
    }

    #[test]
    fn host_ids_are_uuids() {
        assert!(is_uuid("1f3e4a5b-0000-4000-8000-00000000abCD"));
        for text in [
            "",
            "1f3e4a5b",
            "1f3e4a5b-0000-4000-8000-00000000abc",
            "1f3e4a5b-0000-4000-8000-00000000abcg",
            "1f3e4a5b-0000-4000-8000-00000000abcd ",
            "1f3e4a5b-0000-4000-8000-00000000abcd-",
            "1f3e4a5b; rm -rf /-8000-00000000abcd",
        ] {
            assert!(!is_uuid(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn sanitized_text_has_no_unsafe_characters_and_stays_the_same(text in any::<String>(), longest in 3_usize..50) {
            let one = line(&text, longest);
            prop_assert!(!one.chars().any(is_unsafe) && one.chars().count() <= longest, "{one:?}");
            let many = lines(&text, longest);
            prop_assert!(!many.chars().any(|letter| letter != '\n' && is_unsafe(letter)), "{many:?}");
            prop_assert_eq!(lines(&many, longest), many);
        }

        /// As terminals see it: escapes, with parameters and without.
        #[test]
        fn no_escape_sequence_is_left(text in "(\u{1b}|\\[|\u{9b}|[0-9;?]|[a-zA-Z]|\r|\n){0,40}") {
            let many = lines(&text, 100);
            prop_assert!(!many.contains(['\u{1b}', '\u{9b}', '\r']), "{many:?}");
        }
    }
}
