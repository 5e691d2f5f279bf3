//! Events about objects, rate-limited: the same event is recorded once in a while, and each object has a budget.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use messina_text::Reason;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::{connectivity::is_reported_elsewhere, metrics::Metrics};

/// The same event of an object is written again only after this time.
const REPEAT_AFTER: Duration = Duration::from_secs(600);
/// Burst of events of one object.
const BURST: u32 = 20;
/// Time until an object may have one more event.
const REFILL: Duration = Duration::from_secs(30);
/// Longest note that the API server accepts, in bytes.
const LONGEST: usize = 1024;
/// Capacity of the buffer; events beyond it are dropped and counted.
const CAPACITY: usize = 256;

/// Type, reason and note of an event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Note {
    /// Whether the type is Warning.
    pub is_warning: bool,
    /// The reason, in CamelCase.
    pub reason: Reason,
    /// What happened, and what the operator or the user does next.
    pub message: String,
}

impl Note {
    /// A note of type Normal.
    pub fn normal(reason: Reason, message: impl Into<String>) -> Self {
        Self { is_warning: false, reason, message: message.into() }
    }

    /// A note of type Warning.
    pub fn warning(reason: Reason, message: impl Into<String>) -> Self {
        Self { is_warning: true, reason, message: message.into() }
    }
}

/// Emits events. Clones share one writer.
#[derive(Clone, Debug)]
pub struct Events {
    buffer: mpsc::Sender<(ObjectReference, Note)>,
    metrics: Metrics,
}

/// Writes emitted events to the API server.
#[derive(Debug)]
pub struct Writer {
    buffer: mpsc::Receiver<(ObjectReference, Note)>,
    metrics: Metrics,
}

impl Events {
    /// Creates a recorder of events and their writer.
    pub fn new(metrics: Metrics) -> (Self, Writer) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        (Self { buffer: sender, metrics: metrics.clone() }, Writer { buffer: receiver, metrics })
    }

    /// Emits an event about an object, without waiting for its write.
    pub fn emit(&self, regarding: ObjectReference, note: Note) {
        // It contains texts of other programs, and users read it in terminals.
        let note = Note { message: messina_text::lines(&note.message, LONGEST), ..note };
        if self.buffer.try_send((regarding, note)).is_err() {
            self.metrics.event("Dropped");
        }
    }
}

impl Events {
    /// Emits an event, unless many others wait to be written: those are more important.
    pub fn emit_if_idle(&self, regarding: ObjectReference, note: Note) {
        if self.buffer.capacity() > CAPACITY / 2 {
            self.emit(regarding, note);
        } else {
            self.metrics.event("Dropped");
        }
    }
}

impl Writer {
    /// Writes events until all [`Events`] are dropped. `reporter` is the reporting controller, `instance` its replica.
    pub async fn run(mut self, client: Client, reporter: &str, instance: &str) {
        let mut limiter = RateLimiter::default();
        while let Some((regarding, note)) = self.buffer.recv().await {
            if !limiter.allows(&regarding, &note, Instant::now()) {
                self.metrics.event("HeldBack");
                continue;
            }
            let id = (regarding.uid.clone(), note.clone());
            let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
            let event = event(regarding, note, reporter, instance, Timestamp::now());
            match Api::<Event>::namespaced(client.clone(), &namespace).create(&PostParams::default(), &event).await {
                Ok(_) => self.metrics.event("Written"),
                Err(error) => {
                    self.metrics.event("Failed");
                    // It may be emitted again, once the API server can be reached.
                    limiter.written.remove(&id);
                    // A namespace that is being deleted accepts no more events: that needs no warning.
                    if matches!(&error, kube::Error::Api(status) if status.is_forbidden() || status.is_not_found())
                        || is_reported_elsewhere(&error)
                    {
                        debug!(%error, "cannot write an event");
                    } else {
                        warn!(%error, "cannot write an event");
                    }
                }
            }
        }
    }
}

