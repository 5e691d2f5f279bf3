//! Forms that Kubernetes asks of texts.

use std::collections::BTreeMap;

use crate::datacenter::validate::invalid_fields::InvalidFields;

fn is_edge(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_alphanumeric())
}

/// Letters, digits and some of `others`, with a letter or a digit at both ends.
fn is_word(text: &str, others: &str) -> bool {
    is_edge(text.chars().next())
        && is_edge(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

/// The value of a label that says something.
pub(crate) fn is_label_value(text: &str) -> bool {
    text.len() <= 63 && is_word(text, "-_.")
}

/// A DNS name, which is also what most objects are called.
pub(crate) fn is_subdomain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|component| is_word(component, "-") && component == component.to_ascii_lowercase())
}

/// The key of a label or an annotation: a name, perhaps with a domain before a slash.
pub(crate) fn is_qualified_name(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_subdomain(domain) && is_label_value(name),
        None => is_label_value(text),
    }
}

pub(crate) fn object_name(name: &str, field: &str, invalid: &mut InvalidFields) -> bool {
    let is_name = is_subdomain(name);
    if !is_name {
        let message = format!("{name:?} is no name of an object: use lower case letters, digits, dashes and dots");
        invalid.add(field, message);
    }
    is_name
}

pub(crate) fn labels(labels: Option<&BTreeMap<String, String>>, field: &str, invalid: &mut InvalidFields) {
    for (key, value) in labels.into_iter().flatten() {
        if !is_qualified_name(key) {
            invalid.add(field, format!("{key:?} is no key of a label: write it as name or example.com/name"));
        }
        if !value.is_empty() && !is_label_value(value) {
            invalid.add(
                field,
                format!(
                    "{value:?} is no value of a label: use at most 63 letters, digits, dashes, dots or underscores, \
                     with a letter or a digit at both ends"
                ),
            );
        }
    }
}

pub(crate) fn annotations(annotations: Option<&BTreeMap<String, String>>, field: &str, invalid: &mut InvalidFields) {
    for key in annotations.into_iter().flatten().map(|(key, _)| key) {
        if !is_qualified_name(&key.to_ascii_lowercase()) {
            invalid.add(field, format!("{key:?} is no key of an annotation: write it as name or example.com/name"));
        }
    }
}
