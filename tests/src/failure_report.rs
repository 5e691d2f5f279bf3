//! Prints the objects and logs of a failed test: a run on another host leaves only its output.

use std::process::Command;

use messina_testbed::{cluster::Cluster, exec, progress::Steps, tools::Tools};
use serde_json::Value;

/// The timeout of each command, in seconds: a failed component may not answer.
const TIMEOUT: &str = "20";
/// How many last lines of a log are printed.
const LINES: usize = 12;

/// Prints the state of two namespaces, that of a datacenter and that of its operator, when a failing test drops it.
#[derive(Debug)]
pub(crate) struct FailureReport {
    cluster: Cluster,
    namespace: String,
    operator: String,
}

impl FailureReport {
    /// A report on a datacenter in `namespace`, and its operator in another namespace.
    pub(crate) fn new(cluster: &Cluster, namespace: &str, operator: String) -> Self {
        Self { cluster: cluster.clone(), namespace: namespace.to_owned(), operator }
    }

    fn tell(&self) {
        let now = jiff::Timestamp::now();
        eprintln!("\nstate of the namespace {} at {now:.0}:", self.namespace);
        self.print_conditions();
        self.print(
            &self.namespace,
            &["get", "pods,statefulsets,persistentvolumeclaims,jobs", "--no-headers"],
            usize::MAX,
        );
        self.print_services();
        let events = ["get", "events", "--no-headers", "--sort-by=.lastTimestamp"];
        self.print(&self.namespace, &events, 2 * LINES);
        let pods =
            self.ask(&self.namespace, &["get", "pods", "--output=name", "--selector", super::datacenter::NODE_PODS]);
        for pod in pods.lines() {
            self.print(&self.namespace, &["exec", pod, "--container=scylla", "--", "nodetool", "status"], LINES);
            self.print(&self.namespace, &["logs", pod, "--container=scylla", "--timestamps"], LINES);
        }
        for pod in self.ask(&self.operator, &["get", "pods", "--output=name"]).lines() {
            self.print(&self.operator, &["logs", pod], 2 * LINES);
        }
    }

    fn print_conditions(&self) {
        let listed = self.ask(&self.namespace, &["get", "scylladbdatacenters", "--output=json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap_or_default();
        for datacenter in listed["items"].as_array().into_iter().flatten() {
            for one in datacenter["status"]["conditions"].as_array().into_iter().flatten() {
                let is_met =
                    (one["status"] == "True") == one["type"].as_str().is_some_and(|name| name.ends_with("Available"));
                if !is_met {
                    eprintln!(
                        "  {} {} since {}: {}",
                        one["type"], one["status"], one["lastTransitionTime"], one["message"]
                    );
                }
            }
        }
    }

    fn print_services(&self) {
        let listed = self.ask(&self.namespace, &["get", "services", "--output=json"]);
        let listed: Value = serde_json::from_str(&listed).unwrap_or_default();
        for service in listed["items"].as_array().into_iter().flatten() {
            let metadata = &service["metadata"];
            let texts = ["labels", "annotations"].into_iter().flat_map(|key| metadata[key].as_object()).flatten();
            // Without what is the same in every namespace.
            let texts =
                texts.filter(|(key, _)| !key.starts_with("app.kubernetes.io/") && !key.ends_with("/managed-hash"));
            let texts: Vec<String> = texts.map(|(key, value)| format!("{key}={value}")).collect();
            eprintln!("  Service {}: {}", metadata["name"], texts.join(" "));
        }
    }

    /// Prints the last lines of the output of kubectl, or its error.
    fn print(&self, namespace: &str, arguments: &[&str], lines: usize) {
        let said = self.ask(namespace, arguments);
        let said: Vec<&str> = said.lines().collect();
        eprintln!("  {}", arguments.join(" "));
        for line in &said[said.len().saturating_sub(lines)..] {
            eprintln!("    {line:.500}");
        }
    }

    /// The output of kubectl, or its error.
    fn ask(&self, namespace: &str, arguments: &[&str]) -> String {
        let kubectl = match Tools::control_plane(&Steps::quiet()) {
            Ok(tools) => tools.program("kubectl"),
            Err(error) => return error.to_string(),
        };
        let mut command = Command::new("timeout");
        command.arg(TIMEOUT).arg(kubectl).arg("--kubeconfig").arg(self.cluster.kubeconfig());
        command.args(["--namespace", namespace]).args(arguments);
        exec::output("kubectl", &mut command).unwrap_or_else(|error| error.to_string())
    }
}

impl Drop for FailureReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
    }
}
