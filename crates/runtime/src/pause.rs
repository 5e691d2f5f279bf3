//! Objects whose reconciliation the user has paused by an annotation.

use kube::api::ObjectMeta;

/// Returns the value of the annotation if it pauses the object. "false" does not; other values may give a reason.
pub fn pause<'a>(metadata: &'a ObjectMeta, annotation: Option<&str>) -> Option<&'a str> {
    let value = metadata.annotations.as_ref()?.get(annotation?)?.trim();
    (value != "false").then_some(value)
}

/// Returns the message of the condition and event of a paused object: that it is paused, why, and how to resume.
pub(crate) fn message(annotation: &str, value: &str) -> String {
    let why = if ["", "true"].contains(&value) { String::new() } else { format!(" ({value})") };
    format!(
        "Paused by the annotation {annotation}{why}: the operator does not reconcile this object, and its status is not \
         updated. Remove the annotation to resume."
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
    fn annotation_pauses_with_any_value_but_false() {
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
    fn message_gives_the_reason_and_how_to_resume() {
        let message = |value| super::message("example.com/pause", value);
        let reported = message("until Monday");
        assert!(reported.contains("example.com/pause"));
        assert!(reported.contains("(until Monday)") && reported.contains("Remove"));
        assert!(!message("true").contains('('));
    }
}
