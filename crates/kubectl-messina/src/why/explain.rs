//! Explains the state of an object in sentences: what is wrong, what the operator waits for, and what to do.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
        core::v1::{Event, Pod},
    },
    apimachinery::pkg::apis::meta::v1::Condition as ObjectCondition,
};
use kube::ResourceExt;
use messina_api::names::annotation;
use messina_plan::datacenter::is_rolled_out;
use serde_json::Value;

use super::Explained;
use crate::{
    conditions::{Shown, fold, title},
    page::{Colour, Page, Style},
    status::{
        model::{Condition, observed_generation_of, unexpected},
        pods::{PodSummary, is_container, is_ready},
    },
};

/// How many events of the object are shown.
const MAX_EVENTS: usize = 5;
/// The type of the condition of an object on which the operator does no work.
const PAUSED: &str = "Paused";

/// The prefix of a sentence that is indented below the sentence before it.
const INDENT: &str = "  ";

/// A sentence, and the colour that says how serious it is.
type Sentence = (String, Colour);

/// Explains an object. `now` is for the ages of events; `shows_all` includes what follows from the causes.
pub fn text(found: &Explained, now: Timestamp, style: Style, shows_all: bool) -> String {
    let mut page = Page::new(style);
    let Findings { sentences, categories } = findings(found, shows_all);
    let (headline, colour) = headline(found, &categories);
    page.paragraph("", "", &headline, colour);
    page.sentences("", sentences.iter());
    page.sentences("Owned objects:", owned_objects(found, now).iter());
    page.sentences("Recent events:", recent_events(found, now).iter());
    let commands = next_commands(found);
    if !commands.is_empty() {
        page.line(String::new());
    }
    for (text, command) in commands {
        page.paragraph("  ", "  ", &text, Colour::Plain);
        page.command(&command);
    }
    let problems: Vec<Sentence> = found.problems.iter().map(|problem| (problem.clone(), Colour::Yellow)).collect();
    page.sentences("", problems.iter());
    page.text()
}

impl Page {
    fn sentences<'a>(&mut self, title: &str, sentences: impl Iterator<Item = &'a Sentence>) {
        let mut sentences = sentences.peekable();
        if sentences.peek().is_none() {
            return;
        }
        self.line(String::new());
        if !title.is_empty() {
            self.line(title.to_owned());
        }
        for (text, colour) in sentences {
            let (first, others) = if text.starts_with(INDENT) { ("    ", "      ") } else { ("  ", "    ") };
            self.paragraph(first, others, text, *colour);
        }
    }
}

/// Why an object is not done. The smallest one decides the headline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Category {
    Deletion,
    Pause,
    Refused,
    Unobserved,
    Degraded,
    NotAvailable,
    Progressing,
}

/// The sentences about an object, and why it is not done. Messages that are folded away count for the headline, too.
#[derive(Default)]
struct Findings {
    sentences: Vec<Sentence>,
    categories: Vec<Category>,
}

impl Findings {
    /// Adds a sentence for each line of the text.
    fn add(&mut self, category: Category, text: &str, colour: Colour) {
        self.categories.push(category);
        self.add_lines(text, colour);
    }

    fn add_lines(&mut self, text: &str, colour: Colour) {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        self.sentences.extend(lines.map(|line| (sentence(line), colour)));
    }

    fn add_conditions(&mut self, conditions: &[Condition], is_unobserved: bool, shows_all: bool) {
        self.categories.extend(conditions.iter().map(|condition| category(condition, is_unobserved)));
        let folded = fold(conditions, shows_all);
        let left_out = folded.left_out().map(|(clause, them)| format!("{clause}; --all shows {them}"));
        self.add_shown(&folded.causes, is_unobserved);
        if let Some(left_out) = left_out.as_ref().filter(|_| folded.has_consequences()) {
            self.add_lines(left_out, Colour::Plain);
        }
        self.add_shown(&folded.others, is_unobserved);
        if let Some(left_out) = left_out.as_ref().filter(|_| !folded.has_consequences()) {
            self.add_lines(left_out, Colour::Plain);
        }
    }

