//! The objects of an etcd cluster, as etcd-druid creates them.

use jiff::{Timestamp, ToSpan, tz::TimeZone};
use serde_json::{Value, json};

use super::{
    MemberProcess, Shape,
    certificates::{BUNDLE, Secrets},
    programs::{BACKUP_RESTORE_IMAGE, ETCD_IMAGE},
    store::{CONTAINER, STORES},
};
use crate::node;

/// The port of etcd for clients.
pub const CLIENT_PORT: u16 = 2379;
/// The port of the sidecar.
pub const SIDECAR_PORT: u16 = 8080;
const PEER_PORT: u16 = 2380;
/// The port of readiness probes, without TLS: the kubelet has no client certificate.
const METRICS_PORT: u16 = 2381;

/// The label with the name of the Etcd.
pub(super) const PART_OF: &str = "app.kubernetes.io/part-of";
/// The label of objects that the keeper watches.
pub(super) const MANAGED: &str = "app.kubernetes.io/managed-by=messina-testbed-etcd";

const DATA: &str = "/var/etcd/data";
const CONFIG: &str = "/var/etcd/config";
const SSL: &str = "/var/etcd/ssl";
/// The sidecar's home folder. The path of the store is below it, even if that is absolute.
const HOME: &str = "/var/etcd/home";

/// The desired state of an etcd cluster.
pub(super) struct Plan<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) shape: Shape,
}

