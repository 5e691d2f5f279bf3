//! What Kubernetes says of a pod.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use serde::Serialize;

/// What a container waits for while nothing is wrong.
const USUAL: [&str; 2] = ["PodInitializing", "ContainerCreating"];

/// What Kubernetes says of a node's pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Kubernetes {
    /// The phase of the pod.
    pub phase: String,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it is being stopped for good.
    pub terminating: bool,
    /// How often its containers were started again, all together.
    pub restarts: i32,
    /// The container that keeps it from being ready, if one does.
    pub container: Option<String>,
    /// Why, in one word.
    pub reason: Option<String>,
    /// Why, in a sentence.
    pub message: Option<String>,
}

impl Kubernetes {
    /// What the pod says.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let mut kubernetes = Self {
            phase: status.phase.clone().unwrap_or_else(|| "Unknown".into()),
            ready: is_ready(pod),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            restarts: containers(pod).map(|container| container.restart_count).sum(),
            container: None,
            reason: status.reason.clone(),
            message: status.message.clone(),
        };
        let unscheduled = condition(pod, "PodScheduled").filter(|condition| condition.status == "False");
        if let Some(condition) = unscheduled {
            kubernetes.reason.clone_from(&condition.reason);
            kubernetes.message.clone_from(&condition.message);
        } else if let Some((container, reason, message)) = stuck(pod) {
            (kubernetes.container, kubernetes.reason, kubernetes.message) = (Some(container), Some(reason), message);
        }
        kubernetes
    }

    /// Whether somebody has to do something before the node can come up.
    pub fn is_stuck(&self) -> bool {
        !self.ready && self.reason.as_ref().is_some_and(|reason| !USUAL.contains(&reason.as_str()))
    }

    /// In words.
    pub fn words(&self) -> String {
        let mut words = match (&self.container, &self.reason) {
            _ if self.terminating => "the pod is being stopped".to_owned(),
            (Some(container), Some(reason)) => format!("container {container}: {reason}"),
            (None, Some(reason)) => format!("{}: {reason}", self.phase),
            _ if self.phase != "Running" => format!("the pod is {}", self.phase.to_lowercase()),
            _ if self.ready => "the pod is ready".to_owned(),
            _ => "the pod runs and is not ready".to_owned(),
        };
        match self.restarts {
            0 => {}
            1 => words += ", 1 restart",
            more => words += &format!(", {more} restarts"),
        }
        words
    }
}

/// Whether it can be the name of a container, and be written into a command. The API server does not check statuses of pods.
pub(crate) fn is_container(name: &str) -> bool {
    let is_inner = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
    !name.is_empty() && name.len() <= 63 && !name.starts_with('-') && name.bytes().all(is_inner)
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|condition| condition.status == "True")
}

pub(super) fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
}

fn condition<'a>(pod: &'a Pod, of: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == of)
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    })
}

/// The container that keeps the pod from running, and why; one that waits for others comes last.
fn stuck(pod: &Pod) -> Option<(String, String, Option<String>)> {
    let waiting = containers(pod).filter_map(|container| {
        let state = container.state.as_ref()?;
        let (reason, message) = match (&state.waiting, &state.terminated) {
            (Some(waiting), _) => {
                // That it waits before it tries again is in the word, and all that Kubernetes has to say.
                let message = waiting.message.clone().filter(|message| !message.starts_with("back-off"));
                (waiting.reason.clone()?, message)
            }
            (_, Some(ended)) if ended.exit_code != 0 => {
                (ended.reason.clone().unwrap_or_else(|| "Error".into()), ended.message.clone())
            }
            _ => return None,
        };
        Some((container.name.clone(), reason, message))
    });
    waiting.min_by_key(|(_, reason, _)| USUAL.contains(&reason.as_str()))
}
