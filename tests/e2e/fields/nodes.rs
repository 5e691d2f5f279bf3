//! Effects of fields that only simulated nodes show.

use messina_e2e::datacenter::{LONG, TestDatacenter};
use messina_testbed::harness::{Seen, eventually};
use serde_json::Value;

use super::{Objects, create_what_is_named, effects, get, row::Object, row::Setup, table};
use crate::testbed::skip_if_unsuitable;

#[tokio::test]
async fn every_field_takes_effect_on_nodes() {
    skip_if_unsuitable!();
    let rows = table::rows();
    let manifest = Setup::Nodes.manifest(&rows);
    let datacenter = TestDatacenter::create("fields", &[]).await;
    create_what_is_named(&datacenter.client, &datacenter.namespace).await;
    datacenter.apply(&manifest).await;
    datacenter.settled(2).await;
    let wait = eventually("every field to take effect on nodes", LONG, async || {
        let mut read = vec![];
        for object in effects(&rows, Setup::Nodes).flat_map(|(_, effect)| effect.objects()) {
            if !read.iter().any(|(known, _)| *known == object) {
                read.push((object, read_from(&datacenter, &manifest, object).await));
            }
        }
        let missing = Objects(read).missing(&rows, Setup::Nodes);
        Ok(if missing.is_empty() { Seen::Ready(()) } else { Seen::NotYet(missing.join("\n")) })
    });
    wait.await.unwrap();
    datacenter.remove().await;
}

/// An object, or the output of a command on a node; none while it fails.
async fn read_from(datacenter: &TestDatacenter, manifest: &Value, object: Object) -> Option<Value> {
    let Object::Node(_, command) = object else {
        return get(&datacenter.client, &datacenter.namespace, manifest, object).await;
    };
    let (.., pod) = object.reference(manifest);
    let printed = datacenter.exec(&pod, command).ok()?;
    serde_json::from_str(&printed).ok()
}