impl Plan<'_> {
    pub(super) fn labels(&self) -> Value {
        let (_, managed_by) = MANAGED.split_once('=').unwrap_or_default();
        json!({"app.kubernetes.io/managed-by": managed_by, PART_OF: self.name})
    }

    /// The DNS name of a member for other pods.
    pub(super) fn host(&self, pod: &str) -> String {
        format!("{pod}.{}-peer.{}.svc", self.name, self.namespace)
    }

    fn scheme(&self) -> &'static str {
        if self.shape.tls { "https" } else { "http" }
    }

    fn pods(&self) -> Vec<String> {
        (0..self.shape.members).map(|number| format!("{}-{number}", self.name)).collect()
    }

    fn client_url(&self, pod: &str) -> String {
        format!("{}://{}:{CLIENT_PORT}", self.scheme(), self.host(pod))
    }

    fn peer_url(&self, pod: &str) -> String {
        format!("http://{}:{PEER_PORT}", self.host(pod))
    }

    fn initial_cluster(&self) -> String {
        let members: Vec<String> = self.pods().iter().map(|pod| format!("{pod}={}", self.peer_url(pod))).collect();
        members.join(",")
    }

    /// The Etcd itself.
    pub(super) fn etcd(&self) -> Value {
        let secrets = Secrets::of(self.name);
        let reference = |name: &str| json!({"name": name, "namespace": self.namespace});
        let tls = self.shape.tls.then(|| {
            json!({
                "tlsCASecretRef": {"name": secrets.authority, "namespace": self.namespace, "dataKey": BUNDLE},
                "serverTLSSecretRef": reference(&secrets.server),
                "clientTLSSecretRef": reference(&secrets.client),
            })
        });
        let mut etcd = json!({
            "apiVersion": "druid.gardener.cloud/v1alpha1",
            "kind": "Etcd",
            "metadata": {"name": self.name, "labels": self.labels()},
            "spec": {
                "replicas": self.shape.members,
                "labels": self.labels(),
                "selector": {"matchLabels": self.labels()},
                "etcd": {"image": ETCD_IMAGE, "clientPort": CLIENT_PORT, "serverPort": PEER_PORT},
                "backup": {
                    "image": BACKUP_RESTORE_IMAGE,
                    "port": SIDECAR_PORT,
                    "store": {"provider": "Local", "container": CONTAINER, "prefix": self.name},
                },
            },
        });
        if let Some(tls) = tls {
            etcd["spec"]["etcd"]["clientUrlTls"] = tls.clone();
            etcd["spec"]["backup"]["tls"] = tls;
        }
        etcd
    }

    /// The objects that the Etcd owns, without its Secrets.
    pub(super) fn parts(&self) -> Vec<Value> {
        vec![self.config(), self.peer_service(), self.client_service(), self.members()]
    }

    fn metadata(&self, suffix: &str) -> Value {
        json!({"name": format!("{}{suffix}", self.name), "labels": self.labels()})
    }

    /// The part of etcd's configuration that sidecars read: the members and their addresses.
    fn config(&self) -> Value {
        let by_member = |url: &dyn Fn(&str) -> String| -> Value {
            self.pods().iter().map(|pod| (pod.clone(), json!([url(pod)]))).collect::<serde_json::Map<_, _>>().into()
        };
        let config = json!({
            "name": self.name,
            "data-dir": format!("{DATA}/new.etcd"),
            "advertise-client-urls": by_member(&|pod| self.client_url(pod)),
            "initial-advertise-peer-urls": by_member(&|pod| self.peer_url(pod)),
            "initial-cluster": self.initial_cluster(),
            "initial-cluster-token": self.name,
            "initial-cluster-state": "new",
        });
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": self.metadata("-config"),
            // JSON is YAML.
            "data": {"etcd.conf.yaml": config.to_string()},
        })
    }

    /// The headless Service that gives every member a DNS name, even before it is ready: members find one another by
    /// it.
    fn peer_service(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": self.metadata("-peer"),
            "spec": {
                "clusterIP": "None", "publishNotReadyAddresses": true, "selector": self.labels(),
                "ports": [{"name": "peer", "port": PEER_PORT}],
            },
        })
    }

    fn client_service(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": self.metadata("-client"),
            "spec": {
                "selector": self.labels(),
                "ports": [{"name": "client", "port": CLIENT_PORT}, {"name": "backuprestore", "port": SIDECAR_PORT}],
            },
        })
    }

    fn members(&self) -> Value {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": self.metadata(""),
            "spec": {
                "replicas": self.shape.members,
                "serviceName": format!("{}-peer", self.name),
                // Members wait for one another.
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": self.labels()},
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Retain"},
                "volumeClaimTemplates": [{
                    "metadata": {"name": "data"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                }],
                "template": {
                    "metadata": {"labels": self.labels()},
                    "spec": {
                        "terminationGracePeriodSeconds": 5,
                        "automountServiceAccountToken": false,
                        "containers": [self.etcd_container(), self.sidecar_container()],
                        "volumes": self.volumes(),
                    },
                },
            },
        })
    }

    fn etcd_container(&self) -> Value {
        let scheme = self.scheme();
        let mut arguments = vec![
            "--name=$(POD_NAME)".to_owned(),
            format!("--data-dir={DATA}/new.etcd"),
            format!("--listen-client-urls={scheme}://0.0.0.0:{CLIENT_PORT}"),
            format!("--advertise-client-urls={}", self.client_url("$(POD_NAME)")),
            format!("--listen-peer-urls=http://0.0.0.0:{PEER_PORT}"),
            format!("--initial-advertise-peer-urls={}", self.peer_url("$(POD_NAME)")),
            format!("--listen-metrics-urls=http://0.0.0.0:{METRICS_PORT}"),
            format!("--initial-cluster={}", self.initial_cluster()),
            format!("--initial-cluster-token={}", self.name),
            "--initial-cluster-state=new".into(),
            // Writes survive the kill of the process; only a crash of the host would lose them.
            "--unsafe-no-fsync".into(),
        ];
        if self.shape.tls {
            arguments.extend([
                format!("--cert-file={SSL}/server/tls.crt"),
                format!("--key-file={SSL}/server/tls.key"),
                format!("--trusted-ca-file={SSL}/ca/{BUNDLE}"),
                "--client-cert-auth".into(),
            ]);
        }
        json!({
            "name": MemberProcess::Etcd.container(),
            "image": ETCD_IMAGE,
            "imagePullPolicy": "Never",
            "args": arguments,
            "env": [field("POD_NAME", "metadata.name")],
            "ports": [port("client", CLIENT_PORT), port("peer", PEER_PORT), port("metrics", METRICS_PORT)],
            // A sidecar that does not lead is never healthy, so the readiness of a pod is that of its member.
            "readinessProbe": {
                "httpGet": {"path": "/readyz", "port": METRICS_PORT},
                "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 3,
            },
            "volumeMounts": self.mounts(&[("data", DATA)]),
        })
    }

    fn sidecar_container(&self) -> Value {
        let scheme = self.scheme();
        let mut arguments = vec![
            "server".to_owned(),
            format!("--server-port={SIDECAR_PORT}"),
            format!("--endpoints={scheme}://127.0.0.1:{CLIENT_PORT}"),
            format!("--service-endpoints={scheme}://{}-client.{}.svc:{CLIENT_PORT}", self.name, self.namespace),
            "--name=$(POD_NAME)".into(),
            format!("--data-dir={DATA}/new.etcd"),
            format!("--initial-cluster={}", self.initial_cluster()),
            format!("--initial-cluster-token={}", self.name),
            format!("--initial-advertise-peer-urls={}", self.peer_url("$(POD_NAME)")),
            format!("--restoration-temp-snapshots-dir={DATA}/restoration.temp"),
            format!("--snapstore-temp-directory={DATA}/temp"),
            "--storage-provider=Local".into(),
            format!("--store-container={CONTAINER}"),
            format!("--store-prefix={}", self.name),
            format!("--schedule={}", daily_in_23_hours(Timestamp::now())),
            "--defragmentation-schedule=0 0 1 1 *".into(),
            "--delta-snapshot-period=24h".into(),
            "--garbage-collection-period=24h".into(),
            "--garbage-collection-policy=LimitBased".into(),
            "--max-backups=1000".into(),
            // The minimum: a sidecar leads at most this time after its member.
            "--reelection-period=1100ms".into(),
        ];
        arguments.extend(if self.shape.tls {
            vec![
                "--insecure-transport=false".to_owned(),
                "--insecure-skip-tls-verify=false".into(),
                format!("--cacert={SSL}/ca/{BUNDLE}"),
                format!("--cert={SSL}/client/tls.crt"),
                format!("--key={SSL}/client/tls.key"),
                format!("--server-cert={SSL}/server/tls.crt"),
                format!("--server-key={SSL}/server/tls.key"),
            ]
        } else {
            vec!["--insecure-transport=true".into()]
        });
        let home = json!({"name": "HOME", "value": HOME});
        json!({
            "name": MemberProcess::Sidecar.container(),
            "image": BACKUP_RESTORE_IMAGE,
            "imagePullPolicy": "Never",
            "args": arguments,
            "env": [field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"), home],
            "ports": [port("backuprestore", SIDECAR_PORT)],
            "volumeMounts": self.mounts(&[("data", DATA), ("config", CONFIG), ("store", HOME)]),
        })
    }

    fn mounts(&self, of: &[(&str, &str)]) -> Vec<Value> {
        let tls = ["ca", "server", "client"].into_iter().filter(|_| self.shape.tls);
        let tls = tls.map(|name| json!({"name": name, "mountPath": format!("{SSL}/{name}"), "readOnly": true}));
        of.iter().map(|(name, path)| json!({"name": name, "mountPath": path})).chain(tls).collect()
    }

    fn volumes(&self) -> Vec<Value> {
        let secrets = Secrets::of(self.name);
        let store = format!("{}/{STORES}/{}.{}", node::HERE, self.namespace, self.name);
        let mut volumes = vec![
            json!({"name": "config", "configMap": {"name": format!("{}-config", self.name)}}),
            json!({"name": "store", "hostPath": {"path": store, "type": "Directory"}}),
        ];
        if self.shape.tls {
            let named = [("ca", secrets.authority), ("server", secrets.server), ("client", secrets.client)];
            volumes.extend(named.map(|(name, secret)| json!({"name": name, "secret": {"secretName": secret}})));
        }
        volumes
    }
}

