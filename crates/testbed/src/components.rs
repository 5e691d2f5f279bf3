//! The processes of the control plane and their arguments.

use std::{
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{
    cache,
    error::{Result, malformed},
    network::SERVICES,
    pki::Pki,
    supervise::Component,
    tools::Tools,
};

/// The Service of the API server: the first of all Services.
const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The Service of the cluster's DNS.
pub const DNS_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);

/// The addresses, ports and files of a control plane.
#[derive(Debug)]
pub struct ControlPlane<'a> {
    /// The cluster's folder.
    pub folder: &'a Path,
    /// The programs.
    pub tools: &'a Tools,
    /// The network namespace that it runs in; none means this host's own.
    pub netns: Option<String>,
    /// The API server's address.
    pub address: Ipv4Addr,
    /// The API server's port.
    pub port: u16,
    /// etcd's ports, for clients and peers, on loopback.
    pub etcd_ports: [u16; 2],
    /// The controller manager's port, on loopback.
    pub controllers_port: u16,
    /// Whether there are Kubernetes nodes that pods can be scheduled to.
    pub has_scheduler: bool,
}

impl ControlPlane<'_> {
    /// The URL of the API server.
    pub fn server(&self) -> String {
        format!("https://{}:{}", self.address, self.port)
    }

    /// Creates all keys, certificates and kubeconfigs.
    pub fn make_credentials(&self) -> Result<Pki> {
        let pki = Pki::create(self.pki())?;
        let loopback = Ipv4Addr::LOCALHOST;
        pki.api_server(&[self.address, loopback, API_SERVICE].map(IpAddr::V4))?;
        let server = self.server();
        for user in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
            pki.kubeconfig(user, &server, &format!("system:{user}"), None)?;
        }
        pki.admin_kubeconfig(&server)?;
        Ok(pki)
    }

    fn pki(&self) -> PathBuf {
        self.folder.join("pki")
    }

    /// The processes, in the order in which they are started.
    pub fn components(&self) -> Result<Vec<Component>> {
        let audit_policy = self.folder.join("audit-policy.yaml");
        // Reads without bodies; writes with their request bodies, so that a test can see every change.
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "users": ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"]},
                {"level": "None", "userGroups": ["system:nodes"]},
                {"level": "Metadata", "verbs": ["get", "list", "watch"]},
                {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"]}]},
                // For objects of nodes also the response: a patch alone does not show the resulting object.
                {"level": "RequestResponse", "resources": [
                    {"group": "", "resources": ["pods", "pods/eviction", "persistentvolumeclaims", "services"]},
                    {"group": "apps", "resources": ["statefulsets", "statefulsets/scale"]},
                ]},
                {"level": "Request"},
            ],
        });
        cache::write(&audit_policy, serde_saphyr::to_string(&policy).map_err(malformed("writing the audit policy"))?)?;
        let mut components = vec![self.etcd(), self.api_server(&audit_policy), self.controller_manager()];
        if self.has_scheduler {
            let kubeconfig = self.pki().join("kube-scheduler.kubeconfig");
            components.push(self.component(
                "kube-scheduler",
                [
                    format!("--kubeconfig={}", kubeconfig.display()),
                    "--leader-elect=false".into(),
                    // It serves no requests, and two light clusters would use the same port.
                    "--secure-port=0".into(),
                ],
            ));
        }
        Ok(components)
    }

    fn component(&self, name: &str, arguments: impl IntoIterator<Item = String>) -> Component {
        let program = self.tools.program(name).to_string_lossy().into_owned();
        Component::new(name, self.netns.as_deref(), std::iter::once(program).chain(arguments))
    }

    fn etcd(&self) -> Component {
        let [clients, peers] = self.etcd_ports.map(|port| format!("http://127.0.0.1:{port}"));
        self.component(
            "etcd",
            [
                format!("--data-dir={}", self.folder.join("etcd").display()),
                format!("--listen-client-urls={clients}"),
                format!("--advertise-client-urls={clients}"),
                format!("--listen-peer-urls={peers}"),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=default={peers}"),
                // A test cluster need not survive a crash of this host.
                "--unsafe-no-fsync".into(),
            ],
        )
    }

    fn api_server(&self, audit_policy: &Path) -> Component {
        let pki = self.pki();
        let file = |name: &str| pki.join(name).display().to_string();
        self.component(
            "kube-apiserver",
            [
                format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_ports[0]),
                format!("--bind-address={}", self.address),
                // Pods reach it by this address. Loopback is not allowed, and a cluster on loopback has no pods.
                format!("--advertise-address={}", if self.address.is_loopback() { API_SERVICE } else { self.address }),
                format!("--endpoint-reconciler-type={}", if self.address.is_loopback() { "none" } else { "lease" }),
                format!("--secure-port={}", self.port),
                format!("--service-cluster-ip-range={SERVICES}"),
                format!("--tls-cert-file={}", file("apiserver.crt")),
                format!("--tls-private-key-file={}", file("apiserver.key")),
                format!("--client-ca-file={}", file("ca.crt")),
                "--authorization-mode=Node,RBAC".into(),
                "--enable-admission-plugins=NodeRestriction".into(),
                "--allow-privileged=true".into(),
                "--service-account-issuer=https://kubernetes.default.svc".into(),
                format!("--service-account-key-file={}", file("service-accounts.pub")),
                format!("--service-account-signing-key-file={}", file("service-accounts.key")),
                format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
                format!("--kubelet-client-key={}", file("kubelet-client.key")),
                "--kubelet-preferred-address-types=InternalIP".into(),
                format!("--audit-policy-file={}", audit_policy.display()),
                format!("--audit-log-path={}", self.folder.join("audit.log").display()),
                // No rotation, so that readers need only one file.
                "--audit-log-maxsize=2000".into(),
            ],
        )
    }

    fn controller_manager(&self) -> Component {
        let pki = self.pki();
        let file = |name: &str| pki.join(name).display().to_string();
        self.component(
            "kube-controller-manager",
            [
                format!("--kubeconfig={}", file("kube-controller-manager.kubeconfig")),
                "--use-service-account-credentials".into(),
                format!("--service-account-private-key-file={}", file("service-accounts.key")),
                format!("--root-ca-file={}", file("ca.crt")),
                format!("--cluster-signing-cert-file={}", file("ca.crt")),
                format!("--cluster-signing-key-file={}", file("ca.key")),
                "--leader-elect=false".into(),
                "--bind-address=127.0.0.1".into(),
                format!("--secure-port={}", self.controllers_port),
                // The default, 20 a second, takes four seconds to start all controllers.
                "--kube-api-qps=500".into(),
                "--kube-api-burst=1000".into(),
            ],
        )
    }
}
