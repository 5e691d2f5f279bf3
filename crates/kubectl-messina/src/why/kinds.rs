//! The kinds that can be explained: those that the operator reconciles.

use kube::core::{ApiResource, GroupVersionKind};
use messina_api::names::label;

use crate::cluster::ResourceKind;

/// A kind that can be explained.
#[derive(Debug)]
pub struct ExplainedKind {
    pub(crate) kind: ResourceKind,
    group: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    /// The label that owned objects have, with the name of their owner; none where they have no such label.
    pub(crate) label: Option<&'static str>,
}

static KINDS: [ExplainedKind; 2] = [
    ExplainedKind {
        kind: ResourceKind {
            name: "ScyllaDBDatacenter",
            resource: "scylladbdatacenters.scylla.scylladb.com",
            provided_by: "the CustomResourceDefinitions of Messina",
        },
        group: "scylla.scylladb.com",
        plural: "scylladbdatacenters",
        short: &["sdc"],
        label: Some(label::CLUSTER),
    },
    ExplainedKind {
        kind: ResourceKind {
            name: "EtcdOperatorTask",
            resource: "etcdoperatortasks.druid.gardener.cloud",
            provided_by: "the CustomResourceDefinitions of Messina",
        },
        group: "druid.gardener.cloud",
        plural: "etcdoperatortasks",
        short: &["eot", "eots"],
        label: None,
    },
];

impl ExplainedKind {
    /// The resource in the API.
    pub(crate) fn api_resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, "v1alpha1", self.kind.name);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }

    fn has_name(&self, word: &str) -> bool {
        let word = word.to_lowercase();
        [self.kind.name.to_lowercase().as_str(), self.plural, self.kind.resource].contains(&word.as_str())
            || self.short.contains(&word.as_str())
    }
}

/// Reads `KIND/NAME`.
pub(super) fn parse(text: &str) -> Result<(&'static ExplainedKind, String), String> {
    let names: Vec<&str> = KINDS.iter().map(|one| one.kind.name).collect();
    let (kind, name) = text
        .split_once('/')
        .filter(|(kind, name)| !kind.is_empty() && !name.is_empty() && !name.contains('/'))
        .ok_or("write it as KIND/NAME, such as scylladbdatacenter/orders")?;
    let found = KINDS.iter().find(|one| one.has_name(kind));
    let found = found.ok_or_else(|| format!("{kind} cannot be explained: use one of {}", names.join(", ")))?;
    Ok((found, name.to_owned()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_names_of_their_definitions() {
        let definitions = messina_api::crd::all();
        for explained in &KINDS {
            let definition = definitions.iter().find(|one| one.spec.names.kind == explained.kind.name).unwrap();
            let names = &definition.spec.names;
            assert_eq!((definition.spec.group.as_str(), names.plural.as_str()), (explained.group, explained.plural));
            assert_eq!(names.short_names.clone().unwrap_or_default(), explained.short);
            assert_eq!(definition.metadata.name.as_deref(), Some(explained.kind.resource));
            assert!(definition.spec.versions.iter().any(|version| version.name == explained.api_resource().version));
            for word in [&names.kind, &names.plural, names.singular.as_ref().unwrap(), &explained.short[0].to_owned()] {
                assert_eq!(parse(&format!("{word}/orders")).unwrap().0.kind.name, explained.kind.name, "{word}");
            }
        }
    }

    #[test]
    fn parse_rejects_malformed_names_and_unknown_kinds() {
        for text in ["orders", "sdc/", "/orders", "sdc/a/b"] {
            assert!(parse(text).unwrap_err().contains("KIND/NAME"), "{text}");
        }
        assert!(parse("pod/orders").unwrap_err().contains("ScyllaDBDatacenter, EtcdOperatorTask"));
    }
}