    /// Adds a sentence for each message. A refusal of an earlier generation need not hold for the current one.
    fn add_shown(&mut self, all: &[Shown<'_>], is_unobserved: bool) {
        for Shown { condition, messages } in all {
            let (title, component, colour) = match title(condition) {
                _ if condition.is_refusal() && is_unobserved => ("Degraded", "Observation", Colour::Red),
                title => title,
            };
            let about = if component.is_empty() { String::new() } else { format!(" ({component})") };
            for message in messages {
                self.add_lines(&format!("{title}{about}: {message}"), colour);
            }
        }
    }
}

fn category(condition: &Condition, is_unobserved: bool) -> Category {
    match condition.condition_type.as_str() {
        _ if condition.is_refusal() && !is_unobserved => Category::Refused,
        name if name.ends_with("Degraded") => Category::Degraded,
        name if name.ends_with("Available") => Category::NotAvailable,
        _ => Category::Progressing,
    }
}

fn headline(found: &Explained, categories: &[Category]) -> Sentence {
    let name = format!("{} {}/{}", found.kind, namespace(found), found.object.name_any());
    let state = found.object.data["status"]["state"].as_str().unwrap_or_default();
    let is_unavailable = categories.contains(&Category::NotAvailable);
    match (categories.iter().min(), state) {
        (Some(Category::Deletion), _) => (format!("{name} is being deleted."), Colour::Yellow),
        (Some(Category::Pause), _) => (format!("{name} is paused: the operator does no work on it."), Colour::Yellow),
        (_, "Failed") => (format!("{name} has failed."), Colour::Red),
        (_, "Rejected") => (format!("{name} was rejected."), Colour::Red),
        (_, "Succeeded") => (format!("{name} has succeeded."), Colour::Green),
        (None, _) => (format!("{name} is up to date: no work is pending."), Colour::Green),
        (Some(Category::Refused), _) => (
            format!("The operator refuses the specification of {name}: it changes nothing until you correct it."),
            Colour::Red,
        ),
        (Some(Category::Unobserved), _) => {
            (format!("{name} is unchanged: the operator has not observed its latest change."), Colour::Yellow)
        }
        (Some(Category::Degraded), _) if is_unavailable => {
            (format!("{name} is degraded and not available."), Colour::Red)
        }
        (Some(Category::Degraded), _) => (format!("{name} is degraded."), Colour::Red),
        (Some(Category::NotAvailable), _) => (format!("{name} is not available."), Colour::Red),
        (Some(Category::Progressing), _) => (format!("{name} is not done yet."), Colour::Yellow),
    }
}

fn namespace(found: &Explained) -> String {
    found.object.namespace().unwrap_or_default()
}

fn findings(found: &Explained, shows_all: bool) -> Findings {
    let mut findings = Findings::default();
    let status = &found.object.data["status"];
    if found.object.metadata.deletion_timestamp.is_some() {
        let finalizers = found.object.finalizers().join(", ");
        let cause = if finalizers.is_empty() {
            "Kubernetes deletes the objects that it owns first".to_owned()
        } else {
            format!("these finalizers block the deletion: {finalizers}")
        };
        findings.add(Category::Deletion, &format!("It was deleted, and {cause}"), Colour::Yellow);
    }
    let conditions = conditions(status);
    for paused in conditions.iter().filter(|condition| condition.type_ == PAUSED && condition.status == "True") {
        findings.add(Category::Pause, &paused.message, Colour::Yellow);
    }
    // Not every kind has conditions.
    if is_paused(found) && !conditions.iter().any(|condition| condition.type_ == PAUSED) {
        let text = format!("The annotation {} stops all work on it", annotation::PAUSE);
        findings.add(Category::Pause, &text, Colour::Yellow);
    }
    let unobserved = unobserved_change(found, &conditions);
    if let Some(text) = &unobserved {
        findings.add(Category::Unobserved, text, Colour::Yellow);
    }
    let mut unexpected = unexpected(&conditions);
    unexpected.retain(|condition| condition.condition_type != PAUSED);
    findings.add_conditions(&unexpected, unobserved.is_some(), shows_all);
    for condition in conditions.iter().filter(is_note) {
        for line in condition.message.lines() {
            findings.add_lines(&format!("Note: {line}"), Colour::Plain);
        }
    }
    add_task_state(&mut findings, status);
    findings
}

/// Adds the state and the errors of a task that has not succeeded.
fn add_task_state(findings: &mut Findings, status: &Value) {
    let Some(state) = status["state"].as_str().filter(|state| *state != "Succeeded") else { return };
    let is_active = ["Pending", "InProgress"].contains(&state);
    let category = if is_active { Category::Progressing } else { Category::Degraded };
    let description = status["lastOperation"]["description"].as_str().unwrap_or_default();
    findings.add(category, &format!("It is {state}: {description}"), Colour::Yellow);
    if let Some(place) = status["place"].as_i64().filter(|place| *place > 0 && state == "Pending") {
        let text = format!("{place} other task(s) on the same etcd cluster come first");
        findings.add(Category::Progressing, &text, Colour::Yellow);
    }
    for error in status["lastErrors"].as_array().into_iter().flatten() {
        let field = |name: &str| error[name].as_str().unwrap_or_default();
        findings.add(category, &format!("Error {}: {}", field("code"), field("description")), Colour::Red);
    }
}

/// Whether a condition that is as expected has a message all the same: what the operator cannot do here, for example.
fn is_note(condition: &&ObjectCondition) -> bool {
    let is_of_component = condition.type_.ends_with("ControllerProgressing");
    is_of_component && condition.status == "False" && condition.reason != "AsExpected" && !condition.message.is_empty()
}

fn is_paused(found: &Explained) -> bool {
    found.object.annotations().get(annotation::PAUSE).is_some_and(|value| value.trim() != "false")
}

fn sentence(text: &str) -> String {
    let text = text.trim();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{text}{end}")
}

fn conditions(status: &Value) -> Vec<ObjectCondition> {
    serde_json::from_value(status["conditions"].clone()).unwrap_or_default()
}

/// Says that the operator has not reconciled the object, or not since it was changed; none where it has.
fn unobserved_change(found: &Explained, conditions: &[ObjectCondition]) -> Option<String> {
    let status = &found.object.data["status"];
    let remedy = "if this lasts longer than a few seconds, check that the operator runs, and read its log";
    if status.is_null() || status.as_object().is_some_and(serde_json::Map::is_empty) {
        return Some(format!("The operator has not reconciled it yet: {remedy}"));
    }
    let observed = observed_generation_of(status["observedGeneration"].as_i64(), conditions)?;
    let current = found.object.metadata.generation?;
    (observed < current)
        .then(|| format!("The operator has observed generation {observed}, and the object is at {current}: {remedy}"))
}

/// Describes the owned objects that are not healthy, each with the last warning on it.
fn owned_objects(found: &Explained, now: Timestamp) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    for one in found.stateful_sets.iter().filter(|one| !is_rolled_out(one)) {
        sentences.push((describe_stateful_set(one), Colour::Yellow));
        sentences.extend(last_warning(found, one.uid(), now));
    }
    for job in &found.jobs {
        if let Some(sentence) = describe_job(job) {
            sentences.push(sentence);
            sentences.extend(last_warning(found, job.uid(), now));
        }
    }
    for pod in found.pods.iter().filter(|pod| !is_healthy(pod)) {
        let summary = PodSummary::of(pod);
        let colour = if summary.is_stuck() { Colour::Red } else { Colour::Yellow };
        let mut text = format!("Pod {}: {}", pod.name_any(), summary.describe());
        if let Some(message) = summary.message.as_ref().filter(|_| summary.is_stuck()) {
            text += &format!("; {}", message.trim());
        }
        sentences.push((sentence(&text), colour));
        sentences.extend(last_warning(found, pod.uid(), now));
    }
    sentences
}

