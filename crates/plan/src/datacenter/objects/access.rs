//! Permissions of the pods (RBAC), and their PodDisruptionBudget.

use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
        rbac::v1::{RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
        util::intstr::IntOrString,
    },
};
use messina_api::names;

use crate::datacenter::model::{
    metadata::{cluster_labels, owned},
    spec::Datacenter,
};

/// The ClusterRole of all pods of all datacenters.
const MEMBER_ROLE: &str = "scyllacluster-member";

pub(crate) fn service_account(datacenter: &Datacenter) -> ServiceAccount {
    let name = names::datacenter::member_service_account(&datacenter.name);
    ServiceAccount { metadata: owned(datacenter, name, cluster_labels(datacenter)), ..ServiceAccount::default() }
}

pub(crate) fn role_binding(datacenter: &Datacenter) -> RoleBinding {
    let name = names::datacenter::member_service_account(&datacenter.name);
    RoleBinding {
        metadata: owned(datacenter, name.clone(), cluster_labels(datacenter)),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "ClusterRole".into(),
            name: MEMBER_ROLE.into(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name,
            namespace: Some(datacenter.namespace.clone()),
            api_group: None,
        }]),
    }
}

pub(crate) fn pod_disruption_budget(datacenter: &Datacenter) -> PodDisruptionBudget {
    // Pods of Jobs have the same labels and are not nodes.
    let no_job = LabelSelectorRequirement {
        key: "batch.kubernetes.io/job-name".into(),
        operator: "DoesNotExist".into(),
        values: None,
    };
    let name = names::datacenter::pod_disruption_budget(&datacenter.name);
    PodDisruptionBudget {
        metadata: owned(datacenter, name, cluster_labels(datacenter)),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(LabelSelector {
                match_labels: Some(cluster_labels(datacenter)),
                match_expressions: Some(vec![no_job]),
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    }
}
