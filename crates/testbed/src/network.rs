//! The network that all clusters on this host share.
//!
//! One network namespace, the fabric, has a bridge to which all Kubernetes nodes of all clusters and this host are
//! connected. The fabric routes to the pods of each Kubernetes node. So pods reach pods of other clusters, and tests
//! reach Kubernetes nodes and pods, by address. There is no route out of this host.

use std::{net::Ipv4Addr, path::Path, process::Command};

use crate::{
    cache::Lock,
    error::{Error, Result},
    exec, inotify,
};

const PREFIX: &str = "messina-";
const FABRIC: &str = "messina-fabric";
const HOST_LINK: &str = "messina0";
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 240, 0, 1);
/// Fixed, because otherwise a bridge takes the lowest hardware address of its links, which changes with the clusters;
/// and Kubernetes nodes would send to the former address for about 40 s.
const GATEWAY_HARDWARE: &str = "02:6d:73:01:00:01";
const HOST: Ipv4Addr = Ipv4Addr::new(10, 240, 0, 2);
const NODES: &str = "10.240.0.0/16";
const PODS: &str = "10.241.0.0/16";

/// The addresses of Services, the same in every cluster, because they are not used outside of it. A Kubernetes node
/// needs a route to them although kube-proxy redirects such packets, because it does so after the route lookup.
pub const SERVICES: &str = "10.96.0.0/16";

/// How many clusters can run at once.
pub const CLUSTERS: u8 = 15;
/// How many Kubernetes nodes a cluster may have.
pub const NODES_PER_CLUSTER: u8 = 15;

/// The addresses of one cluster.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The number of the cluster on this host: 0 to 14.
    pub slot: u8,
}

impl Addresses {
    /// The address of Kubernetes node `number`, counted from 1.
    pub fn node(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 240, self.slot + 1, number)
    }

    /// The addresses of the pods of Kubernetes node `number`.
    pub fn pods_of(self, number: u8) -> String {
        format!("10.241.{}.0/24", self.slot * 16 + number)
    }

    /// The addresses of all pods of the cluster.
    pub fn pods(self) -> String {
        format!("10.241.{}.0/20", self.slot * 16)
    }
}

/// The network namespace of a Kubernetes node.
pub fn namespace(cluster: &str, number: u8) -> String {
    format!("{PREFIX}{cluster}-n{number}")
}

/// Creates the fabric, if it does not exist, and raises the limits of this host for many clusters.
pub fn make_fabric() -> Result<()> {
    if namespaces()?.iter().any(|name| name == FABRIC) {
        return Ok(());
    }
    refuse_overlap()?;
    inotify::raise()?;
    let made = ip_all(&[
        &format!("netns add {FABRIC}"),
        &format!("-n {FABRIC} link set lo up"),
        &format!("-n {FABRIC} link add nodes address {GATEWAY_HARDWARE} type bridge"),
        &format!("-n {FABRIC} addr add {GATEWAY}/16 dev nodes"),
        &format!("-n {FABRIC} link set nodes up"),
        &format!("link add {HOST_LINK} type veth peer name host netns {FABRIC}"),
        &format!("-n {FABRIC} link set host master nodes up"),
        &format!("addr add {HOST}/16 dev {HOST_LINK}"),
        &format!("link set {HOST_LINK} up"),
        &format!("route add {PODS} via {GATEWAY}"),
    ])
    .and_then(|()| sysctl(FABRIC, "net/ipv4/ip_forward", "1"))
    // Kubernetes nodes share a link, so the kernel would send each of them redirects to the others' pods.
    .and_then(|()| sysctl(FABRIC, "net/ipv4/conf/all/send_redirects", "0"))
    .and_then(|()| sysctl(FABRIC, "net/ipv4/conf/nodes/send_redirects", "0"));
    if made.is_err() {
        remove_fabric()?;
    }
    made
}

/// Fails where this host already has a route to these addresses.
fn refuse_overlap() -> Result<()> {
    let routes = exec::output("listing routes", Command::new("ip").args(["-4", "route", "show"]))?;
    match routes.lines().find(|route| route.starts_with("10.240.") || route.starts_with("10.241.")) {
        Some(route) => Err(Error::refused(format!(
            "the testbed uses {NODES} and {PODS}, and this host has a route there already ({}): remove it, or name an \
             existing cluster with --kubeconfig",
            route.trim()
        ))),
        None => Ok(()),
    }
}

/// Removes the fabric, and with it this host's link to it, if no Kubernetes node is connected.
pub fn remove_unused_fabric() -> Result<()> {
    let in_use = namespaces()?.iter().any(|name| name.starts_with(PREFIX) && name != FABRIC);
    if in_use { Ok(()) } else { remove_fabric() }
}

fn remove_fabric() -> Result<()> {
    // A namespace ends some time after its name is deleted; this host's end of the link has to be gone at once.
    remove_link(&format!("link del {HOST_LINK}"));
    if namespaces()?.iter().any(|name| name == FABRIC) {
        ip(&format!("netns del {FABRIC}"))?;
    }
    inotify::restore_limit()
}

