//! What is known of an object, as sentences: what it waits for, what is wrong, and what to do.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
        core::v1::{Event, Pod},
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::ResourceExt;
use messina_api::names::annotation;
use messina_plan::datacenter::is_rolled_out;
use serde_json::Value;

use super::Found;
use crate::{
    page::{Colour, Look, Page},
    status::{
        model::{seen_generation, unexpected},
        pods::{Kubernetes, is_container, is_ready},
    },
};

/// How many events of the object are shown.
const EVENTS: usize = 5;
/// The condition of an object on which no work is done.
const PAUSED: &str = "Paused";

/// What a remark on the sentence before begins with.
const BELOW: &str = "  ";

/// Something to say, and how serious it is.
type Sentence = (String, Colour);

/// Explains the object; `now` is for how long ago something was.
pub fn text(found: &Found, now: Timestamp, look: Look) -> String {
    let mut page = Page::new(look);
    let reasons = reasons(found);
    let (headline, colour) = headline(found, &reasons);
    page.paragraph("", "", &headline, colour);
    page.sentences("", reasons.iter().map(|reason| &reason.sentence));
    page.sentences("Of what it has:", below(found, now).iter());
    page.sentences("Lately said of it:", events(found, now).iter());
    let next = next(found);
    if !next.is_empty() {
        page.line(String::new());
    }
    for (text, command) in next {
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
            let (first, others) = if text.starts_with(BELOW) { ("    ", "      ") } else { ("  ", "    ") };
            self.paragraph(first, others, text, *colour);
        }
    }
}

/// What kind of reason it is that an object is not done; the first decides what is said first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Deletion,
    Pause,
    Refused,
    Unseen,
    Wrong,
    NotAvailable,
    Waiting,
    Remark,
}

struct Reason {
    cause: Cause,
    sentence: Sentence,
}

fn headline(found: &Found, reasons: &[Reason]) -> Sentence {
    let named = named(found);
    let state = found.object.data["status"]["state"].as_str().unwrap_or_default();
    match (reasons.iter().map(|reason| reason.cause).min(), state) {
        (Some(Cause::Deletion), _) => (format!("{named} is being deleted."), Colour::Yellow),
        (Some(Cause::Pause), _) => (format!("Work on {named} is paused."), Colour::Yellow),
        (_, "Failed") => (format!("{named} has failed."), Colour::Red),
        (_, "Rejected") => (format!("{named} was rejected."), Colour::Red),
        (_, "Succeeded") | (None | Some(Cause::Remark), _) => {
            (format!("{named} is done: nothing is awaited."), Colour::Green)
        }
        (Some(Cause::Refused), _) => (
            format!("The specification of {named} is refused: nothing is changed before it is corrected."),
            Colour::Red,
        ),
        (Some(Cause::Unseen), _) => (format!("{named} is as it was: its latest change was not seen."), Colour::Yellow),
        (Some(Cause::Wrong), _) => (format!("Something is wrong with {named}."), Colour::Red),
        (Some(Cause::NotAvailable), _) => (format!("{named} is not available."), Colour::Red),
        (Some(Cause::Waiting), _) => (format!("{named} is not done yet."), Colour::Yellow),
    }
}

fn named(found: &Found) -> String {
    format!("{} {}/{}", found.kind, namespace(found), found.object.name_any())
}

fn namespace(found: &Found) -> String {
    found.object.namespace().unwrap_or_default()
}

