//! Objects for which nothing is to be done for a while, by the will of their users.

use kube::api::ObjectMeta;

/// The condition of an object for which nothing is done. One that has no such condition is not paused.
pub const PAUSED: &str = "Paused";

/// What the annotation says, if it pauses the object. "false" does not; other values may give a reason.
pub fn pause<'a>(metadata: &'a ObjectMeta, annotation: Option<&str>) -> Option<&'a str> {
    let value = metadata.annotations.as_ref()?.get(annotation?)?.trim();
    (value != "false").then_some(value)
}

/// In a sentence, that an object is paused, why, and how that ends.
pub(crate) fn sentence(annotation: &str, value: &str) -> String {
    let why = if ["", "true"].contains(&value) { String::new() } else { format!(" ({value})") };
    format!(
        "The annotation {annotation} has stopped all work on this object{why}; its status stays as it was. Remove the \
         annotation to go on."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(value: Option<&str>) -> ObjectMeta {
        let annotations = value.map(|value| [("example.com/pause".to_owned(), value.to_owned())].into());
        ObjectMeta { annotations, ..ObjectMeta::default() }
    }

    #[test]
    fn any_value_but_false_pauses() {
        let cases = [
            (None, None),
            (Some("false"), None),
            (Some(""), Some("")),
            (Some("true"), Some("true")),
            (Some(" until Monday "), Some("until Monday")),
        ];
        for (value, expected) in cases {
            assert_eq!(pause(&annotated(value), Some("example.com/pause")), expected, "{value:?}");
        }
        assert_eq!(pause(&annotated(Some("true")), Some("example.com/other")), None);
        assert_eq!(pause(&annotated(Some("true")), None), None, "nothing can pause where no annotation is named");
    }

    #[test]
    fn the_sentence_says_why_and_how_it_ends() {
        let told = sentence("example.com/pause", "until Monday");
        assert!(told.contains("example.com/pause") && told.contains("(until Monday)") && told.contains("Remove"));
        assert!(!sentence("example.com/pause", "true").contains('('));
    }
}