fn port(name: &str, number: u16) -> Value {
    json!({"name": name, "containerPort": number})
}

fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// The latest possible schedule of full snapshots: if the next one were more than 24 hours after the last, a sidecar
/// would take one whenever it begins to lead.
fn daily_in_23_hours(now: Timestamp) -> String {
    let then = (now + 23.hours()).to_zoned(TimeZone::UTC);
    format!("{} {} * * *", then.minute(), then.hour())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn next_full_snapshot_is_in_23_hours() {
        assert_eq!(daily_in_23_hours("2026-11-15T10:20:30Z".parse().unwrap()), "20 9 * * *");
        assert_eq!(daily_in_23_hours("2026-12-31T00:05:00Z".parse().unwrap()), "5 23 * * *");
    }

    #[test]
    fn members_have_the_names_of_their_pods() {
        let plan = Plan { namespace: "shop", name: "main", shape: Shape { members: 3, tls: true } };
        let config: Value = serde_json::from_str(plan.config()["data"]["etcd.conf.yaml"].as_str().unwrap()).unwrap();
        assert_eq!(config["advertise-client-urls"]["main-2"], json!(["https://main-2.main-peer.shop.svc:2379"]));
        assert_eq!(config["initial-cluster"].as_str().unwrap().split(',').count(), 3);
    }
}
