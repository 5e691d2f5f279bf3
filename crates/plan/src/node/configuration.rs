//! The files that ScyllaDB reads when it starts: `scylla.yaml` and `cassandra-rackdc.properties`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use thiserror::Error;

/// Why a configuration cannot be merged.
#[derive(Debug, Error)]
pub enum ConfigurationError {
    /// A document is not a YAML mapping.
    #[error("{document} is not a YAML mapping")]
    Malformed {
        /// Which document.
        document: String,
        /// What is wrong with it.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// The result cannot be serialized.
    #[error("the merged configuration cannot be serialized")]
    Unwritable(#[source] serde_saphyr::ser::Error),
}

/// A YAML document, and its name for error messages.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// Where it comes from.
    pub name: &'a str,
    /// Its contents.
    pub text: &'a str,
}

/// Merges `documents`: a top-level key of a later one replaces the same key of an earlier one, with all below it.
pub fn merge_yaml(documents: &[Document<'_>]) -> Result<String, ConfigurationError> {
    // A single document stays as it is, with its comments.
    if let [only] = documents {
        return Ok(only.text.to_owned());
    }
    let mut merged = Map::new();
    for document in documents {
        let read: Option<Map<String, Value>> = serde_saphyr::from_str(document.text).map_err(|source| {
            ConfigurationError::Malformed { document: document.name.to_owned(), source: Box::new(source) }
        })?;
        merged.extend(read.unwrap_or_default());
    }
    serde_saphyr::to_string(&merged).map_err(ConfigurationError::Unwritable)
}

/// The only key that users can set. ScyllaDB appends its value to the name of the datacenter.
const DC_SUFFIX: &str = "dc_suffix";

/// Merges `cassandra-rackdc.properties`: the operator's file, and of the user's file the suffix only. ScyllaDB rejects
/// unknown keys, so other keys are left out.
pub fn merge_rackdc(managed: &str, user: Option<&str>) -> String {
    let mut merged = properties(managed);
    let suffix = user.and_then(|user| properties(user).remove(DC_SUFFIX));
    if let Some(suffix) = suffix {
        merged.insert(DC_SUFFIX, suffix);
    }
    merged.iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}

fn properties(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with(['#', '!']))
        .filter_map(|line| line.split_once(['=', ':']))
        .map(|(key, value)| (key.trim(), value.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rackdc_properties_are_the_operators_except_the_suffix() {
        let managed = "dc=dc1\nrack=r1\nprefer_local=false\n";
        let cases = [
            (None, "dc=dc1\nprefer_local=false\nrack=r1\n", "without a user's file"),
            (Some("dc=x\nrack=y\nprefer_local=true"), "dc=dc1\nprefer_local=false\nrack=r1\n", "the operator's win"),
            (
                Some("# why\n dc_suffix = _alt \nother=1"),
                "dc=dc1\ndc_suffix=_alt\nprefer_local=false\nrack=r1\n",
                "the suffix is the user's",
            ),
        ];
        for (user, merged, why) in cases {
            assert_eq!(merge_rackdc(managed, user), merged, "{why}");
        }
    }

    #[test]
    fn error_names_the_malformed_document() {
        let documents =
            [Document { name: "the image's scylla.yaml", text: "a: 1" }, Document { name: "yours", text: "- 1" }];
        assert!(merge_yaml(&documents).is_err_and(|error| error.to_string().starts_with("yours")));
    }

    #[test]
    fn merged_values_keep_their_types() {
        let text =
            "a: 'true'\nb: true\nc: '1'\nd: 1\ne: [1, x]\nf: {g: null}\nh: 'null'\ni: 'a: b # c'\nj: 0.5\nk: ''\n";
        let merged = merge_yaml(&[Document { name: "one", text }, Document { name: "two", text: "" }]);
        let read = |text: &str| serde_saphyr::from_str::<Value>(text).ok();
        assert_eq!(read(&merged.unwrap_or_default()), read(text));
        assert!(read(text).is_some());
    }
}
