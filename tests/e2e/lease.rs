//! Leader election, and the fence that allows writes only to the leader.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::Request;
use k8s_openapi::api::{coordination::v1::Lease, core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    client::{Body, ClientBuilder},
};
use messina_e2e::in_a_namespace;
use messina_runtime::{
    client::{self, Source, Transport},
    fence::Fence,
    lease::{Candidate, Settings},
    metrics::Metrics,
};
use messina_testbed::{
    deadline::Moment,
    faults::{Fault, Faults},
    harness,
};
use serde_json::{Value, json};
use tower::{BoxError, Layer, filter::FilterLayer};

/// Long enough to renew in time on a busy host.
const SECONDS: u16 = 5;
const DURATION: Duration = Duration::from_secs(SECONDS as u64);

fn settings(namespace: &str, identity: &str) -> Settings {
    Settings { namespace: namespace.into(), name: "leader".into(), identity: identity.into(), seconds: SECONDS }
}

/// A candidate and its fence.
fn candidate(client: &Client, namespace: &str, identity: &str) -> (Candidate, Fence) {
    let fence = Fence::default();
    (Candidate::new(client.clone(), settings(namespace, identity), fence.clone()), fence)
}

/// A client whose requests fail from the moment that `cut` is set.
async fn can_be_cut_off(cut: &Arc<AtomicBool>) -> Client {
    let cut = Arc::clone(cut);
    let passes =
        FilterLayer::new(
            move |request: Request<Body>| {
                if cut.load(Ordering::SeqCst) { Err(BoxError::from("cut off")) } else { Ok(request) }
            },
        );
    let config = harness::light_config().await.unwrap();
    ClientBuilder::try_from(config).unwrap().with_layer(&passes).build()
}

#[tokio::test]
async fn released_lease_is_acquired_at_once() {
    in_a_namespace("lease", async |client, namespace| {
        let (first, first_fence) = candidate(client, namespace, "first");
        let (second, second_fence) = candidate(client, namespace, "second");
        let holder = first.acquire().await;
        assert!(first_fence.is_open());
        let waiting = second.acquire();
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(DURATION / 4, &mut waiting).await.is_err(), "one leads at a time");
        assert!(!second_fence.is_open());
        holder.release().await.unwrap();
        assert!(!first_fence.is_open());
        let released = Moment::now();
        let _second = waiting.await;
        assert!(released.usable() < DURATION * 3 / 4, "{:?}", released.usable());
        assert!(second_fence.is_open());
    })
    .await;
}

#[tokio::test]
async fn disconnected_holder_stops_writing_before_another_begins() {
    in_a_namespace("lease", async |client, namespace| {
        let cut = Arc::new(AtomicBool::new(false));
        let (first, first_fence) = candidate(&can_be_cut_off(&cut).await, namespace, "first");
        let (second, second_fence) = candidate(client, namespace, "second");

        let mut holder = first.acquire().await;
        let holds = holder.renew_until_lost();
        let takes_over = second.acquire();
        tokio::pin!(holds, takes_over);
        let renewing = tokio::time::timeout(DURATION * 2, async { tokio::join!(&mut holds, &mut takes_over) }).await;
        assert!(renewing.is_err(), "for twice its duration, the lease is renewed and not taken over");
        assert!(first_fence.is_open() && !second_fence.is_open());

        cut.store(true, Ordering::SeqCst);
        let never_both = async {
            loop {
                assert!(!(first_fence.is_open() && second_fence.is_open()), "two lead at the same time");
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = never_both => {}
            (_, second) = async { tokio::join!(&mut holds, &mut takes_over) } => {
                assert!(!first_fence.is_open() && second_fence.is_open());
                drop(second);
            }
            () = tokio::time::sleep(DURATION * 5) => panic!("the other candidate did not take over"),
        }
    })
    .await;
}

#[tokio::test]
async fn holder_stops_at_its_next_renewal_when_the_lease_was_taken() {
    in_a_namespace("lease", async |client, namespace| {
        let (first, fence) = candidate(client, namespace, "first");
        let mut holder = first.acquire().await;
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let touch = async |change: Value| {
            leases.patch("leader", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
        };
        touch(json!({"metadata": {"labels": {"touched": "by-hand"}}})).await;
        assert!(
            tokio::time::timeout(DURATION, holder.renew_until_lost()).await.is_err(),
            "another version is not another holder"
        );
        touch(json!({"spec": {"holderIdentity": "somebody"}})).await;
        tokio::time::timeout(DURATION, holder.renew_until_lost()).await.expect("the lease is lost");
        assert!(!fence.is_open());
    })
    .await;
}

#[tokio::test]
async fn only_the_leader_can_write() {
    in_a_namespace("lease", async |client, namespace| {
        let (leader, fence) = candidate(client, namespace, "leader");
        let source = Source::File { path: messina_e2e::light_kubeconfig(), context: None };
        let transport = Transport::new(source).await.unwrap();
        let fenced = client::client(transport, namespace, Metrics::default(), Some(fence));
        let maps: Api<ConfigMap> = Api::namespaced(fenced, namespace);
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "written"}})).unwrap();
        let create = async || maps.create(&PostParams::default(), &map).await;

        let refused = create().await.unwrap_err();
        assert!(format!("{refused:?}").contains("NotLeading"), "{refused:?}");
        assert!(maps.get_opt("written").await.unwrap().is_none(), "reading is free, and nothing was written");
        let holder = leader.acquire().await;
        create().await.unwrap();
        drop(holder);
        assert!(maps.delete("written", &Default::default()).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn lease_is_not_released_while_a_write_is_in_flight() {
    in_a_namespace("lease", async |client, namespace| {
        let (leader, fence) = candidate(client, namespace, "leader");
        let source = Source::File { path: messina_e2e::light_kubeconfig(), context: None };
        let faults = Faults::new(|asked| if asked.write.is_some() { Fault::Hold } else { Fault::None });
        let transport = faults.layer(Transport::new(source).await.unwrap());
        let fenced = client::client(transport, namespace, Metrics::default(), Some(fence));
        let maps: Api<ConfigMap> = Api::namespaced(fenced, namespace);
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "late"}})).unwrap();

        let holder = leader.acquire().await;
        let parameters = PostParams::default();
        tokio::select! {
            _ = maps.create(&parameters, &map) => panic!("it is held"),
            () = faults.held() => {}
        }
        holder.release().await.unwrap();
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let held_by = leases.get("leader").await.unwrap().spec.unwrap().holder_identity;
        assert_eq!(held_by.as_deref(), Some("leader"), "who comes next waits until it has run out");
    })
    .await;
}
