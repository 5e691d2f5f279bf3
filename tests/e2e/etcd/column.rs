//! The columns of `kubectl get` for tasks.

use messina_e2e::{SOON, accepts, in_a_namespace, kubectl};
use messina_testbed::harness::{Seen, eventually};

/// `kubectl get` shows the Etcd of a task, whichever spelling of the reference the task uses.
#[tokio::test]
async fn etcd_column_shows_each_spelling_of_the_reference() {
    in_a_namespace("etcd-column", async |client, namespace| {
        for spelling in ["etcdReference", "etcdRef", "ownerEtcdReference"] {
            let name = spelling.to_lowercase();
            accepts(
                client,
                namespace,
                &format!(
                    "{{apiVersion: druid.gardener.cloud/v1alpha1, kind: EtcdOperatorTask, metadata: {{name: {name}}}, \
                     spec: {{type: OnDemandSnapshot, {spelling}: {{name: etcd-of-{name}, namespace: elsewhere}}}}}}"
                ),
            )
            .await;
        }
        // The API server uses a changed definition a moment after it was applied.
        eventually("kubectl get to show the Etcd of each task", SOON, async || {
            let printed = kubectl(["get", "etcdoperatortasks", "-n", namespace]).unwrap();
            let is_shown = |spelling: &str| {
                let name = spelling.to_lowercase();
                let row: Vec<&str> = printed
                    .lines()
                    .map(|line| line.split_whitespace().collect::<Vec<_>>())
                    .find(|row| row.first() == Some(&name.as_str()))
                    .unwrap_or_default();
                row.get(1..3) == Some(&["OnDemandSnapshot", format!("etcd-of-{name}").as_str()])
            };
            let are_shown = ["etcdReference", "etcdRef", "ownerEtcdReference"].into_iter().all(is_shown);
            // Without the age, which changes all the time.
            let cells = |line: &str| line.rsplit_once(' ').map(|(cells, _)| cells.trim().to_owned());
            let rows: Vec<String> = printed.lines().filter_map(cells).collect();
            Ok(if are_shown { Seen::Ready(()) } else { Seen::NotYet(rows.join("; ")) })
        })
        .await
        .unwrap();
    })
    .await;
}
