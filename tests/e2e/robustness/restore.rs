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

use super::{
    Own, apply, await_created, await_repair, await_that, datacenter, operator_process::Operator, unavailable::process,
};

/// The number of writes between backup and restore: enough that the restored etcd does not reach the same revision
/// during the test.
const WRITES: usize = 500;

/// Copies the data of etcd while it is stopped.
async fn back_up(folder: &Path) {
    let etcd = process(folder, "etcd").await;
    kill(etcd, Signal::SIGSTOP).unwrap();
    let copied = Command::new("cp").arg("-a").arg(folder.join("etcd")).arg(folder.join("backup")).status().unwrap();
    kill(etcd, Signal::SIGCONT).unwrap();
    assert!(copied.success());
}

/// Replaces the data by the backup, and restarts etcd and the API server.
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
async fn operator_rebuilds_its_caches_after_an_etcd_restore() {
    let Some(own) = Own::up("days-restored").await else { return };
    demo::install_definitions(&own.client).await.unwrap();
    let namespace = harness::namespace(&own.client, "days").await.unwrap();
    let kubeconfig = own.cluster().kubeconfig();
    let folder = kubeconfig.parent().unwrap().parent().unwrap();
    apply(&own.client, &namespace, &datacenter("dc")).await;
    // Longer than the outage of the API server, so that the leader still leads when it finds the restored data.
    let mut operator = Operator::start_for_all(&kubeconfig, &namespace, &["--lease-seconds=30"]);
    await_created(&own.client, &namespace, "dc").await;

    back_up(folder).await;
    let leases: Api<Lease> = Api::namespaced(own.client.clone(), &namespace);
    let in_backup = leases.get("messina").await.unwrap().metadata.resource_version;
    apply(&own.client, &namespace, &datacenter("later")).await;
    await_created(&own.client, &namespace, "later").await;
    write_often(&own.client, &namespace).await;
    let datacenters = "messina_cache_objects{resource=\"scylladbdatacenters\"}";
    operator.await_metric(datacenters, "2").await;
    await_that("a renewal of the lease that is not in the backup", async || match leases.get("messina").await {
        Ok(lease) if lease.metadata.resource_version != in_backup => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;

    let mark = operator.mark();
    restore(folder).await;
    await_that("the API server", async || {
        own.client.apiserver_version().await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    let all: Api<ScyllaDBDatacenter> = Api::namespaced(own.client.clone(), &namespace);
    await_that("the restored objects", async || match all.list(&Default::default()).await {
        Ok(list) if list.items.len() == 1 => Ok(()),
        Ok(list) => Err(format!("{} datacenters", list.items.len())),
        Err(error) => Err(error.to_string()),
    })
    .await;
    operator.await_log(mark, "the API server shows an older state than before").await;
    operator.await_metric(datacenters, "1").await;
    await_repair(&own.client, &namespace, "dc").await;
    apply(&own.client, &namespace, &datacenter("later")).await;
    await_created(&own.client, &namespace, "later").await;
    operator.check_running();
}
