//! Ingresses, through which CQL clients outside of the Kubernetes cluster reach the nodes by host name.
//!
//! A node's host name begins with its host ID, so the operator creates its Ingress when the host ID is known.

use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule, IngressServiceBackend, IngressSpec,
    ServiceBackendPort,
};
use messina_api::{
    names::{
        self,
        label::{self, value},
    },
    scylla::v1alpha1::CqlIngressOptions,
};

use crate::{
    datacenter::{
        model::{
            component::Component,
            facts::service::{NodeService, Role},
            metadata::{cluster_labels, owned_with},
            observed::Observed,
            plan::{Note, Untouched},
            spec::Datacenter,
        },
        reasons,
    },
    metadata::{map, with},
};

/// The Service port behind the Ingresses. Only TLS connections name their host (SNI).
const PORT: &str = "cql-ssl";

#[derive(Default)]
pub(crate) struct Ingresses {
    pub(crate) ingresses: Vec<Ingress>,
    pub(crate) untouched: Vec<Untouched>,
    pub(crate) progressing: Vec<Note>,
}

/// The backend of an Ingress.
enum Target<'a> {
    AnyNode,
    Node(&'a str),
    Unknown,
}

pub(crate) fn ingresses(observed: &Observed) -> Ingresses {
    let mut found = Ingresses::default();
    let Some(options) = &observed.datacenter.cql_ingress else { return found };
    for (service, object) in &observed.services {
        match target(object) {
            None => {}
            Some(Target::Unknown) => {
                // A host ID that was known before is reported again soon, so an existing Ingress stays.
                found.untouched.push(Untouched { kind: "Ingress", name: names::datacenter::cql_ingress(service) });
                found.progressing.push(no_host_id(&observed.datacenter, service));
            }
            Some(target) => found.ingresses.push(ingress(&observed.datacenter, options, service, &target)),
        }
    }
    found
}

fn target(service: &NodeService) -> Option<Target<'_>> {
    Some(match service.role? {
        Role::Identity => Target::AnyNode,
        Role::Member => service.host_id.as_deref().filter(|id| !id.is_empty()).map_or(Target::Unknown, Target::Node),
    })
}

fn no_host_id(datacenter: &Datacenter, service: &str) -> Note {
    Note {
        component: Component::Ingress,
        reason: reasons::WAITING_FOR_HOST_ID,
        message: format!(
            "Service {}/{service} has no host ID of its node yet. The operator creates the node's Ingress when the \
             sidecar has reported the host ID.",
            datacenter.namespace
        ),
    }
}

fn ingress(datacenter: &Datacenter, options: &CqlIngressOptions, service: &str, target: &Target<'_>) -> Ingress {
    let (kind, prefix) = match target {
        Target::Node(host_id) => (value::NODE, format!("{host_id}.")),
        Target::AnyNode | Target::Unknown => (value::ANY_NODE, String::new()),
    };
    let labels = options.labels.clone().unwrap_or_else(|| datacenter.labels.clone());
    let labels = with(with(labels, cluster_labels(datacenter)), map([(label::INGRESS_TYPE, kind)]));
    let annotations = options.annotations.clone().unwrap_or_else(|| datacenter.annotations.clone());
    let rules = datacenter.dns_domains.iter().map(|domain| rule(format!("{prefix}cql.{domain}"), service));
    Ingress {
        metadata: owned_with(datacenter, names::datacenter::cql_ingress(service), labels, annotations),
        spec: Some(IngressSpec {
            ingress_class_name: options.ingress_class_name.clone().filter(|class| !class.is_empty()),
            rules: Some(rules.collect()),
            ..IngressSpec::default()
        }),
        ..Ingress::default()
    }
}

fn rule(host: String, service: &str) -> IngressRule {
    let backend = IngressBackend {
        service: Some(IngressServiceBackend {
            name: service.to_owned(),
            port: Some(ServiceBackendPort { name: Some(PORT.into()), number: None }),
        }),
        resource: None,
    };
    let path = HTTPIngressPath { path: Some("/".into()), path_type: "Prefix".into(), backend };
    IngressRule { host: Some(host), http: Some(HTTPIngressRuleValue { paths: vec![path] }) }
}
