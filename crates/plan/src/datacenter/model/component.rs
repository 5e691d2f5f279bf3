//! Components of a datacenter, which have their own conditions.

use crate::outcome::ObjectKind;

/// A component of a datacenter, which has its own conditions. They are declared in the order in which they are applied.
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
    /// The Services.
    Service,
    /// The PodDisruptionBudget.
    PodDisruptionBudget,
    /// The StatefulSets.
    StatefulSet,
    /// The PersistentVolumeClaims of nodes.
    Storage,
    /// The Ingresses.
    Ingress,
    /// The Jobs that clean up nodes.
    Job,
}

impl Component {
    /// All components, in the order in which they are applied.
    pub const ALL: [Self; 11] = [
        Self::ServiceAccount,
        Self::RoleBinding,
        Self::AgentToken,
        Self::Certificates,
        Self::Config,
        Self::Service,
        Self::PodDisruptionBudget,
        Self::StatefulSet,
        Self::Storage,
        Self::Ingress,
        Self::Job,
    ];

    /// Returns the components that have to be applied before: while one of them fails, this one is not applied.
    pub const fn needs(self) -> &'static [Self] {
        match self {
            Self::ServiceAccount
            | Self::RoleBinding
            | Self::AgentToken
            | Self::Certificates
            | Self::Config
            | Self::Service
            | Self::PodDisruptionBudget
            | Self::Storage => &[],
            // The pods of a rack need all of them when they start.
            Self::StatefulSet => &[
                Self::ServiceAccount,
                Self::RoleBinding,
                Self::AgentToken,
                Self::Certificates,
                Self::Config,
                Self::Service,
                Self::PodDisruptionBudget,
            ],
            // Ingresses route to Services, and Services request cleanups.
            Self::Ingress | Self::Job => &[Self::Service],
        }
    }

    /// Whether it is applied for running nodes only: Jobs clean them up, and Ingresses are named after their host IDs.
    pub const fn needs_running_nodes(self) -> bool {
        matches!(self, Self::Ingress | Self::Job)
    }

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
            Self::Service => "ServiceController",
            Self::PodDisruptionBudget => "PDBController",
            Self::StatefulSet => "StatefulSetController",
            Self::Storage => "StorageController",
            Self::Ingress => "IngressController",
            Self::Job => "JobController",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A component that is not in `ALL` has no conditions. One that is missing below does not compile.
    #[test]
    fn all_has_every_component_in_the_order_of_declaration() {
        for (position, component) in Component::ALL.into_iter().enumerate() {
            let is_last = match component {
                Component::ServiceAccount
                | Component::RoleBinding
                | Component::AgentToken
                | Component::Certificates
                | Component::Config
                | Component::Service
                | Component::PodDisruptionBudget
                | Component::StatefulSet
                | Component::Storage
                | Component::Ingress => false,
                Component::Job => true,
            };
            assert_eq!(component as usize, position, "{component:?}");
            assert_eq!(is_last, position + 1 == Component::ALL.len(), "{component:?}");
        }
    }

    #[test]
    fn components_need_only_components_that_are_applied_before() {
        for component in Component::ALL {
            assert!(component.needs().iter().all(|need| *need < component), "{component:?}");
        }
        let before: Vec<Component> = Component::ALL.into_iter().filter(|one| *one < Component::StatefulSet).collect();
        assert_eq!(Component::StatefulSet.needs(), before, "pods start when all that comes before them is applied");
    }
}
