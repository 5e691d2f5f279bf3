//! Properties of certificates that hold after any events.

use crate::{plan, signing_requests};
use messina_plan::datacenter::{Cached, Plan};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::json;

use super::{
    DAY, SECRETS, ders, everything_is_trusted, is_trusted, later, parsed, pod, reconcile, settle, settled, sign_orders,
    with_certificates,
};

/// Stores only the first few objects, in the order in which they are written: then the operator crashes.
fn store_some(cached: &mut Cached, plan: &Plan, count: usize) {
    let mut left = count;
    let mut is_written = || {
        let is_written = left > 0;
        left = left.saturating_sub(1);
        is_written
    };
    for chain in &plan.objects.certificates {
        for secret in chain.authority.iter().filter(|_| is_written()) {
            cached.secrets.insert(secret.clone());
        }
        for bundle in chain.bundle.iter().filter(|_| is_written()) {
            cached.config_maps.insert(bundle.clone());
        }
        for secret in chain.certificate.iter().filter(|_| is_written()) {
            cached.secrets.insert(secret.clone());
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Later(i64),
    Gone(usize),
    BundleGone(usize),
    PodGone(usize),
    PodBack(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => select(vec![5, 70, 3600, 7 * DAY, 19 * DAY, 31 * DAY, 400 * DAY, 2500 * DAY]).prop_map(Event::Later),
        1 => (0..4_usize).prop_map(Event::Gone),
        1 => (0..2_usize).prop_map(Event::BundleGone),
        1 => (0..2_usize).prop_map(Event::PodGone),
        1 => (10..250_u8).prop_map(Event::PodBack),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(10), ..ProptestConfig::default() })]

    /// After a few reconciles everything is trusted and nothing more is signed; and clients that read a bundle trust the
    /// certificates until the authorities in it expire.
    #[test]
    fn whatever_happens(events in vec(event(), 1..12)) {
        let mut cached = settled(json!({}));
        for event in events {
            let mut old_bundle = cached.config_maps[SECRETS[2]].data.as_ref().unwrap()["ca-bundle.crt"].clone();
            match event {
                Event::Later(seconds) => later(&mut cached, seconds),
                Event::Gone(number) => drop(cached.secrets.remove(SECRETS[number])),
                Event::BundleGone(number) => {
                    cached.config_maps.remove(SECRETS[2 * number]);
                    old_bundle = String::new();
                }
                Event::PodGone(number) => drop(cached.pods.remove(&format!("orders-dc-a-{number}"))),
                Event::PodBack(number) => {
                    cached.pods.insert(pod("orders-dc-a-0", &format!("10.1.1.{number}")));
                }
            }
            settle(&mut cached);
            prop_assert!(everything_is_trusted(&cached));
            prop_assert_eq!(reconcile(&mut cached), Vec::<String>::new(), "two looks in a row");
            let now = x509_parser::time::ASN1Time::from_timestamp(cached.now.as_second()).unwrap();
            let bundle = ders(cached.config_maps[SECRETS[2]].data.as_ref().unwrap()["ca-bundle.crt"].as_bytes());
            for former in ders(old_bundle.as_bytes()).into_iter().filter(|der| parsed(der).validity().not_after > now) {
                prop_assert!(bundle.contains(&former), "an authority that is still good is not trusted any more");
            }
            let next = plan(&cached).requeue_at.unwrap();
            prop_assert!(next > cached.now, "it is looked at again at once");
        }
    }

    /// However often the operator crashes between two writes, a node never shows what the stored bundle does not trust.
    #[test]
    fn certificates_survive_a_crash_after_any_write(crashes in vec(0..7_usize, 1..8), gone in vec(0..4_usize, 0..3), is_new in any::<bool>()) {
        let mut cached = if is_new { with_certificates(json!({})) } else { settled(json!({})) };
        // Only authorities are lost.
        let gone: Vec<&str> = gone.into_iter().map(|number| SECRETS[number]).filter(|name| name.ends_with("-ca")).collect();
        for name in gone {
            cached.secrets.remove(name);
        }
        later(&mut cached, 21 * DAY);
        for count in crashes {
            sign_orders(&mut cached);
            let plan = plan(&cached);
            store_some(&mut cached, &plan, count);
            for (certificate, bundle) in [(SECRETS[1], SECRETS[0]), (SECRETS[3], SECRETS[2])] {
                if cached.secrets.contains_key(certificate) {
                    prop_assert!(is_trusted(&cached, certificate, bundle), "{certificate}");
                }
            }
        }
        settle(&mut cached);
        prop_assert!(everything_is_trusted(&cached));
    }

    /// Until the time at which a plan requeues, nothing is signed.
    #[test]
    fn certificates_are_not_renewed_early(rests in vec(0.0..1.0_f64, 1..30)) {
        let mut cached = settled(json!({}));
        for rest in rests {
            let next = plan(&cached).requeue_at.unwrap();
            let all = next.duration_since(cached.now).as_secs_f64();
            // A moment before the next one, at the latest.
            later(&mut cached, ((all * rest) as i64).min(all as i64 - 1).max(0));
            prop_assert_eq!(signing_requests(&cached), vec![]);
            cached.now = next;
            settle(&mut cached);
        }
    }
}
