//! `kubectl messina status`, on the real API server.

use std::{
    env, fs,
    net::{IpAddr, UdpSocket},
    path::PathBuf,
    process::{Command, Output},
};

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{Api, Client};
use messina_e2e::{SOON, accepts, accepts_status, in_a_namespace, light_kubeconfig, objects, program};
use messina_kubectl::status::{
    Style,
    gather::{self, Query},
    model::Status,
    text,
};
use messina_testbed::harness::{Seen, eventually, until};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

fn status(arguments: &[&str]) -> Output {
    Command::new(program("kubectl-messina")).arg("status").args(arguments).output().unwrap()
}

/// The error that it prints.
fn complaint(arguments: &[&str]) -> String {
    let output = status(arguments);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The light cluster's kubeconfig, changed.
fn kubeconfig(namespace: &str, change: impl FnOnce(&mut Value)) -> PathBuf {
    let mut config = objects(&fs::read_to_string(light_kubeconfig()).unwrap()).remove(0);
    change(&mut config);
    let file = env::temp_dir().join(format!("messina-{namespace}.kubeconfig"));
    fs::write(&file, config.to_string()).unwrap();
    file
}

#[tokio::test]
async fn status_reports_an_error_in_one_sentence() {
    in_a_namespace("status", async |_, namespace| {
        let light = light_kubeconfig();
        let light = light.to_str().unwrap();
        let nothing = status(&["--kubeconfig", light, "-n", namespace]);
        assert!(nothing.status.success());
        assert!(
            String::from_utf8(nothing.stdout).unwrap().starts_with("There are no ScyllaDBDatacenters in namespace")
        );
        assert_eq!(
            complaint(&["orders", "--kubeconfig", light, "-n", namespace]),
            format!("There is no ScyllaDBDatacenter orders in namespace {namespace}.\n")
        );
        let nobody = kubeconfig(namespace, |config| config["users"][0]["user"]["as"] = "nobody".into());
        assert_eq!(
            complaint(&["-A", "--kubeconfig", nobody.to_str().unwrap()]),
            "You may not list scylladbdatacenters.scylla.scylladb.com in all namespaces: ask for that permission.\n"
        );
        let nowhere =
            kubeconfig(namespace, |config| config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1".into());
        let said = complaint(&["--kubeconfig", nowhere.to_str().unwrap()]);
        assert!(said.starts_with("The request to the Kubernetes cluster failed: "), "{said}");
        assert!(said.contains("refused"), "{said}");
        fs::remove_file(nowhere).unwrap();
        for wrong in [["--kubeconfig", "/nowhere/config"].as_slice(), &["--kubeconfig", light, "--context", "other"]] {
            let said = complaint(wrong);
            assert!(said.starts_with("The kubeconfig ") && said.lines().count() == 1, "{wrong:?}: {said}");
        }
    })
    .await;
}

/// An address of this host to which the API server proxies requests; it refuses loopback addresses.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Nothing is sent: the kernel only selects the source address.
    socket.connect("192.0.2.200:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|address| !address.is_loopback() && !address.is_unspecified())
}

/// Answers all requests as the probe server of a node does.
async fn probe(listener: TcpListener, ring: Value) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = [0; 4096];
        let read = stream.read(&mut request).await.unwrap_or(0);
        let is_right = request[..read].starts_with(b"GET /nodes ");
        let (code, body) = if is_right { ("200 OK", ring.to_string()) } else { ("404 Not Found", String::new()) };
        let head = format!("HTTP/1.1 {code}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
    }
}

async fn has_service_account(client: &Client, namespace: &str) {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    eventually("the namespace's ServiceAccount", SOON, async || match accounts.get_opt("default").await {
        Ok(Some(_)) => Ok(Seen::Ready(())),
        other => Ok(Seen::NotYet(format!("{other:?}"))),
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn status_reaches_nodes_through_the_api_server() {
    let Some(address) = own_address() else {
        return println!("skipped: this host has only loopback addresses, to which the API server proxies no requests");
    };
    in_a_namespace("status-nodes", async |client, namespace| {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let host_id = "1f3e4a5b-0000-4000-8000-000000000000";
        let ring = json!({"hostID": host_id, "version": "2026.2.4", "nodes": [{
            "address": address, "hostID": host_id, "state": "UN", "datacenter": "dc1", "rack": "a", "tokens": 16,
        }]});
        let probe = tokio::spawn(probe(listener, ring));
        has_service_account(client, namespace).await;
        let spec = "{clusterName: orders, datacenterName: dc1, scyllaDB: {image: 'scylladb/scylla:2026.2.4'}, racks: \
                    [{name: a, nodes: 1, scyllaDB: {storage: {capacity: 1Gi}}}]}";
        let kind = "apiVersion: scylla.scylladb.com/v1alpha1, kind: ScyllaDBDatacenter";
        let datacenter =
            accepts(client, namespace, &format!("{{{kind}, metadata: {{name: orders}}, spec: {spec}}}")).await;
        let labels = json!({"scylla/cluster": "orders", "scylla/rack": "a"});
        let pod_spec = json!({"schedulerName": "nobody", "containers": [{"name": "scylla", "image": "scylla"}]});
        let owner = json!({"apiVersion": datacenter["apiVersion"], "kind": datacenter["kind"], "name": "orders",
            "uid": datacenter["metadata"]["uid"], "controller": true});
        let rack = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "orders-dc1-a", "labels": labels, "ownerReferences": [owner]},
            "spec": {"replicas": 1, "serviceName": "orders", "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod_spec}},
        });
        accepts(client, namespace, &rack.to_string()).await;
        // Users who may create pods may label them.
        let forged = json!({"apiVersion": "v1", "kind": "Pod", "spec": pod_spec,
            "metadata": {"name": "forged", "labels": {"scylla/cluster": "orders", "scylla/rack": "b"}}});
        let forged = accepts(client, namespace, &forged.to_string()).await;
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = until(pods, "orders-dc1-a-0", "the pod of the rack", SOON, |seen| match seen {
            Some(pod) => Seen::Ready(json!(pod)),
            None => Seen::NotYet("no pod".into()),
        });
        let mut pod = pod.await.unwrap();
        (pod["apiVersion"], pod["kind"]) = ("v1".into(), "Pod".into());
        for mut pod in [pod, forged] {
            pod["status"] = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
                "conditions": [{"type": "Ready", "status": "True"}]});
            accepts_status(client, namespace, &pod.to_string()).await;
        }

        let query = Query { namespace: Some(namespace.into()), name: Some("orders".into()), port };
        let found = gather::gather(client, &query).await.unwrap();
        let status = Status::new(&found.datacenters, found.problems, query.namespace.clone());
        assert_eq!(status.clusters[0].racks.len(), 1, "what only bears the labels is not shown: {status:?}");
        let node = &status.clusters[0].racks[0].nodes[0];
        let facts = (node.state.as_deref(), node.tokens, node.no_answer.as_deref());
        assert_eq!(facts, (Some("UN"), Some(16), None), "{status:?}");
        let shown = text(&status, Style::default());
        assert!(shown.contains(&format!("orders-dc1-a-0  UN  {address}  1f3e4a5b…  16 tokens")), "{shown}");

        // A user who may read objects, but not reach nodes, sees the objects.
        let rules = "[{apiGroups: ['', apps, scylla.scylladb.com], resources: [pods, services, statefulsets, \
                     scylladbdatacenters], verbs: [get, list]}]";
        let role = "apiVersion: rbac.authorization.k8s.io/v1, kind: Role";
        accepts(client, namespace, &format!("{{{role}, metadata: {{name: seeing}}, rules: {rules}}}")).await;
        let to = "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: seeing}, subjects: [{kind: User, \
                  apiGroup: rbac.authorization.k8s.io, name: onlooker}]";
        let binding = "apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding";
        accepts(client, namespace, &format!("{{{binding}, metadata: {{name: seeing}}, {to}}}")).await;
        let onlooker = kubeconfig(namespace, |config| config["users"][0]["user"]["as"] = "onlooker".into());
        let arguments = ["--kubeconfig", onlooker.to_str().unwrap(), "-n", namespace, "-o", "json"];
        let seen = eventually("the permission", SOON, async || {
            let output = self::status(&arguments);
            Ok(match output.status.success() {
                true => Seen::Ready(serde_json::from_slice::<Value>(&output.stdout).unwrap()),
                false => Seen::NotYet(String::from_utf8_lossy(&output.stderr).into()),
            })
        })
        .await
        .unwrap();
        let node = &seen["clusters"][0]["racks"][0]["nodes"][0];
        assert_eq!((&node["pod"], &node["state"]), (&json!("orders-dc1-a-0"), &Value::Null));
        let problem = seen["problems"][0].as_str().unwrap_or_default();
        assert!(problem.starts_with(&format!("You may not get pods/proxy in namespace {namespace}")), "{seen}");
        fs::remove_file(onlooker).unwrap();
        probe.abort();
    })
    .await;
}

