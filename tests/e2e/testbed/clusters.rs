//! Tests of the features of a cluster: network, images, volumes, DNS.

use std::{process::Command, time::Duration};

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{PersistentVolume, PersistentVolumeClaim, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use messina_e2e::clusters::{log_when_done, output_of};
use messina_testbed::{harness, harness::Seen, tools::BUSYBOX_IMAGE};
use serde_json::json;

use super::{Started, skip_if_unsuitable, succeeds, testbed};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn pods_of_three_clusters_reach_one_another_by_address() {
    skip_if_unsuitable!();
    let names = ["west", "east", "south"];
    let started = std::time::Instant::now();
    let clusters = std::thread::scope(|scope| {
        names.map(|name| scope.spawn(move || Started::up(name, &[]))).map(|start| start.join().unwrap())
    });
    eprintln!("three clusters after {:.1} s", started.elapsed().as_secs_f64());
    let mut addresses = vec![];
    for cluster in &clusters {
        let client = cluster.client().await;
        harness::apply(&client, &web_server(cluster.0), Some("default")).await.unwrap();
        addresses.push(ready_address(&client, "default", "web").await);
    }
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        let client = clusters[from].client().await;
        let command = format!("wget -q -O - http://{}:8080/name", addresses[to]);
        let output = output_of(&client, "default", &format!("visit-{}", names[to]), &command).await;
        assert_eq!(output.trim(), names[to], "from {} to {}", names[from], names[to]);
    }
    check_gateway_keeps_its_hardware_address();
    clusters.into_iter().for_each(Started::down);
}

/// Kubernetes nodes cache the hardware address of the gateway: if it changes, they have no network for half a minute.
fn check_gateway_keeps_its_hardware_address() {
    let in_fabric =
        |arguments: &str| succeeds(Command::new("ip").args(["-n", "messina-fabric"]).args(arguments.split(' ')));
    let gateway = || in_fabric("-brief link show nodes");
    let before = gateway();
    in_fabric("link add lowest address 00:00:00:00:00:01 type veth peer name of-lowest");
    in_fabric("link set lowest master nodes");
    let after = gateway();
    in_fabric("link del lowest");
    assert_eq!(after, before);
}

#[tokio::test]
async fn image_of_a_program_runs_on_every_kubernetes_node() {
    skip_if_unsuitable!();
    let cluster = Started::up("images", &["--nodes", "2"]);
    // A program that needs shared libraries, which have to be in the image.
    let program = harness::program("testbed").unwrap();
    let reference = "localhost/messina/testbed:e2e";
    succeeds(&mut testbed(&["image", "--name", "images", reference, &program.to_string_lossy()]));
    let client = cluster.client().await;
    for node in ["n1", "n2"] {
        let name = format!("on-{node}");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"nodeName": node, "restartPolicy": "Never",
                "containers": [{"name": "main", "image": reference, "imagePullPolicy": "Never", "args": ["--version"]}]},
        });
        harness::apply(&client, &pod.to_string(), Some("default")).await.unwrap();
        let output = log_when_done(&client, "default", &name).await;
        assert_eq!(output.trim(), concat!("testbed ", env!("CARGO_PKG_VERSION")));
    }
    cluster.down();
}

#[tokio::test]
async fn pods_become_ready_on_simulated_kubernetes_nodes() {
    skip_if_unsuitable!();
    let cluster = Started::up("made-up", &["--light", "--fake-nodes", "20"]);
    let client = cluster.client().await;
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "many"},
        "spec": {"replicas": 100, "selector": {"matchLabels": {"app": "many"}}, "template": {
            "metadata": {"labels": {"app": "many"}},
            "spec": {"containers": [{"name": "main", "image": "of-no-consequence"}]},
        }},
    });
    harness::apply(&client, &deployment.to_string(), Some("default")).await.unwrap();
    let deployments: Api<Deployment> = Api::namespaced(client, "default");
    harness::until(deployments, "many", "100 pods to be ready", LIMIT, |deployment| {
        match deployment.and_then(|deployment| deployment.status?.ready_replicas) {
            Some(100) => Seen::Ready(()),
            ready => Seen::NotYet(format!("ready: {ready:?}")),
        }
    })
    .await
    .unwrap();
    cluster.down();
}