/// Locks the choice and the release of addresses, for the testbeds of all users.
pub fn lock() -> Result<Lock> {
    Lock::wait(Path::new("/run"))
}

/// The first free number of a cluster.
pub fn free_slot() -> Result<u8> {
    let links = if namespaces()?.iter().any(|name| name == FABRIC) {
        exec::output(
            "listing nodes",
            Command::new("ip").args(["-n", FABRIC, "-brief", "link", "show", "type", "veth"]),
        )?
    } else {
        String::new()
    };
    let taken = |slot: &u8| links.lines().any(|link| link.starts_with(&format!("c{slot}n")));
    (0..CLUSTERS).find(|slot| !taken(slot)).ok_or_else(|| {
        Error::refused(format!("{CLUSTERS} clusters are running, which is the limit: stop one with `testbed down`"))
    })
}

/// Connects a Kubernetes node to the fabric.
pub fn add_node(cluster: &str, addresses: Addresses, number: u8) -> Result<()> {
    let namespace = namespace(cluster, number);
    let link = format!("c{}n{number}", addresses.slot);
    let address = addresses.node(number);
    // Derived from the IP address: other hosts would use the hardware address of its former owner for a while.
    let hardware = format!("02:6d:73:00:{:02x}:{number:02x}", addresses.slot);
    // A cluster that was removed a moment ago may have left it.
    remove_link(&format!("-n {FABRIC} link del {link}"));
    ip_all(&[
        &format!("netns add {namespace}"),
        &format!("-n {namespace} link set lo up"),
        &format!("-n {namespace} link add eth0 address {hardware} type veth peer name {link} netns {FABRIC}"),
        &format!("-n {FABRIC} link set {link} master nodes up"),
        &format!("-n {namespace} addr add {address}/16 dev eth0"),
        &format!("-n {namespace} link set eth0 up"),
        // No default route, so that the pull of an unknown image fails at once.
        &format!("-n {namespace} route add {PODS} via {GATEWAY}"),
        &format!("-n {namespace} route add {SERVICES} via {GATEWAY}"),
        &format!("-n {FABRIC} route replace {} via {address}", addresses.pods_of(number)),
    ])?;
    sysctl(&namespace, "net/ipv4/ip_forward", "1")
}

/// Removes the network namespaces of a cluster.
pub fn remove_nodes(cluster: &str) -> Result<()> {
    let prefix = format!("{PREFIX}{cluster}-n");
    let is_ours = |name: &String| name.strip_prefix(&prefix).is_some_and(|number| number.parse::<u8>().is_ok());
    namespaces()?.into_iter().filter(is_ours).try_for_each(|name| {
        // Its addresses are free as soon as the link is gone; the namespace itself ends some time after its name.
        remove_link(&format!("-n {name} link del eth0"));
        ip(&format!("netns del {name}"))
    })
}

/// Removes a link that may not exist.
fn remove_link(command: &str) {
    let _not_there = ip(command);
}

fn namespaces() -> Result<Vec<String>> {
    let listed = exec::output("listing network namespaces", Command::new("ip").args(["netns", "list"]))?;
    Ok(listed.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

fn ip(arguments: &str) -> Result<()> {
    exec::output(&format!("ip {arguments}"), Command::new("ip").args(arguments.split(' '))).map(drop)
}

fn ip_all(commands: &[&str]) -> Result<()> {
    commands.iter().try_for_each(|command| ip(command))
}

/// Sets a kernel parameter of one network namespace.
fn sysctl(namespace: &str, key: &str, value: &str) -> Result<()> {
    exec::output(
        &format!("setting {key} in {namespace}"),
        Command::new("nsenter").arg(format!("--net=/run/netns/{namespace}")).args([
            "sh",
            "-c",
            &format!("echo {value} > /proc/sys/{key}"),
        ]),
    )
    .map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_nodes_share_an_address_or_a_pod_network() {
        let all: Vec<(Ipv4Addr, String)> = (0..CLUSTERS)
            .flat_map(|slot| (1..=NODES_PER_CLUSTER).map(move |number| (Addresses { slot }, number)))
            .map(|(addresses, number)| (addresses.node(number), addresses.pods_of(number)))
            .collect();
        let nodes: BTreeSet<_> = all.iter().map(|(node, _)| node).collect();
        let pods: BTreeSet<_> = all.iter().map(|(_, pods)| pods).collect();
        assert_eq!((nodes.len(), pods.len()), (225, 225));
        assert!(!nodes.contains(&GATEWAY) && !nodes.contains(&HOST));
    }

    #[test]
    fn pod_networks_of_a_cluster_lie_in_its_own_range() {
        let addresses = Addresses { slot: 2 };
        assert_eq!(addresses.pods(), "10.241.32.0/20");
        assert_eq!(addresses.pods_of(15), "10.241.47.0/24", "the last network of those");
    }
}