#[tokio::test]
async fn why_explains_an_unfinished_object() {
    in_a_namespace("why", async |client, namespace| {
        let light = light_kubeconfig();
        let why = |object: &str| {
            let mut command = Command::new(program("kubectl-messina"));
            command.args(["why", object, "-n", namespace, "--kubeconfig"]).arg(&light);
            command.output().unwrap()
        };
        let missing = why("sdc/orders");
        assert_eq!(missing.status.code(), Some(1), "{missing:?}");
        let said = String::from_utf8(missing.stderr).unwrap();
        assert_eq!(said, format!("There is no ScyllaDBDatacenter orders in namespace {namespace}.\n"));
        assert_eq!(why("pod/orders").status.code(), Some(2), "a kind that is not known is a wrong command line");
        let kind = "apiVersion: scylla.scylladb.com/v1alpha1, kind: ScyllaDBDatacenter";
        let spec = "{clusterName: orders, scyllaDB: {image: 'scylladb/scylla:2026.2.4'}, racks: []}";
        accepts(client, namespace, &format!("{{{kind}, metadata: {{name: orders}}, spec: {spec}}}")).await;
        // No operator watches this namespace.
        let new = why("scylladbdatacenters/orders");
        assert!(new.status.success(), "{new:?}");
        let said = String::from_utf8(new.stdout).unwrap();
        assert!(said.contains("The operator has not reconciled it yet"), "{said}");
    })
    .await;
}
