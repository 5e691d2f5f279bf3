//! The kinds whose objects can be explained: those that the operator keeps.

use kube::core::{ApiResource, GroupVersionKind};
use messina_api::names::label;

use crate::cluster::Kind;

/// A kind.
#[derive(Debug)]
pub struct Subject {
    pub(crate) kind: Kind,
    group: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    /// The label by which what its objects have is found; none where that is not labelled with their names.
    pub(crate) label: Option<&'static str>,
}

static SUBJECTS: [Subject; 2] = [
    Subject {
        kind: Kind {
            name: "ScyllaDBDatacenter",
            resource: "scylladbdatacenters.scylla.scylladb.com",
            comes_with: "Messina's definitions",
        },
        group: "scylla.scylladb.com",
        plural: "scylladbdatacenters",
        short: &["sdc"],
        label: Some(label::CLUSTER),
    },
    Subject {
        kind: Kind {
            name: "EtcdOperatorTask",
            resource: "etcdoperatortasks.druid.gardener.cloud",
            comes_with: "Messina's definitions",
        },
        group: "druid.gardener.cloud",
        plural: "etcdoperatortasks",
        short: &["eot", "eots"],
        label: None,
    },
];

impl Subject {
    /// Where its objects are.
    pub(crate) fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, "v1alpha1", self.kind.name);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }

    fn is_called(&self, word: &str) -> bool {
        let word = word.to_lowercase();
        [self.kind.name.to_lowercase().as_str(), self.plural, self.kind.resource].contains(&word.as_str())
            || self.short.contains(&word.as_str())
    }
}

/// Reads `KIND/NAME`.
pub(super) fn parse(text: &str) -> Result<(&'static Subject, String), String> {
    let names: Vec<&str> = SUBJECTS.iter().map(|subject| subject.kind.name).collect();
    let (kind, name) = text
        .split_once('/')
        .filter(|(kind, name)| !kind.is_empty() && !name.is_empty() && !name.contains('/'))
        .ok_or("write it as KIND/NAME, such as scylladbdatacenter/orders")?;
    let subject = SUBJECTS.iter().find(|subject| subject.is_called(kind));
    let subject = subject.ok_or_else(|| format!("{kind} is not known here: it is one of {}", names.join(", ")))?;
    Ok((subject, name.to_owned()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_called_as_their_definitions_say() {
        let definitions = messina_api::crd::all();
        for subject in &SUBJECTS {
            let definition = definitions.iter().find(|one| one.spec.names.kind == subject.kind.name).unwrap();
            let names = &definition.spec.names;
            assert_eq!((definition.spec.group.as_str(), names.plural.as_str()), (subject.group, subject.plural));
            assert_eq!(names.short_names.clone().unwrap_or_default(), subject.short);
            assert_eq!(definition.metadata.name.as_deref(), Some(subject.kind.resource));
            assert!(definition.spec.versions.iter().any(|version| version.name == subject.resource().version));
            for word in [&names.kind, &names.plural, names.singular.as_ref().unwrap(), &subject.short[0].to_owned()] {
                assert_eq!(parse(&format!("{word}/orders")).unwrap().0.kind.name, subject.kind.name, "{word}");
            }
        }
    }

    #[test]
    fn what_is_no_object_is_told() {
        for text in ["orders", "sdc/", "/orders", "sdc/a/b"] {
            assert!(parse(text).unwrap_err().contains("KIND/NAME"), "{text}");
        }
        assert!(parse("pod/orders").unwrap_err().contains("ScyllaDBDatacenter, EtcdOperatorTask"));
    }
}
