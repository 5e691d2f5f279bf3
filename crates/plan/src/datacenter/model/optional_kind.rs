//! Kinds outside of the namespace that the operator reads where it may.

/// A kind that is in no namespace, and that the operator reads where it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OptionalKind {
    /// It says whether volumes can grow.
    StorageClass,
    /// It says which Kubernetes nodes can have a volume.
    PersistentVolume,
    /// It says which Kubernetes nodes there are.
    Node,
}

impl OptionalKind {
    /// Whether it says where volumes can be.
    pub(crate) fn is_of_volumes(self) -> bool {
        matches!(self, Self::PersistentVolume | Self::Node)
    }
}
