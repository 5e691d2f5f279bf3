//! How often the status of an object is written.

use std::time::Duration;

use tokio::time::Instant;

/// The status of one object is written no more often than this: what changes in between is written together.
const SHORTEST: Duration = Duration::from_secs(1);
/// The same as long as all conditions hold, or do not, as before: nobody waits for a count or a word.
const WORDS: Duration = Duration::from_secs(20);
/// While one word follows another, each pause is twice as long as the one before, up to this.
const LONGEST: Duration = Duration::from_secs(80);

/// What is new in a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// A condition holds that did not, or the other way round: somebody may wait for it.
    Awaited,
    /// Counts and messages.
    Words,
}

/// When the status of an object was written, and when it may be again.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    written: Option<Instant>,
    words: Option<Duration>,
}

impl Pace {
    /// Whether nothing was written yet.
    pub(crate) fn is_new(&self) -> bool {
        self.written.is_none()
    }

    /// The next status is written at once.
    pub(crate) fn hurry(&mut self) {
        self.written = None;
    }

    /// How long to wait with what is new.
    pub(crate) fn rest(&self, news: News, now: Instant) -> Duration {
        let pause = match news {
            News::Awaited => SHORTEST,
            News::Words => self.words.unwrap_or(WORDS),
        };
        self.written.map(|written| pause.saturating_sub(now.duration_since(written))).unwrap_or_default()
    }

    /// The status is written now.
    pub(crate) fn writes(&mut self, news: News, now: Instant) {
        let last = self.words.unwrap_or(WORDS);
        let follows = self.written.is_some_and(|written| now.duration_since(written) < 2 * last);
        self.words = match news {
            _ if !follows => None,
            News::Awaited => self.words,
            News::Words => Some((2 * last).min(LONGEST)),
        };
        self.written = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When something was written, in seconds, of news that come every second.
    fn written(news: News, seconds: u64) -> Vec<u64> {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let mut written = Vec::new();
        for second in 0..seconds {
            let now = began + Duration::from_secs(second);
            if pace.rest(news, now).is_zero() {
                pace.writes(news, now);
                written.push(second);
            }
        }
        written
    }

    #[test]
    fn words_are_written_ever_less_often() {
        assert_eq!(written(News::Words, 400), [0, 20, 60, 140, 220, 300, 380]);
        assert_eq!(written(News::Awaited, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn a_condition_does_not_wait_for_words_and_silence_begins_anew() {
        let (mut pace, began) = (Pace::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        for seconds in [0, 20, 60] {
            pace.writes(News::Words, at(seconds));
        }
        assert_eq!(pace.rest(News::Words, at(61)), Duration::from_secs(79));
        assert_eq!(pace.rest(News::Awaited, at(61)), Duration::ZERO);
        pace.writes(News::Awaited, at(61));
        assert_eq!(pace.rest(News::Words, at(61)), LONGEST, "words still follow one another");
        pace.writes(News::Awaited, at(1000));
        assert_eq!(pace.rest(News::Words, at(1000)), WORDS);
        pace.hurry();
        assert_eq!(pace.rest(News::Words, at(1000)), Duration::ZERO);
    }
}
