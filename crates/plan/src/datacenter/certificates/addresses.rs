//! For which names and addresses nodes are certified.

use std::{collections::BTreeSet, net::IpAddr};

use crate::datacenter::{
    model::{certificate::chain::Addresses, facts::service::NodeService, observed::Observed},
    objects::services,
    state::Current,
    topology,
};

/// Where clients inside and outside of Kubernetes find the nodes: by Service, by pod, by load balancer, and by domain.
pub(crate) fn addresses(current: &Current<'_>) -> Addresses {
    let observed = current.observed;
    let datacenter = &observed.datacenter;
    let services = services::services(current, &topology::services_to_delete(current));
    let planned = [services.identity].into_iter().chain(services.members).filter_map(|service| service.metadata.name);
    let planned: BTreeSet<String> = planned.collect();
    let kept = observed.services.iter().filter(|(_, service)| service.role.is_some());
    let all = kept.map(|(name, _)| name).chain(&planned).collect::<BTreeSet<_>>();
    let mut found = Addresses::default();
    for domain in &datacenter.dns_domains {
        found.dns_names.insert(cql_domain(domain));
    }
    for name in all {
        found.dns_names.insert(format!("{name}.{}.svc", datacenter.namespace));
        let before = found.awaited.len();
        found.add_service(observed, name);
        // A node that is not wanted any more may never get what it lacks.
        if !planned.contains(name) {
            found.awaited.truncate(before);
        }
    }
    found
}

/// What clients of CQL ask for in a domain.
pub(crate) fn cql_domain(domain: &str) -> String {
    format!("cql.{domain}")
}

impl Addresses {
    fn add_service(&mut self, observed: &Observed, name: &str) {
        let namespace = &observed.datacenter.namespace;
        let Some(service) = observed.services.get(name) else {
            return self.awaited.push(format!("Service {namespace}/{name} is to be made"));
        };
        match service.addresses.cluster_ip.as_deref() {
            Some("None") => {}
            Some(address) if !address.is_empty() => self.add(address),
            _ => self.awaited.push(format!("Service {namespace}/{name} is to get an address")),
        }
        if service.is_load_balancer {
            self.add_load_balancer(service, &format!("{namespace}/{name}"));
        }
        if service.is_member() {
            self.add_node(observed, service, name);
        }
    }

    fn add_load_balancer(&mut self, service: &NodeService, name: &str) {
        let mut has_any = false;
        for ingress in &service.addresses.ingress {
            for address in ingress.ip.iter().filter(|address| !address.is_empty()) {
                has_any = true;
                self.add(address);
            }
            // A certificate cannot hold a name that is not ASCII, and nobody could ask for it.
            for host in ingress.hostname.iter().filter(|host| !host.is_empty() && host.is_ascii()) {
                has_any = true;
                self.dns_names.insert(host.clone());
            }
        }
        if !has_any {
            self.awaited.push(format!("the load balancer of Service {name} is to get an address"));
        }
    }

    fn add_node(&mut self, observed: &Observed, service: &NodeService, name: &str) {
        let namespace = &observed.datacenter.namespace;
        let address = observed.pods.get(name).and_then(|pod| pod.addresses.ip.as_deref());
        match address.filter(|address| !address.is_empty()) {
            Some(address) => self.add(address),
            None => self.awaited.push(format!("Pod {namespace}/{name} is to get an address")),
        }
        let domains = &observed.datacenter.dns_domains;
        match service.host_id.as_ref().filter(|id| !id.is_empty() && id.is_ascii()) {
            _ if domains.is_empty() => {}
            Some(id) => self.dns_names.extend(domains.iter().map(|domain| format!("{id}.{}", cql_domain(domain)))),
            None => self.awaited.push(format!("the node of Service {namespace}/{name} is to tell its host ID")),
        }
    }

    /// What Kubernetes gives as an address and is none helps no client.
    fn add(&mut self, address: &str) {
        self.addresses.extend(address.parse::<IpAddr>().ok());
    }
}
