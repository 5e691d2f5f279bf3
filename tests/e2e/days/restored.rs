//! An API server whose storage is restored from a backup.

use std::{fs, path::Path, process::Command};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use messina_api::scylla::v1alpha1::ScyllaDBDatacenter;
use messina_testbed::{demo, harness};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use super::{Own, apply, away::process, datacenter, holds, is_made, is_tended, program::Operator};

/// Writes between the backup and the restore: so many that the restored storage does not catch up while the test waits.
const WRITES: usize = 500;

/// Copies the data of etcd as it is at one moment.
async fn back_up(folder: &Path) {
    let etcd = process(folder, "etcd").await;
    kill(etcd, Signal::SIGSTOP).unwrap();
    let copied = Command::new("cp").arg("-a").arg(folder.join("etcd")).arg(folder.join("backup")).status().unwrap();
    kill(etcd, Signal::SIGCONT).unwrap();
    assert!(copied.success());
}

/// Puts the backup in place of the data, and starts etcd and the API server again.
async fn restore(folder: &Path) {
    let (etcd, api_server) = (process(folder, "etcd").await, process(folder, "kube-apiserver").await);
    kill(etcd, Signal::SIGSTOP).unwrap();
    fs::rename(folder.join("etcd"), folder.join("undone")).unwrap();
    fs::rename(folder.join("backup"), folder.join("etcd")).unwrap();
    kill(etcd, Signal::SIGKILL).unwrap();
    kill(api_server, Signal::SIGKILL).unwrap();
}

async fn write_often(client: &Client, namespace: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    for number in 0..WRITES {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "busy"}, "data": {"number": number.to_string()}});
        maps.patch("busy", &PatchParams::apply("test").force(), &Patch::Apply(&map)).await.unwrap();
    }
}

#[tokio::test]
async fn the_operator_starts_over_when_the_storage_is_restored() {
    let Some(own) = Own::up("days-restored").await else { return };
    demo::install_definitions(&own.client).await.unwrap();
    let namespace = harness::namespace(&own.client, "days").await.unwrap();
    let kubeconfig = own.cluster().kubeconfig();
    let folder = kubeconfig.parent().unwrap().parent().unwrap();
    apply(&own.client, &namespace, &datacenter("dc")).await;
    // Longer than the API server is away, so that the leader is still the leader when it finds the restored storage.
    let mut operator = Operator::start_for_all(&kubeconfig, &namespace, &["--lease-seconds=30"]);
    is_made(&own.client, &namespace, "dc").await;

    back_up(folder).await;
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), &namespace);
    let in_backup = leases.get("messina").await.unwrap().metadata.resource_version;
    apply(&own.client, &namespace, &datacenter("later")).await;
    is_made(&own.client, &namespace, "later").await;
    write_often(&own.client, &namespace).await;
    let datacenters = "messina_cache_objects{resource=\"scylladbdatacenters\"}";
    operator.counts(datacenters, "2").await;
    holds("a renewal of the lease that is not in the backup", async || match leases.get("messina").await {
        Ok(lease) if lease.metadata.resource_version != in_backup => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    let mark = operator.mark();
    restore(folder).await;
    holds("the API server", async || own.client.apiserver_version().await.map(drop).map_err(|error| error.to_string()))
        .await;
    let all: Api<ScyllaDBDatacenter> = Api::namespaced(own.client.clone(), &namespace);
    holds("the restored objects", async || match all.list(&Default::default()).await {
        Ok(list) if list.items.len() == 1 => Ok(()),
        Ok(list) => Err(format!("{} datacenters", list.items.len())),
        Err(error) => Err(error.to_string()),
    })
    .await;
    operator.says(mark, "the API server shows an older state than before").await;
    operator.counts(datacenters, "1").await;
    is_tended(&own.client, &namespace, "dc").await;
    apply(&own.client, &namespace, &datacenter("later")).await;
    is_made(&own.client, &namespace, "later").await;
    operator.goes_on();
}
