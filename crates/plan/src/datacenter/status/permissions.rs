//! Warnings about features that are disabled because the operator may not read kinds outside of the namespace.

use std::collections::BTreeSet;

use crate::datacenter::{
    model::{component::Component, optional_kind::OptionalKind, plan::Note},
    reasons,
};

/// Returns a warning for each feature that is disabled because the operator may not read these kinds.
pub(crate) fn warnings(unreadable: &BTreeSet<OptionalKind>) -> Vec<Note> {
    let note = |message: &str| Note {
        component: Component::Storage,
        reason: reasons::PERMISSION_MISSING,
        message: message.to_owned(),
    };
    let classes = unreadable.contains(&OptionalKind::StorageClass).then(|| {
        note(
            "Volume expansion is disabled, because the operator may not read StorageClasses. To enable it, let the \
             operator list and watch storageclasses.",
        )
    });
    let volumes = unreadable.iter().any(|kind| kind.is_of_volumes()).then(|| {
        note(
            "The detection of nodes whose Kubernetes node is gone for good is disabled, because the operator may not \
             read PersistentVolumes and Nodes. To enable it, let the operator list and watch persistentvolumes and \
             nodes.",
        )
    });
    classes.into_iter().chain(volumes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_permission_names_what_it_disables() {
        use OptionalKind::{Node, PersistentVolume, StorageClass};
        let cases: [(&[OptionalKind], &[&str]); 5] = [
            (&[], &[]),
            (&[StorageClass], &["Volume expansion"]),
            (&[Node], &["The detection"]),
            (&[PersistentVolume, Node], &["The detection"]),
            (&[StorageClass, PersistentVolume], &["Volume expansion", "The detection"]),
        ];
        for (unreadable, expected) in cases {
            let notes = warnings(&unreadable.iter().copied().collect());
            assert_eq!(notes.len(), expected.len(), "{unreadable:?}");
            assert!(notes.iter().zip(expected).all(|(note, start)| note.message.starts_with(start)), "{notes:?}");
        }
    }
}
