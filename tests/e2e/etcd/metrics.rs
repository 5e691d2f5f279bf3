//! Metrics of tasks, with simulated sidecars.

use std::time::Duration;

use kube::{Api, api::DeleteParams};
use messina_api::druid::v1alpha1::{Etcd, TaskState};
use messina_e2e::{SOON, light_kubeconfig, operator::Operator};
use messina_testbed::{
    faults::{Fault, Faults},
    harness::{Seen, eventually},
};
use serde_json::json;

use super::{
    api, create,
    fake_sidecars::Sidecars,
    finished,
    many::{are_gone, create_etcd, in_a_namespace},
    task, tasks,
};

/// Each task has series of its own, with its name and that of its Etcd, until it is deleted.
#[tokio::test]
async fn metrics_of_a_task_exist_until_it_is_deleted() {
    in_a_namespace("etcd-metrics", async |client, namespace| {
        create_etcd(client, namespace, "main").await;
        let sidecars = Sidecars::new(Duration::ZERO).await;
        let faults = Faults::named("messina-metrics", |_| Fault::None);
        let operator = Operator::start(&light_kubeconfig(), namespace, &faults, tasks(sidecars.reach())).await;
        create(client, namespace, &task("named", "OnDemandSnapshot", "main", json!({}))).await;
        create(client, namespace, &task("strange", "MakeCoffee", "main", json!({}))).await;
        assert_eq!(finished(client, namespace, "named").await.state, Some(TaskState::Succeeded));
        assert_eq!(finished(client, namespace, "strange").await.state, Some(TaskState::Rejected));
        let named = format!(
            r#"namespace="{namespace}",task="named",type="OnDemandSnapshot",etcd_namespace="{namespace}",etcd="main",state="Succeeded""#
        );
        let expected = [
            format!("messina_etcd_task_info{{{named}}} 1"),
            format!("messina_etcd_task_duration_seconds{{{named}}} "),
            // What a user writes into spec.type does not become a label, and a task that is rejected has no series.
            r#"messina_etcd_tasks{type="Other",state="Rejected"} 1"#.to_owned(),
            "messina_etcd_tasks_without_series 0".to_owned(),
        ];
        eventually("the series of the tasks", SOON, async || {
            let text = operator.metrics();
            let are_there = expected.iter().all(|series| text.contains(series));
            Ok(if are_there { Seen::Ready(()) } else { Seen::NotYet(text) })
        })
        .await
        .unwrap();
        let text = operator.metrics();
        assert!(!text.contains("MakeCoffee") && !text.contains(r#"task="strange""#), "{text}");
        assert_eq!(text.matches(r#"task="named""#).count(), 2, "only the series of the last state are left: {text}");
        for name in ["named", "strange"] {
            api(client, namespace).delete(name, &DeleteParams::default()).await.unwrap();
        }
        are_gone(client, namespace).await;
        let etcds: Api<Etcd> = Api::namespaced(client.clone(), namespace);
        etcds.delete("main", &DeleteParams::default()).await.unwrap();
        eventually("the series to be removed", SOON, async || {
            let text = operator.metrics();
            let names = [r#"task="named""#, r#"task="strange""#, r#"etcd="main""#];
            let is_left = names.iter().any(|name| text.contains(name));
            Ok(if is_left { Seen::NotYet(text) } else { Seen::Ready(()) })
        })
        .await
        .unwrap();
    })
    .await;
}