#[tokio::test]
async fn volume_keeps_data_expands_and_is_deleted_with_its_claim() {
    skip_if_unsuitable!();
    let client = harness::full().await.unwrap();
    let namespace = harness::namespace(&client, "volumes").await.unwrap();
    let claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, \
                 spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}";
    harness::apply(&client, claim, Some(&namespace)).await.unwrap();
    let written = with_volume("writer", "echo kept > /data/file");
    harness::apply(&client, &written, Some(&namespace)).await.unwrap();
    log_when_done(&client, &namespace, "writer").await;
    let read = with_volume("reader", "cat /data/file");
    harness::apply(&client, &read, Some(&namespace)).await.unwrap();
    assert_eq!(log_when_done(&client, &namespace, "reader").await.trim(), "kept");

    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &namespace);
    let larger = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    let claimed = claims.patch("data", &PatchParams::default(), &larger).await.unwrap();
    harness::until(claims.clone(), "data", "the claim to grow", LIMIT, |claim| {
        let capacity = claim.and_then(|claim| claim.status?.capacity?.remove("storage"));
        if capacity.as_ref().is_some_and(|size| size.0 == "2Gi") {
            Seen::Ready(())
        } else {
            Seen::NotYet(format!("{capacity:?}"))
        }
    })
    .await
    .unwrap();

    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    for pod in ["writer", "reader"] {
        pods.delete(pod, &DeleteParams::default().grace_period(0)).await.unwrap();
    }
    claims.delete("data", &DeleteParams::default()).await.unwrap();
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = claimed.spec.and_then(|spec| spec.volume_name).unwrap();
    harness::until(volumes, &volume, "the volume to be deleted", LIMIT, |volume| match volume {
        None => Seen::Ready(()),
        Some(volume) => Seen::NotYet(format!("{:?}", volume.status)),
    })
    .await
    .unwrap();
    harness::remove_namespace(&client, &namespace).await.unwrap();
}

#[tokio::test]
async fn services_have_dns_names_and_the_pull_of_an_unknown_image_fails_at_once() {
    skip_if_unsuitable!();
    let client = harness::full().await.unwrap();
    let namespace = harness::namespace(&client, "names").await.unwrap();
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}}";
    harness::apply(&client, service, Some(&namespace)).await.unwrap();
    harness::apply(&client, &web_server("by-name"), Some(&namespace)).await.unwrap();
    ready_address(&client, &namespace, "web").await;
    // The Service may follow a moment after its pod.
    let command = format!("until wget -q -O - http://web.{namespace}.svc.cluster.local/name; do :; done");
    assert_eq!(output_of(&client, &namespace, "visit", &command).await.trim(), "by-name");

    let pod = "{apiVersion: v1, kind: Pod, metadata: {name: unknown}, spec: {containers: [{name: main, image: 'nowhere/nothing:1'}]}}";
    harness::apply(&client, pod, Some(&namespace)).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    harness::until(pods, "unknown", "the pull to fail", Duration::from_secs(30), |pod| {
        let status = pod.and_then(|pod| pod.status?.container_statuses?.pop());
        match status.and_then(|status| status.state?.waiting?.reason) {
            Some(reason) if reason.contains("ImagePull") => Seen::Ready(()),
            reason => Seen::NotYet(format!("{reason:?}")),
        }
    })
    .await
    .unwrap();
    harness::remove_namespace(&client, &namespace).await.unwrap();
}

/// A pod called "web" that answers `/name` on port 8080.
fn web_server(name: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": BUSYBOX_IMAGE,
            "command": ["sh", "-c", format!("mkdir /www; echo {name} > /www/name; exec httpd -f -p 8080 -h /www")],
            "readinessProbe": {"httpGet": {"path": "/name", "port": 8080}, "periodSeconds": 1},
        }]},
    })
    .to_string()
}

/// A pod that runs a command once, with the claim "data" at /data.
fn with_volume(name: &str, command: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": BUSYBOX_IMAGE, "command": ["sh", "-c", command],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
    })
    .to_string()
}

/// The address of a pod, as soon as it is ready.
async fn ready_address(client: &Client, namespace: &str, pod: &str) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    harness::until(pods, pod, &format!("{pod} to be ready"), LIMIT, |pod| {
        let status = pod.and_then(|pod| pod.status);
        let ready = status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .any(|c| c.type_ == "Ready" && c.status == "True");
        match status.as_ref().and_then(|status| status.pod_ip.clone()).filter(|_| ready) {
            Some(address) => Seen::Ready(address),
            None => Seen::NotYet(format!("{status:?}")),
        }
    })
    .await
    .unwrap()
}