fn is_healthy(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    (is_ready(pod) || phase == Some("Succeeded")) && pod.metadata.deletion_timestamp.is_none()
}

fn describe_stateful_set(one: &StatefulSet) -> String {
    let replicas = one.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = one.status.clone().unwrap_or_default();
    let (ready, updated) = (status.ready_replicas.unwrap_or(0), status.updated_replicas.unwrap_or(0));
    format!("StatefulSet {}: {ready} of {replicas} pods are ready, {updated} are updated.", one.name_any())
}

fn describe_job(job: &Job) -> Option<Sentence> {
    let status = job.status.clone().unwrap_or_default();
    let true_condition = |name: &str| {
        status.conditions.iter().flatten().find(|condition| condition.type_ == name && condition.status == "True")
    };
    if true_condition("Complete").is_some() || status.completion_time.is_some() {
        return None;
    }
    let name = job.name_any();
    Some(match true_condition("Failed") {
        Some(failed) => {
            let message = failed.message.as_deref().unwrap_or("its status has no message");
            (sentence(&format!("Job {name} has failed: {message}")), Colour::Red)
        }
        None => {
            let failed =
                status.failed.filter(|failed| *failed > 0).map(|failed| format!(", {failed} of its pods have failed"));
            (format!("Job {name} is running{}.", failed.unwrap_or_default()), Colour::Yellow)
        }
    })
}

