//! Formats that Kubernetes requires of names, labels and annotations.

use std::collections::BTreeMap;

use crate::datacenter::validate::invalid_fields::InvalidFields;

fn is_edge(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_alphanumeric())
}

/// Whether the text has letters, digits and characters of `others` only, with a letter or a digit at both ends.
fn is_word(text: &str, others: &str) -> bool {
    is_edge(text.chars().next())
        && is_edge(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

/// Whether the text is a valid, non-empty value of a label.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.len() <= 63 && is_word(text, "-_.")
}

/// Whether the text is a DNS subdomain, which is also the format of most objects' names.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|component| is_word(component, "-") && component == component.to_ascii_lowercase())
}

/// Whether the text is a qualified name: the key of a label or an annotation, with an optional domain before a slash.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_subdomain(domain) && is_label_value(name),
        None => is_label_value(text),
    }
}

pub(crate) fn object_name(name: &str, field: &str, invalid: &mut InvalidFields) -> bool {
    let is_name = is_subdomain(name);
    if !is_name {
        let message = format!("{name:?} is not a valid object name: use lower case letters, digits, dashes and dots");
        invalid.add(field, message);
    }
    is_name
}

pub(crate) fn labels(labels: Option<&BTreeMap<String, String>>, field: &str, invalid: &mut InvalidFields) {
    for (key, value) in labels.into_iter().flatten() {
        if !is_qualified_name(key) {
            invalid.add(field, format!("{key:?} is not a valid label key: use the form name or example.com/name"));
        }
        if !value.is_empty() && !is_label_value(value) {
            invalid.add(
                field,
                format!(
                    "{value:?} is not a valid label value: use at most 63 letters, digits, dashes, dots or \
                     underscores, with a letter or a digit at both ends"
                ),
            );
        }
    }
}

pub(crate) fn annotations(annotations: Option<&BTreeMap<String, String>>, field: &str, invalid: &mut InvalidFields) {
    for key in annotations.into_iter().flatten().map(|(key, _)| key) {
        if !is_qualified_name(&key.to_ascii_lowercase()) {
            invalid.add(field, format!("{key:?} is not a valid annotation key: use the form name or example.com/name"));
        }
    }
}
