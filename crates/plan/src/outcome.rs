//! What the plan of any kind is made of, beside its desired objects: patches, deletions and preconditions of writes,
//! objects to leave untouched, and notes for conditions.
//!
//! `C` is the kind's own type of components, which have conditions of their own.

use std::collections::BTreeMap;

use messina_text::Reason;
use serde_json::Value;

/// A kind of object that a plan patches or deletes, or that is a precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "they are Kubernetes' own kinds")]
pub enum ObjectKind {
    Service,
    StatefulSet,
    Pod,
    PersistentVolumeClaim,
}

/// A patch of single fields.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldPatch<C> {
    /// The component that it belongs to.
    pub component: C,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The observed resource version: if the object has another one by then, it is not changed.
    pub version: String,
    /// The merge patch.
    pub patch: Value,
    /// Reason and message of the event to emit when it is done.
    pub event: Option<(Reason, String)>,
}

/// An object to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion<C> {
    /// The component that it belongs to.
    pub component: C,
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// Its UID: no other object of that name is deleted.
    pub uid: String,
    /// The observed resource version, if the object must not have changed since: if it has another one by then, it is
    /// not deleted.
    pub version: Option<String>,
    /// Whether its dependents are orphaned instead of deleted.
    pub orphans: bool,
    /// Reason and message of the event to emit when it is done.
    pub event: Option<(Reason, String)>,
}

/// The observed version of an object, or that it did not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedVersion {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its name.
    pub name: String,
    /// Its resource version; none if it did not exist.
    pub version: Option<String>,
}

/// Preconditions of writes, by kind and name of the written object: if one of these versions has changed, the object is
/// not written.
pub type Preconditions = BTreeMap<(ObjectKind, String), Vec<ObservedVersion>>;

/// An object that the operator must neither change nor delete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Untouched {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
}

/// Reason and message for a condition of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note<C> {
    /// The component.
    pub component: C,
    /// The reason, in CamelCase.
    pub reason: Reason,
    /// Object, state, cause and next action.
    pub message: String,
}

/// Reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// CamelCase, as in a Kubernetes condition.
    pub reason: Reason,
    /// One line for each note.
    pub message: String,
}

impl Explanation {
    /// Joins the notes of a component; none if it has none. The reason is that of the first one.
    pub fn of<C: PartialEq>(component: &C, notes: &[Note<C>]) -> Option<Self> {
        let notes: Vec<&Note<C>> = notes.iter().filter(|note| note.component == *component).collect();
        let messages: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
        notes.first().map(|first| Self { reason: first.reason, message: messages.join("\n") })
    }
}
