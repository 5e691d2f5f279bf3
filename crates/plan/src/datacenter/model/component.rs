//! Components of a datacenter, which have their own conditions.

use crate::outcome::ObjectKind;

/// A component of a datacenter, which has its own conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The ServiceAccount of the pods.
    ServiceAccount,
    /// The RoleBinding of the pods.
    RoleBinding,
    /// The token of the agents.
    AgentToken,
    /// Certificates and certificate authorities.
    Certificates,
    /// The ConfigMaps.
    Config,
    /// The StatefulSets.
    StatefulSet,
    /// The PersistentVolumeClaims of nodes.
    Storage,
    /// The Services.
    Service,
    /// The PodDisruptionBudget.
    PodDisruptionBudget,
    /// The Ingresses.
    Ingress,
    /// The Jobs that clean up nodes.
    Job,
}

impl Component {
    /// All components, in the order in which they are reconciled.
    pub const ALL: [Self; 11] = [
        Self::ServiceAccount,
        Self::RoleBinding,
        Self::AgentToken,
        Self::Certificates,
        Self::Config,
        Self::StatefulSet,
        Self::Storage,
        Self::Service,
        Self::PodDisruptionBudget,
        Self::Ingress,
        Self::Job,
    ];

    /// Returns the component that patches and deletions of this kind belong to when nodes join or leave.
    pub(crate) const fn of(kind: ObjectKind) -> Self {
        match kind {
            ObjectKind::StatefulSet => Self::StatefulSet,
            ObjectKind::Service | ObjectKind::Pod | ObjectKind::PersistentVolumeClaim => Self::Service,
        }
    }

    /// The prefix of the types of its conditions.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccountController",
            Self::RoleBinding => "RoleBindingController",
            Self::AgentToken => "AgentTokenController",
            Self::Certificates => "CertController",
            Self::Config => "ConfigController",
            Self::StatefulSet => "StatefulSetController",
            Self::Storage => "StorageController",
            Self::Service => "ServiceController",
            Self::PodDisruptionBudget => "PDBController",
            Self::Ingress => "IngressController",
            Self::Job => "JobController",
        }
    }
}