fn reasons(found: &Found) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut say = |cause, text: String, colour| {
        // Each line of a message is about something else.
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            reasons.push(Reason { cause, sentence: (sentence(line), colour) });
        }
    };
    let status = &found.object.data["status"];
    if found.object.metadata.deletion_timestamp.is_some() {
        let holds = found.object.finalizers().join(", ");
        let why =
            if holds.is_empty() { "what it has goes first".to_owned() } else { format!("these hold it up: {holds}") };
        say(Cause::Deletion, format!("It was deleted, and {why}"), Colour::Yellow);
    }
    let conditions = conditions(status);
    for paused in conditions.iter().filter(|condition| condition.type_ == PAUSED && condition.status == "True") {
        say(Cause::Pause, paused.message.clone(), Colour::Yellow);
    }
    // Not every kind has conditions.
    if is_paused(found) && !conditions.iter().any(|condition| condition.type_ == PAUSED) {
        say(Cause::Pause, format!("The annotation {} stops all work on it", annotation::PAUSE), Colour::Yellow);
    }
    let unseen = unseen(found, &conditions);
    let is_unseen = unseen.is_some();
    if let Some(unseen) = unseen {
        say(Cause::Unseen, unseen, Colour::Yellow);
    }
    for condition in unexpected(&conditions).into_iter().filter(|condition| condition.condition_type != PAUSED) {
        let name = &condition.condition_type;
        let part = |end: &str| name.trim_end_matches(end).trim_end_matches("Controller").to_owned();
        let about =
            |words: &str, part: String| if part.is_empty() { words.to_owned() } else { format!("{words} ({part})") };
        let message = if condition.message.is_empty() { &condition.reason } else { &condition.message };
        let (cause, words, colour) = match name.as_str() {
            _ if condition.is_refusal() && !is_unseen => (Cause::Refused, "Refused".to_owned(), Colour::Red),
            name if name.ends_with("Degraded") => (Cause::Wrong, about("It is wrong", part("Degraded")), Colour::Red),
            name if name.ends_with("Available") => {
                (Cause::NotAvailable, about("It is not available", part("Available")), Colour::Red)
            }
            _ => (Cause::Waiting, about("It waits", part("Progressing")), Colour::Yellow),
        };
        let lines: Vec<String> = message.lines().map(|line| format!("{words}: {line}")).collect();
        say(cause, lines.join("\n"), colour);
    }
    for condition in conditions.iter().filter(is_remark) {
        let lines: Vec<String> = condition.message.lines().map(|line| format!("Good to know: {line}")).collect();
        say(Cause::Remark, lines.join("\n"), Colour::Plain);
    }
    let (state, waits) = (status["state"].as_str(), ["Pending", "InProgress"]);
    if let Some(state) = state {
        let said = status["lastOperation"]["description"].as_str().unwrap_or_default();
        let cause = if waits.contains(&state) { Cause::Waiting } else { Cause::Wrong };
        if state != "Succeeded" {
            say(cause, format!("It is {state}: {said}"), Colour::Yellow);
        }
        if let (Some(place), "Pending") = (status["place"].as_i64().filter(|place| *place > 0), state) {
            say(Cause::Waiting, format!("{place} other task(s) on the same etcd cluster come first"), Colour::Yellow);
        }
        for error in status["lastErrors"].as_array().into_iter().flatten().filter(|_| state != "Succeeded") {
            let word = |field: &str| error[field].as_str().unwrap_or_default();
            say(cause, format!("Error {}: {}", word("code"), word("description")), Colour::Red);
        }
    }
    reasons.sort_by_key(|reason| reason.cause);
    reasons
}

/// Whether a condition that is as it should be says something all the same: what the operator cannot do here, for example.
fn is_remark(condition: &&Condition) -> bool {
    let is_part = condition.type_.ends_with("ControllerProgressing");
    is_part && condition.status == "False" && condition.reason != "AsExpected" && !condition.message.is_empty()
}

fn is_paused(found: &Found) -> bool {
    found.object.annotations().get(annotation::PAUSE).is_some_and(|value| value.trim() != "false")
}

fn sentence(text: &str) -> String {
    let text = text.trim();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{text}{end}")
}

fn conditions(status: &Value) -> Vec<Condition> {
    serde_json::from_value(status["conditions"].clone()).unwrap_or_default()
}

/// That the operator has not looked at the object, or not since it was changed.
fn unseen(found: &Found, conditions: &[Condition]) -> Option<String> {
    let status = &found.object.data["status"];
    let runs = "see that the operator runs, and read its log, if this lasts longer than a few seconds";
    if status.is_null() || status.as_object().is_some_and(serde_json::Map::is_empty) {
        return Some(format!("The operator has not looked at it yet: {runs}"));
    }
    let seen = seen_generation(status["observedGeneration"].as_i64(), conditions)?;
    let now = found.object.metadata.generation?;
    (seen < now).then(|| format!("The operator has looked at generation {seen} of it, and it is at {now}: {runs}"))
}

/// What it has that is not as it should be, with what was last said of it.
fn below(found: &Found, now: Timestamp) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    for one in found.stateful_sets.iter().filter(|one| !is_rolled_out(one)) {
        sentences.push((stateful_set(one), Colour::Yellow));
        sentences.extend(warning(found, one.uid(), now));
    }
    for job in &found.jobs {
        if let Some(sentence) = job_words(job) {
            sentences.push(sentence);
            sentences.extend(warning(found, job.uid(), now));
        }
    }
    for pod in found.pods.iter().filter(|pod| !is_well(pod)) {
        let kubernetes = Kubernetes::of(pod);
        let colour = if kubernetes.is_stuck() { Colour::Red } else { Colour::Yellow };
        let mut words = format!("Pod {}: {}", pod.name_any(), kubernetes.words());
        if let Some(message) = kubernetes.message.as_ref().filter(|_| kubernetes.is_stuck()) {
            words += &format!("; {}", message.trim());
        }
        sentences.push((sentence(&words), colour));
        sentences.extend(warning(found, pod.uid(), now));
    }
    sentences
}

