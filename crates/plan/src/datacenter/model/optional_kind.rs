//! Cluster-scoped kinds that the operator reads if its role permits.

/// A cluster-scoped kind that the operator reads if its role permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OptionalKind {
    /// Shows whether volumes can be expanded.
    StorageClass,
    /// Shows which Kubernetes nodes a volume is accessible from.
    PersistentVolume,
    /// Shows which Kubernetes nodes exist.
    Node,
}

impl OptionalKind {
    /// Whether the operator needs it to find lost volumes.
    pub(crate) fn is_of_volumes(self) -> bool {
        matches!(self, Self::PersistentVolume | Self::Node)
    }
}
