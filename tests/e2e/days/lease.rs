//! Copies of the operator that end, or are cut off.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use messina_e2e::{in_a_namespace, light_kubeconfig};

use super::{
    apply, condition, datacenter, delete_service, holds, is_back, is_made, is_tended,
    program::Operator,
    way::{Credentials, Way},
    writes,
};

#[tokio::test]
async fn one_that_is_stopped_gives_the_lease_back_and_another_leads_at_once() {
    in_a_namespace("days-stop", async |client, namespace| {
        apply(client, namespace, &datacenter("dc")).await;
        let mut first = Operator::start(&light_kubeconfig(), namespace, &["--identity=first"]);
        is_made(client, namespace, "dc").await;
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let holder = async || leases.get("messina").await.unwrap().spec.unwrap().holder_identity;
        assert_eq!(holder().await.as_deref(), Some("first"));

        let (status, took) = first.stops().await;
        assert!(status.success(), "{status}");
        assert!(took < Duration::from_secs(5), "it took {took:?}");
        assert_eq!(holder().await, None);
        first.logged(0);

        let second = Operator::start(&light_kubeconfig(), namespace, &["--identity=second"]);
        second.says(0, "leading").await;
        let leads = second.started.usable();
        eprintln!("stopped in {took:?}; the next one led {leads:?} after its start");
        // The lease lasts 15 s, so it was not waited for; what is left is for a busy machine to start a process.
        assert!(leads < Duration::from_secs(10), "it took {leads:?}");
        is_tended(client, namespace, "dc").await;
    })
    .await;
}

#[tokio::test]
async fn one_that_is_cut_off_writes_nothing_after_its_lease_and_leads_when_it_is_its_turn() {
    in_a_namespace("days-cut", async |client, namespace| {
        let Some(credentials) = Credentials::new(&light_kubeconfig(), namespace) else { return };
        let user = format!("first-{namespace}");
        credentials.certify(&user, Duration::from_secs(3600));
        let way = Way::to(credentials.server()).await;
        let kubeconfig = credentials.kubeconfig(Some(&format!("https://{}", way.address)));
        let more = ["--lease-seconds=5", "--identity=first"];
        let mut first = Operator::start(&kubeconfig, namespace, &more);
        apply(client, namespace, &datacenter("dc")).await;
        is_made(client, namespace, "dc").await;
        // Everything is said, so that nothing is on its way when the way is blocked.
        condition(client, namespace, "dc", "StatefulSetControllerProgressing", |one| one.status == "True").await;

        let mark = first.mark();
        way.block();
        let gone = delete_service(client, namespace, "dc").await;
        let lost = first.says(mark, "the lease is lost").await["timestamp"].as_str().unwrap().to_owned();
        first.counts("messina_leading", "0").await;
        let mut second = Operator::start(&light_kubeconfig(), namespace, &["--lease-seconds=5", "--identity=second"]);
        second.says(0, "leading").await;
        is_back(client, namespace, "dc", &gone).await;

        way.unblock();
        first.says(mark, "the API server answers again").await;
        let (status, _) = second.stops().await;
        assert!(status.success(), "{status}");
        first.says(mark, "leading").await;
        is_tended(client, namespace, "dc").await;
        first.goes_on();
        assert!(first.warnings(mark).len() <= 2, "{:#?}", first.warnings(mark));

        // The API server logs a write after it has told of it.
        holds("its last write to be in the audit log", async || {
            let all = writes(&credentials.audit_log(), &user);
            let is_logged = all.iter().any(|write| write.at > lost && write.what == "create services");
            if is_logged { Ok(()) } else { Err(format!("{all:#?}")) }
        })
        .await;
        let all = writes(&credentials.audit_log(), &user);
        let after: Vec<_> = all.iter().filter(|write| write.at > lost).collect();
        let leads = after.iter().position(|write| write.what == "update leases" && write.code == 200);
        let leads = leads.expect("it leads again by writing the lease");
        // What hung on the way when it was blocked, and was not carried out, was not written.
        let is_written = |write: &&super::Written| write.what != "update leases" && write.code < 400;
        let early: Vec<_> = after[..leads].iter().copied().filter(is_written).collect();
        assert!(early.is_empty(), "written without the lease: {early:#?}");
        assert!(after[leads..].iter().any(|write| write.what == "create services"), "and works then: {after:#?}");
    })
    .await;
}