fn event(regarding: ObjectReference, note: Note, reporter: &str, instance: &str, now: Timestamp) -> Event {
    let mut message = note.message;
    if message.len() > LONGEST {
        let end = (0..=LONGEST - 3).rev().find(|end| message.is_char_boundary(*end)).unwrap_or_default();
        message.truncate(end);
        message.push_str("...");
    }
    Event {
        metadata: ObjectMeta {
            // The API server rejects a dot at the end.
            generate_name: Some(format!("{}-", regarding.name.as_deref().unwrap_or("object"))),
            namespace: Some(regarding.namespace.clone().unwrap_or_else(|| "default".into())),
            ..ObjectMeta::default()
        },
        action: Some(note.reason.into()),
        event_time: Some(MicroTime(now)),
        note: Some(message),
        reason: Some(note.reason.into()),
        regarding: Some(regarding),
        reporting_controller: Some(reporter.into()),
        reporting_instance: Some(instance.into()),
        type_: Some(if note.is_warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    }
}

/// Limits how many events are written: by a token bucket for each object, and by leaving out repetitions.
#[derive(Debug, Default)]
struct RateLimiter {
    /// Events that were written, by the UID of their object, and when.
    written: HashMap<(Option<String>, Note), Instant>,
    /// The tokens of each object, and when they were last refilled.
    tokens: HashMap<Option<String>, (u32, Instant)>,
}

impl RateLimiter {
    fn allows(&mut self, regarding: &ObjectReference, note: &Note, now: Instant) -> bool {
        self.written.retain(|_, when| now.duration_since(*when) < REPEAT_AFTER);
        self.tokens.retain(|_, (_, when)| now.duration_since(*when) < REFILL * BURST);
        let id = (regarding.uid.clone(), note.clone());
        if self.written.contains_key(&id) {
            return false;
        }
        let (tokens, when) = self.tokens.entry(regarding.uid.clone()).or_insert((BURST, now));
        let more = (now.duration_since(*when).as_secs() / REFILL.as_secs()) as u32;
        if more > 0 {
            (*tokens, *when) = ((*tokens + more).min(BURST), now);
        }
        if *tokens == 0 {
            return false;
        }
        *tokens -= 1;
        self.written.insert(id, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(uid: &str) -> ObjectReference {
        ObjectReference { uid: Some(uid.into()), name: Some("x".into()), ..ObjectReference::default() }
    }

    #[test]
    fn same_event_is_written_again_only_after_a_while() {
        let mut limiter = RateLimiter::default();
        let now = Instant::now();
        let note = Note::normal(Reason::declare("Grown"), "It has grown.");
        assert!(limiter.allows(&object("a"), &note, now));
        assert!(!limiter.allows(&object("a"), &note, now + REPEAT_AFTER / 2));
        assert!(limiter.allows(&object("b"), &note, now), "another object");
        assert!(limiter.allows(&object("a"), &note, now + REPEAT_AFTER));
    }

    #[test]
    fn events_of_one_object_are_limited_and_those_of_others_are_not() {
        let mut limiter = RateLimiter::default();
        let now = Instant::now();
        let written = (0..1000)
            .filter(|n| limiter.allows(&object("a"), &Note::warning(Reason::declare("Odd"), n.to_string()), now))
            .count();
        assert_eq!(written, BURST as usize);
        assert!(limiter.allows(&object("b"), &Note::warning(Reason::declare("Odd"), "1"), now));
        assert!(limiter.allows(&object("a"), &Note::warning(Reason::declare("Odd"), "later"), now + REFILL));
        assert!(!limiter.allows(&object("a"), &Note::warning(Reason::declare("Odd"), "too soon"), now + REFILL));
    }

    #[test]
    fn texts_of_other_programs_are_sanitized() {
        let (events, mut writer) = Events::new(Metrics::default());
        events.emit(object("a"), Note::warning(Reason::declare("Failed"), "ScyllaDB says \u{1b}[2Jno\u{202e}\rdone"));
        let note = writer.buffer.try_recv().map(|(_, note)| note);
        assert_eq!(note, Ok(Note::warning(Reason::declare("Failed"), "ScyllaDB says no\ndone")));
    }

    #[test]
    fn long_note_is_cut_at_a_character_boundary() {
        let note = Note::normal(Reason::declare("Long"), "ä".repeat(LONGEST));
        let event = event(object("a"), note, "messina", "me", Timestamp::UNIX_EPOCH);
        let text = event.note.unwrap_or_default();
        assert!(text.len() <= LONGEST && text.ends_with("ä..."), "{} bytes", text.len());
    }
}