fn is_well(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    (is_ready(pod) || phase == Some("Succeeded")) && pod.metadata.deletion_timestamp.is_none()
}

fn stateful_set(one: &StatefulSet) -> String {
    let wanted = one.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = one.status.clone().unwrap_or_default();
    let (ready, updated) = (status.ready_replicas.unwrap_or(0), status.updated_replicas.unwrap_or(0));
    format!("StatefulSet {}: {ready} of {wanted} pods are ready, {updated} are as it wants them now.", one.name_any())
}

fn job_words(job: &Job) -> Option<Sentence> {
    let status = job.status.clone().unwrap_or_default();
    let holds = |name: &str| {
        status.conditions.iter().flatten().find(|condition| condition.type_ == name && condition.status == "True")
    };
    if holds("Complete").is_some() || status.completion_time.is_some() {
        return None;
    }
    let name = job.name_any();
    Some(match holds("Failed") {
        Some(failed) => {
            let message = failed.message.as_deref().unwrap_or("it does not say why");
            (sentence(&format!("Job {name} has failed: {message}")), Colour::Red)
        }
        None => {
            let failed =
                status.failed.filter(|failed| *failed > 0).map(|failed| format!(", {failed} of its pods failed"));
            (format!("Job {name} is running{}.", failed.unwrap_or_default()), Colour::Yellow)
        }
    })
}

/// The last warning on an object, as a remark below it.
fn warning(found: &Found, uid: Option<String>, now: Timestamp) -> Option<Sentence> {
    let is_about = |event: &&Event| uid.is_some() && event.involved_object.uid == uid;
    let last = found.events.iter().filter(is_about).max_by_key(|event| when(event))?;
    Some((format!("{BELOW}{}", said(last, now)), Colour::Plain))
}

/// What was last said of the object itself, the newest first.
fn events(found: &Found, now: Timestamp) -> Vec<Sentence> {
    let uid = found.object.uid();
    let mut own: Vec<&Event> = found.events.iter().filter(|event| event.involved_object.uid == uid).collect();
    own.sort_by_key(|event| std::cmp::Reverse(when(event)));
    let colour = |event: &Event| if event.type_.as_deref() == Some("Warning") { Colour::Yellow } else { Colour::Plain };
    own.into_iter().take(EVENTS).map(|event| (said(event, now), colour(event))).collect()
}

fn when(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref().map(|time| time.0));
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    let created = event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    series.or(last).or(first).or(created)
}

fn said(event: &Event, now: Timestamp) -> String {
    let ago = when(event).map_or("at some time".to_owned(), |when| ago(now.duration_since(when).as_secs()));
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
fn next(found: &Found) -> Vec<(String, String)> {
    let kubectl = format!("kubectl -n {}", namespace(found));
    let mut next = Vec::new();
    if is_paused(found) {
        let command =
            format!("{kubectl} annotate {} {} {}-", found.resource, found.object.name_any(), annotation::PAUSE);
        next.push(("To have work on it go on:".to_owned(), command));
    }
    for pod in found.pods.iter().filter(|pod| !is_well(pod)) {
        let (name, kubernetes) = (pod.name_any(), Kubernetes::of(pod));
        if kubernetes.restarts > 0 {
            let container = kubernetes.container.filter(|name| is_container(name));
            let container = container.map(|container| format!(" -c {container}")).unwrap_or_default();
            let command = format!("{kubectl} logs {name}{container} --previous");
            next.push((format!("See why {name} does not keep running:"), command));
        } else if kubernetes.is_stuck() {
            let command = format!("{kubectl} describe pod {name}");
            next.push((format!("See what keeps {name} from starting:"), command));
        }
    }
    for job in found.jobs.iter().filter(|job| job_words(job).is_some_and(|(_, colour)| colour == Colour::Red)) {
        let name = job.name_any();
        next.push((format!("See why the Job {name} failed:"), format!("{kubectl} logs job/{name}")));
    }
    next
}

#[cfg(test)]
mod tests;
