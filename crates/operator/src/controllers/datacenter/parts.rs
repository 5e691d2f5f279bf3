//! From a plan to parts, in the order in which they are needed.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use messina_plan::datacenter::{self, CertificateChain, Note, Objects, Observed, Plan};
use messina_runtime::{
    apply::{Part, Waiting, Wanted, no_longer_wanted},
    error::Error,
    store::Kind,
};

/// What the pods of a rack need when they start.
const BEFORE_NODES: &[&str] = &[
    datacenter::Part::ServiceAccount.name(),
    datacenter::Part::RoleBinding.name(),
    datacenter::Part::AgentToken.name(),
    datacenter::Part::Certificates.name(),
    datacenter::Part::Config.name(),
    datacenter::Part::Service.name(),
    datacenter::Part::PodDisruptionBudget.name(),
];

pub(super) fn parts(observed: &Observed, plan: &Plan) -> Result<Vec<Part>, Error> {
    // Named one by one, so that none is forgotten.
    let Objects {
        service_account,
        role_binding,
        agent_auth_token,
        managed_config,
        managed_agent_config,
        snitch_configs,
        pod_disruption_budget,
        identity_service,
        member_services,
        certificates,
        cql_connection_configs,
        stateful_sets,
    } = &plan.objects;
    let configs = wanted([managed_config, managed_agent_config].into_iter().chain(snitch_configs))?;
    let owned: Vec<Arc<ConfigMap>> = observed.config_maps.values().cloned().map(Arc::new).collect();
    let is_left_alone = |name: &str| plan.left_alone.iter().any(|left| left.kind == "ConfigMap" && left.name == name);
    let certificates = certificate_objects(certificates, cql_connection_configs.as_ref())?;
    let mut unwanted = no_longer_wanted(&owned, &[configs.as_slice(), &certificates].concat());
    unwanted.retain(|object| !is_left_alone(&object.key().name));
    let part = |part: datacenter::Part, objects| Part {
        name: part.name(),
        objects,
        waits_for: waiting(part, &plan.waiting),
        fault: fault(part, &plan.wrong),
        ..Part::default()
    };
    Ok(vec![
        part(datacenter::Part::ServiceAccount, wanted([service_account])?),
        part(datacenter::Part::RoleBinding, wanted([role_binding])?),
        part(datacenter::Part::AgentToken, wanted(agent_auth_token)?),
        part(datacenter::Part::Certificates, certificates),
        Part { unwanted, ..part(datacenter::Part::Config, configs) },
        part(datacenter::Part::Service, wanted([identity_service].into_iter().chain(member_services))?),
        part(datacenter::Part::PodDisruptionBudget, wanted([pod_disruption_budget])?),
        Part { needs: BEFORE_NODES, ..part(datacenter::Part::StatefulSet, wanted(stateful_sets)?) },
    ])
}

/// Each authority before what it signs, and all of them before the files that tell clients of them.
fn certificate_objects(chains: &[CertificateChain], configs: Option<&Secret>) -> Result<Vec<Wanted>, Error> {
    let mut objects = Vec::new();
    for CertificateChain { authority, bundle, certificate } in chains {
        objects.extend(wanted(authority)?);
        objects.extend(wanted(bundle)?);
        objects.extend(wanted(certificate)?);
    }
    objects.extend(wanted(configs)?);
    Ok(objects)
}

fn wanted<'a, K: Kind>(objects: impl IntoIterator<Item = &'a K>) -> Result<Vec<Wanted>, Error> {
    objects.into_iter().map(Wanted::new).collect()
}

fn of_part(part: datacenter::Part, notes: &[Note]) -> Option<(&'static str, String)> {
    let notes: Vec<&Note> = notes.iter().filter(|note| note.part == part).collect();
    let messages: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
    notes.first().map(|first| (first.reason, messages.join("\n")))
}

fn waiting(part: datacenter::Part, notes: &[Note]) -> Option<Waiting> {
    of_part(part, notes).map(|(reason, message)| Waiting { reason, message })
}

fn fault(part: datacenter::Part, notes: &[Note]) -> Option<Error> {
    of_part(part, notes).map(|(reason, message)| Error::Invalid { reason, message })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::certificates::{
        KeySize,
        tests::{observed, settle},
    };

    fn names<'a>(keys: impl Iterator<Item = &'a messina_runtime::queue::ObjectKey>) -> Vec<&'a str> {
        keys.map(|key| key.name.as_str()).collect()
    }

    fn planned(observed: &Observed) -> Vec<Part> {
        parts(observed, &datacenter::plan(observed)).unwrap()
    }

    #[test]
    fn nodes_come_after_all_that_they_need() {
        let mut observed = observed();
        settle(&mut observed, KeySize::default());
        let parts = planned(&observed);
        let mut all: Vec<&str> = datacenter::Part::ALL.iter().map(|part| part.name()).collect();
        let last = parts.last().unwrap();
        assert_eq!(last.name, datacenter::Part::StatefulSet.name());
        assert_eq!(names(last.objects.iter().map(Wanted::key)), ["orders-dc-a"]);
        all.retain(|name| *name != last.name);
        let mut before = BEFORE_NODES.to_vec();
        all.sort_unstable();
        before.sort_unstable();
        assert_eq!(before, all);
    }

    #[test]
    fn authorities_come_before_what_they_sign() {
        let mut observed = observed();
        settle(&mut observed, KeySize::default());
        let parts = planned(&observed);
        let part = parts.iter().find(|part| part.name == datacenter::Part::Certificates.name()).unwrap();
        let expected = [
            "orders-local-client-ca",
            "orders-local-client-ca",
            "orders-local-user-admin",
            "orders-local-serving-ca",
            "orders-local-serving-ca",
            "orders-local-serving-certs",
            "orders-local-cql-connection-configs-admin",
        ];
        assert_eq!(names(part.objects.iter().map(Wanted::key)), expected);
    }

    /// They are ConfigMaps of the datacenter, as its configuration is.
    #[test]
    fn authorities_that_are_trusted_are_not_given_up_with_old_configuration() {
        let mut observed = observed();
        settle(&mut observed, KeySize::default());
        let mut old = observed.config_maps["orders-local-client-ca"].clone();
        old.metadata.name = Some("orders-old-snitch-config".into());
        observed.config_maps.insert("orders-old-snitch-config".into(), old);
        let given_up = |observed: &Observed| {
            let parts = planned(observed);
            let given_up = parts.iter().flat_map(|part| &part.unwanted).map(|object| object.key().name.clone());
            given_up.collect::<Vec<_>>()
        };
        assert_eq!(given_up(&observed), ["orders-old-snitch-config"]);
        observed.secrets.remove("orders-local-serving-ca");
        assert_eq!(given_up(&observed), ["orders-old-snitch-config"], "while the authority is made anew");
        observed.gates = datacenter::Gates::default();
        assert_eq!(given_up(&observed), ["orders-old-snitch-config"], "when certificates are no longer made");
    }
}