/// The last warning on an object, indented below it.
fn last_warning(found: &Explained, uid: Option<String>, now: Timestamp) -> Option<Sentence> {
    let is_about = |event: &&Event| uid.is_some() && event.involved_object.uid == uid;
    let last = found.events.iter().filter(is_about).max_by_key(|event| event_time(event))?;
    Some((format!("{INDENT}{}", describe_event(last, now)), Colour::Plain))
}

/// The last events of the object itself, the newest first.
fn recent_events(found: &Explained, now: Timestamp) -> Vec<Sentence> {
    let uid = found.object.uid();
    let mut own: Vec<&Event> = found.events.iter().filter(|event| event.involved_object.uid == uid).collect();
    own.sort_by_key(|event| std::cmp::Reverse(event_time(event)));
    let colour = |event: &Event| if event.type_.as_deref() == Some("Warning") { Colour::Yellow } else { Colour::Plain };
    own.into_iter().take(MAX_EVENTS).map(|event| (describe_event(event, now), colour(event))).collect()
}

fn event_time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref().map(|time| time.0));
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    let created = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    series.or(last).or(first).or(created)
}

fn describe_event(event: &Event, now: Timestamp) -> String {
    let ago = event_time(event).map_or("at an unknown time".to_owned(), |time| ago(now.duration_since(time).as_secs()));
    let reason = event.reason.as_deref().unwrap_or("no reason");
    sentence(&format!("{ago} ({reason}): {}", event.message.as_deref().unwrap_or_default()))
}

fn ago(seconds: i64) -> String {
    let (number, unit) = match seconds {
        ..60 => return "just now".to_owned(),
        60..3600 => (seconds / 60, "minute"),
        3600..86_400 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{number} {unit}{} ago", if number == 1 { "" } else { "s" })
}

/// What to do, each with a command.
fn next_commands(found: &Explained) -> Vec<(String, String)> {
    let kubectl = format!("kubectl -n {}", namespace(found));
    let mut commands = Vec::new();
    if is_paused(found) {
        let command =
            format!("{kubectl} annotate {} {} {}-", found.resource, found.object.name_any(), annotation::PAUSE);
        commands.push(("Resume the work on it:".to_owned(), command));
    }
    for pod in found.pods.iter().filter(|pod| !is_healthy(pod)) {
        let (name, summary) = (pod.name_any(), PodSummary::of(pod));
        if summary.restarts > 0 {
            let container = summary.container.filter(|name| is_container(name));
            let container = container.map(|container| format!(" -c {container}")).unwrap_or_default();
            let command = format!("{kubectl} logs {name}{container} --previous");
            commands.push((format!("See why {name} restarts:"), command));
        } else if summary.is_stuck() {
            let command = format!("{kubectl} describe pod {name}");
            commands.push((format!("See why {name} does not start:"), command));
        }
    }
    for job in found.jobs.iter().filter(|job| describe_job(job).is_some_and(|(_, colour)| colour == Colour::Red)) {
        let name = job.name_any();
        commands.push((format!("See why Job {name} failed:"), format!("{kubectl} logs job/{name}")));
    }
    commands
}

#[cfg(test)]
mod tests;
