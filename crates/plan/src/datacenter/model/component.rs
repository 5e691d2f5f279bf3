//! The parts of the work, which have conditions of their own.

/// A part of the work, which has conditions of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// The ServiceAccount of the pods.
    ServiceAccount,
    /// The RoleBinding of the pods.
    RoleBinding,
    /// The token of the agents.
    AgentToken,
    /// Certificates and their authorities.
    Certificates,
    /// The ConfigMaps.
    Config,
    /// The StatefulSets.
    StatefulSet,
    /// The nodes' disks.
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
    /// All parts, in the order of the work.
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

    /// What the types of its conditions begin with.
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
