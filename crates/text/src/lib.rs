//! Text that others wrote, made fit to be shown to people.
//!
//! What pods, ScyllaDB, etcd, sidecars, webhooks and users wrote ends in conditions, events and terminals. There it must not
//! move the cursor, hide or turn other text around, pretend to be another line, or be of any length. It is made fit where it
//! comes in (clients, the API server's answers) and once more where it goes out (statuses, events, what `kubectl messina`
//! reads).

mod reason;

pub use reason::Reason;
use serde_json::Value;

/// What stands for what was cut off.
const CUT: &str = "...";

/// One line without control characters, of so many characters at most.
pub fn line(text: &str, longest: usize) -> String {
    let words = visible(text);
    cut(&words.split_whitespace().collect::<Vec<_>>().join(" "), longest)
}

/// Lines without other control characters, of so many characters at most, all together.
pub fn lines(text: &str, longest: usize) -> String {
    let is_fit = |letter: char| letter == '\n' || !is_unfit(letter);
    if text.chars().all(is_fit) { cut(text, longest) } else { cut(&visible(text), longest) }
}

/// Makes all texts in a value fit, each for itself. Names of fields are left as they are.
pub fn make_fit(value: &mut Value, longest: usize) {
    match value {
        Value::String(text) => {
            // Most are.
            let fit = lines(text, longest);
            if fit != *text {
                *text = fit;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| make_fit(item, longest)),
        Value::Object(fields) => fields.values_mut().for_each(|field| make_fit(field, longest)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether it is a UUID, as ScyllaDB writes host IDs.
pub fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|letter| letter.is_ascii_hexdigit()))
}

/// Without escape sequences and all that cannot be seen; other ends of lines are line feeds.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            // A carriage return alone goes back to where the line began.
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
            letter if is_unfit(letter) => {}
            letter => shown.push(letter),
        }
    }
    shown
}

/// The rest of a control sequence: parameters, and the letter that ends it. What is none is left.
fn skip_sequence(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) {
    while letters.next_if(|letter| (' '..='?').contains(letter)).is_some() {}
    letters.next_if(|letter| ('@'..='~').contains(letter));
}

/// Control characters, and those that cannot be seen or turn others around.
fn is_unfit(letter: char) -> bool {
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
    fn what_moves_hides_or_turns_text_is_taken_away() {
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
    fn what_is_too_long_is_cut_where_a_letter_ends() {
        assert_eq!(lines("ääää", 4), "ääää");
        assert_eq!(lines("äääää", 4), "ä...");
        assert_eq!(line("abcdef", 5), "ab...");
    }

    #[test]
    fn all_texts_of_a_value_are_made_fit() {
        let mut value = json!({"a": ["x\u{1b}[1m", {"b": "\u{202e}y\nz", "c": 1}], "d": null});
        make_fit(&mut value, 100);
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
        fn nothing_unfit_is_left_and_it_is_made_fit_once(text in any::<String>(), longest in 3_usize..50) {
            let one = line(&text, longest);
            prop_assert!(!one.chars().any(is_unfit) && one.chars().count() <= longest, "{one:?}");
            let many = lines(&text, longest);
            prop_assert!(!many.chars().any(|letter| letter != '\n' && is_unfit(letter)), "{many:?}");
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
