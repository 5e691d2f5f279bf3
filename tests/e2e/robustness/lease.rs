//! Replicas of the operator that stop, or lose the connection to the API server.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use messina_e2e::{in_a_namespace, light_kubeconfig};

use super::{
    apply, await_created, await_recreated, await_repair, await_that, condition, datacenter, delete_service,
    operator_process::Operator,
    proxy::{Credentials, Proxy},
    writes,
};

#[tokio::test]
async fn stopped_operator_releases_the_lease_to_the_next() {
    in_a_namespace("days-stop", async |client, namespace| {
        apply(client, namespace, &datacenter("dc")).await;
        let mut first = Operator::start(&light_kubeconfig(), namespace, &["--identity=first"]);
        await_created(client, namespace, "dc").await;
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let holder = async || leases.get("messina").await.unwrap().spec.unwrap().holder_identity;
        assert_eq!(holder().await.as_deref(), Some("first"));

        let (status, took) = first.stop().await;
        assert!(status.success(), "{status}");
        assert!(took < Duration::from_secs(5), "it took {took:?}");
        assert_eq!(holder().await, None);
        first.logged(0);

        let second = Operator::start(&light_kubeconfig(), namespace, &["--identity=second"]);
        second.await_log(0, "leading").await;
        let leads = second.started.usable();
        eprintln!("stopped in {took:?}; the next one led {leads:?} after its start");
        // The lease lasts 15 s, so its expiry was not awaited; the limit allows for starting a process on a busy host.
        assert!(leads < Duration::from_secs(10), "it took {leads:?}");
        await_repair(client, namespace, "dc").await;
    })
    .await;
}

#[tokio::test]
async fn disconnected_operator_writes_nothing_after_its_lease_and_leads_later() {
    in_a_namespace("days-cut", async |client, namespace| {
        let Some(credentials) = Credentials::new(&light_kubeconfig(), namespace) else { return };
        let user = format!("first-{namespace}");
        credentials.certify(&user, Duration::from_secs(3600));
        let proxy = Proxy::to(credentials.server()).await;
        let kubeconfig = credentials.kubeconfig(Some(&format!("https://{}", proxy.address)));
        let more = ["--lease-seconds=5", "--identity=first"];
        let mut first = Operator::start(&kubeconfig, namespace, &more);
        apply(client, namespace, &datacenter("dc")).await;
        await_created(client, namespace, "dc").await;
        // The last status is written, so that no request is in flight when the proxy blocks.
        condition(client, namespace, "dc", "StatefulSetControllerProgressing", |one| one.status == "True").await;

        let mark = first.mark();
        proxy.block();
        let gone = delete_service(client, namespace, "dc").await;
        let lost = first.await_log(mark, "the lease is lost").await["timestamp"].as_str().unwrap().to_owned();
        first.await_metric("messina_leading", "0").await;
        let mut second = Operator::start(&light_kubeconfig(), namespace, &["--lease-seconds=5", "--identity=second"]);
        second.await_log(0, "leading").await;
        await_recreated(client, namespace, "dc", &gone).await;

        proxy.unblock();
        first.await_log(mark, "the API server answers again").await;
        let (status, _) = second.stop().await;
        assert!(status.success(), "{status}");
        first.await_log(mark, "leading").await;
        await_repair(client, namespace, "dc").await;
        first.check_running();
        assert!(first.warnings(mark).len() <= 2, "{:#?}", first.warnings(mark));

        // The API server writes to the audit log after it has sent the event.
        await_that("its last write to be in the audit log", async || {
            let all = writes(&credentials.audit_log(), &user);
            let is_logged = all.iter().any(|write| write.at > lost && write.what == "create services");
            if is_logged { Ok(()) } else { Err(format!("{all:#?}")) }
        })
        .await;
        let all = writes(&credentials.audit_log(), &user);
        let after: Vec<_> = all.iter().filter(|write| write.at > lost).collect();
        let leads = after.iter().position(|write| write.what == "update leases" && write.code == 200);
        let leads = leads.expect("it leads again by writing the lease");
        // Requests that were in the proxy when it blocked, and were not carried out, do not count.
        let is_written = |write: &&super::Written| write.what != "update leases" && write.code < 400;
        let early: Vec<_> = after[..leads].iter().copied().filter(is_written).collect();
        assert!(early.is_empty(), "written without the lease: {early:#?}");
        assert!(
            after[leads..].iter().any(|write| write.what == "create services"),
            "it reconciles after that: {after:#?}"
        );
    })
    .await;
}
