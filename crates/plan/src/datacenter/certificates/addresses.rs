//! The DNS names and IP addresses that serving certificates must cover.

use std::{collections::BTreeSet, net::IpAddr};

use crate::datacenter::{
    model::{certificate::chain::Addresses, facts::service::NodeService, observed::Observed},
    objects::services,
    state::Current,
    topology,
};

/// Returns the names and addresses by which clients reach nodes: those of Services, pods, load balancers and DNS
/// domains.
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
        let before = found.pending.len();
        found.add_service(observed, name);
        // A node that is being removed may never get a missing address, so it is not waited for.
        if !planned.contains(name) {
            found.pending.truncate(before);
        }
    }
    found
}

/// The host name of CQL in a DNS domain.
pub(crate) fn cql_domain(domain: &str) -> String {
    format!("cql.{domain}")
}

impl Addresses {
    fn add_service(&mut self, observed: &Observed, name: &str) {
        let namespace = &observed.datacenter.namespace;
        let Some(service) = observed.services.get(name) else {
            return self.pending.push(format!("Service {namespace}/{name} to be created"));
        };
        match service.addresses.cluster_ip.as_deref() {
            Some("None") => {}
            Some(address) if !address.is_empty() => self.add(address),
            _ => self.pending.push(format!("Service {namespace}/{name} to get a cluster IP")),
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
            // A certificate cannot have a name that is not ASCII.
            for host in ingress.hostname.iter().filter(|host| !host.is_empty() && host.is_ascii()) {
                has_any = true;
                self.dns_names.insert(host.clone());
            }
        }
        if !has_any {
            self.pending.push(format!("Service {name} to get an address of its load balancer"));
        }
    }

    fn add_node(&mut self, observed: &Observed, service: &NodeService, name: &str) {
        let namespace = &observed.datacenter.namespace;
        let address = observed.pods.get(name).and_then(|pod| pod.addresses.ip.as_deref());
        match address.filter(|address| !address.is_empty()) {
            Some(address) => self.add(address),
            None => self.pending.push(format!("Pod {namespace}/{name} to get an IP address")),
        }
        let domains = &observed.datacenter.dns_domains;
        match service.host_id.as_ref().filter(|id| !id.is_empty() && id.is_ascii()) {
            _ if domains.is_empty() => {}
            Some(id) => self.dns_names.extend(domains.iter().map(|domain| format!("{id}.{}", cql_domain(domain)))),
            None => self.pending.push(format!("node {namespace}/{name} to report its host ID")),
        }
    }

    /// Adds an address. One that cannot be parsed is ignored.
    fn add(&mut self, address: &str) {
        self.addresses.extend(address.parse::<IpAddr>().ok());
    }
}
