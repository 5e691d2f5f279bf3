//! The permissions of the operator, and those that it uses.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::{Api, Client};
use messina_testbed::audit::{Log, Request};

use crate::expect_ok;

/// Group, resource and verb.
pub type Permission = (String, String, String);

/// The permissions of the operator, and those that it has used.
#[derive(Debug)]
pub struct Permissions {
    /// The permissions of its ClusterRole.
    pub allowed: BTreeSet<Permission>,
    /// The permissions that it has used.
    pub used: BTreeSet<Permission>,
}

/// The permissions of the operator, and those used by this user's requests in the log. Fails if the API server refused
/// one.
pub async fn permissions(client: &Client, log: &Log, user: &str) -> Permissions {
    let requests = expect_ok(log.requests_by(&[user]));
    let refused: Vec<&Request> = requests.iter().filter(|request| request.is_unauthorized).collect();
    assert!(refused.is_empty(), "the API server refused {refused:?}");
    let used = requests
        .iter()
        // A Role in its own namespace allows its lease.
        .filter(|request| request.resource != "leases" || request.namespace.is_empty())
        .map(|request| (request.group.clone(), request.resource.clone(), request.verb.clone()))
        .collect();
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let rules = expect_ok(roles.get("messina").await).rules.unwrap_or_default();
    let mut allowed = BTreeSet::new();
    for rule in &rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                allowed.extend(rule.verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    Permissions { allowed, used }
}
