//! The status of a pod, in short.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use serde::Serialize;

/// Reasons of containers that are starting normally.
const STARTING: [&str; 2] = ["PodInitializing", "ContainerCreating"];

/// The status of a node's pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSummary {
    /// The phase of the pod.
    pub phase: String,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it is terminating.
    pub terminating: bool,
    /// The sum of its containers' restarts.
    pub restarts: i32,
    /// The container because of which it is not ready, if there is one.
    pub container: Option<String>,
    /// Why it is not ready, in CamelCase.
    pub reason: Option<String>,
    /// Why it is not ready, in a sentence.
    pub message: Option<String>,
}

impl PodSummary {
    /// Summarizes the status of a pod.
    pub fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let mut summary = Self {
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
            summary.reason.clone_from(&condition.reason);
            summary.message.clone_from(&condition.message);
        } else if let Some((container, reason, message)) = blocking_container(pod) {
            (summary.container, summary.reason, summary.message) = (Some(container), Some(reason), message);
        }
        summary
    }

    /// Whether the user has to act before the node can start.
    pub fn is_stuck(&self) -> bool {
        !self.ready && self.reason.as_ref().is_some_and(|reason| !STARTING.contains(&reason.as_str()))
    }

    /// Describes the status in a clause.
    pub fn describe(&self) -> String {
        let mut text = match (&self.container, &self.reason) {
            _ if self.terminating => "the pod is terminating".to_owned(),
            (Some(container), Some(reason)) => format!("container {container}: {reason}"),
            (None, Some(reason)) => format!("{}: {reason}", self.phase),
            _ if self.phase != "Running" => format!("the pod is {}", self.phase.to_lowercase()),
            _ if self.ready => "the pod is ready".to_owned(),
            _ => "the pod is running but not ready".to_owned(),
        };
        match self.restarts {
            0 => {}
            1 => text += ", 1 restart",
            more => text += &format!(", {more} restarts"),
        }
        text
    }
}

/// Whether this is a valid name of a container, which can be part of a command. The API server does not validate it in the
/// statuses of pods.
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

/// The container because of which the pod is not running, with reason and message. Containers that are starting come last.
fn blocking_container(pod: &Pod) -> Option<(String, String, Option<String>)> {
    let waiting = containers(pod).filter_map(|container| {
        let state = container.state.as_ref()?;
        let (reason, message) = match (&state.waiting, &state.terminated) {
            (Some(waiting), _) => {
                // This message only repeats the reason, CrashLoopBackOff.
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
    waiting.min_by_key(|(_, reason, _)| STARTING.contains(&reason.as_str()))
}
