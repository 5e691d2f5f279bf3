//! What people are told of an object, without storms: the same thing is said once in a while, and no object says much.

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
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::{contact::is_told, metrics::Metrics};

/// The same thing is not said again before this time is over.
const SAME: Duration = Duration::from_secs(600);
/// So many things may be said of one object at once ...
const BURST: u32 = 20;
/// ... and one more each time that this much time is over.
const REFILL: Duration = Duration::from_secs(30);
/// Longest text that the API server takes, in bytes.
const LONGEST: usize = 1024;
/// What waits to be written; more than this is dropped, and counted.
const WAITING: usize = 256;

/// One thing to say of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Note {
    /// Whether it is a warning.
    pub is_warning: bool,
    /// One word.
    pub reason: String,
    /// A sentence: what happened, and what to do where something is to be done.
    pub message: String,
}

impl Note {
    /// All is well.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { is_warning: false, reason: reason.into(), message: message.into() }
    }

    /// Something is wrong.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { is_warning: true, reason: reason.into(), message: message.into() }
    }
}

/// Tells people of objects. Clones tell through the same writer.
#[derive(Clone, Debug)]
pub struct Events {
    waiting: mpsc::Sender<(ObjectReference, Note)>,
    metrics: Metrics,
}

/// Writes what is told.
#[derive(Debug)]
pub struct Writer {
    waiting: mpsc::Receiver<(ObjectReference, Note)>,
    metrics: Metrics,
}

impl Events {
    /// The one end and the other.
    pub fn new(metrics: Metrics) -> (Self, Writer) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { waiting: sender, metrics: metrics.clone() }, Writer { waiting: receiver, metrics })
    }

    /// Says something of an object. It is written when there is time; nobody waits for it.
    pub fn tell(&self, regarding: ObjectReference, note: Note) {
        // Texts of others are in it, and people read it in terminals.
        let note = Note { message: messina_text::lines(&note.message, LONGEST), ..note };
        if self.waiting.try_send((regarding, note)).is_err() {
            self.metrics.event("Dropped");
        }
    }
}

impl Writer {
    /// Writes until nobody has anything to say any more. `reporter` is the program, `instance` this copy of it.
    pub async fn run(mut self, client: Client, reporter: &str, instance: &str) {
        let mut restraint = Restraint::default();
        while let Some((regarding, note)) = self.waiting.recv().await {
            if !restraint.allows(&regarding, &note, Instant::now()) {
                self.metrics.event("HeldBack");
                continue;
            }
            let about = (regarding.uid.clone(), note.clone());
            let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
            let event = event(regarding, note, reporter, instance, Timestamp::now());
            match Api::<Event>::namespaced(client.clone(), &namespace).create(&PostParams::default(), &event).await {
                Ok(_) => self.metrics.event("Written"),
                Err(error) => {
                    self.metrics.event("Failed");
                    // It may be told again, when the API server is there again.
                    restraint.said.remove(&about);
                    // An object's namespace that is being removed takes no more events; that is no trouble of ours.
                    if matches!(&error, kube::Error::Api(status) if status.is_forbidden() || status.is_not_found())
                        || is_told(&error)
                    {
                        debug!(%error, "an event could not be written");
                    } else {
                        warn!(%error, "an event could not be written");
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
            // A dot at the end is refused.
            generate_name: Some(format!("{}-", regarding.name.as_deref().unwrap_or("object"))),
            namespace: Some(regarding.namespace.clone().unwrap_or_else(|| "default".into())),
            ..ObjectMeta::default()
        },
        action: Some(note.reason.clone()),
        event_time: Some(MicroTime(now)),
        note: Some(message),
        reason: Some(note.reason),
        regarding: Some(regarding),
        reporting_controller: Some(reporter.into()),
        reporting_instance: Some(instance.into()),
        type_: Some(if note.is_warning { "Warning" } else { "Normal" }.into()),
        ..Event::default()
    }
}

/// Keeps storms back.
#[derive(Debug, Default)]
struct Restraint {
    said: HashMap<(Option<String>, Note), Instant>,
    /// How much each object may still say, and as of when.
    left: HashMap<Option<String>, (u32, Instant)>,
}

impl Restraint {
    fn allows(&mut self, regarding: &ObjectReference, note: &Note, now: Instant) -> bool {
        self.said.retain(|_, when| now.duration_since(*when) < SAME);
        self.left.retain(|_, (_, when)| now.duration_since(*when) < REFILL * BURST);
        let about = (regarding.uid.clone(), note.clone());
        if self.said.contains_key(&about) {
            return false;
        }
        let (left, when) = self.left.entry(regarding.uid.clone()).or_insert((BURST, now));
        let more = (now.duration_since(*when).as_secs() / REFILL.as_secs()) as u32;
        if more > 0 {
            (*left, *when) = ((*left + more).min(BURST), now);
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        self.said.insert(about, now);
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
    fn the_same_thing_is_said_once_in_a_while() {
        let mut restraint = Restraint::default();
        let now = Instant::now();
        let note = Note::normal("Grown", "It has grown.");
        assert!(restraint.allows(&object("a"), &note, now));
        assert!(!restraint.allows(&object("a"), &note, now + SAME / 2));
        assert!(restraint.allows(&object("b"), &note, now), "another object");
        assert!(restraint.allows(&object("a"), &note, now + SAME));
    }

    #[test]
    fn an_object_that_says_ever_new_things_is_held_back_and_others_are_not() {
        let mut restraint = Restraint::default();
        let now = Instant::now();
        let said =
            (0..1000).filter(|n| restraint.allows(&object("a"), &Note::warning("Odd", n.to_string()), now)).count();
        assert_eq!(said, BURST as usize);
        assert!(restraint.allows(&object("b"), &Note::warning("Odd", "1"), now));
        assert!(restraint.allows(&object("a"), &Note::warning("Odd", "later"), now + REFILL));
        assert!(!restraint.allows(&object("a"), &Note::warning("Odd", "too soon"), now + REFILL));
    }

    #[test]
    fn texts_of_others_are_made_fit() {
        let (events, mut writer) = Events::new(Metrics::default());
        events.tell(object("a"), Note::warning("Failed", "ScyllaDB says \u{1b}[2Jno\u{202e}\rdone"));
        let note = writer.waiting.try_recv().map(|(_, note)| note);
        assert_eq!(note, Ok(Note::warning("Failed", "ScyllaDB says no\ndone")));
    }

    #[test]
    fn a_long_text_is_cut_where_a_letter_ends() {
        let note = Note::normal("Long", "ä".repeat(LONGEST));
        let event = event(object("a"), note, "messina", "me", Timestamp::UNIX_EPOCH);
        let text = event.note.unwrap_or_default();
        assert!(text.len() <= LONGEST && text.ends_with("ä..."), "{} bytes", text.len());
    }
}
