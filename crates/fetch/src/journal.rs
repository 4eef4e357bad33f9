//! The journal of an image: the slowest waits, what they waited for, and the decisions made.
//!
//! Reads of local bytes never touch it. All of it is bounded, and kept as long as the image is registered.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tarpon_layer::ObjectId;
use tarpon_oci::Digest;
use tokio::time::Instant;

/// Slowest waits that are kept: as many as a user reads through.
const SLOWEST_STALLS: usize = 32;
/// Newest events that are kept. Repeated events count as one.
const EVENTS: usize = 128;
/// Waits that begin within this time after the image was loaded count as part of the start, as an estimate that needs no knowledge
/// of the program.
pub const START: Duration = Duration::from_secs(60);
/// Bytes of a reason that are kept: an error of a registry may quote a page.
const REASON_BYTES: usize = 512;

/// The longest part of a read's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitedFor {
    /// A request that it made itself.
    OwnRequest,
    /// A request that another reader had made.
    OtherReader,
    /// Bytes read ahead of a sequential reader, or that came along with another reader's request.
    ReadAhead,
    /// A frame of the boot pack: it joined the replay, or overtook it.
    Pack,
    /// A request of a download of the rest of the image.
    WholeDownload,
    /// The layer, decoded from its beginning.
    WholeLayer,
    /// Nothing on the wire: the disk or the processor.
    Local,
}

/// A read that had to wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// The object read.
    pub object: ObjectId,
    /// Offset of the read.
    pub offset: u64,
    /// Length of the read.
    pub length: u64,
    /// How long it waited.
    pub waited_millis: u64,
    /// When it began, since the image was loaded.
    pub at_millis: u64,
    /// What it waited for, as far as it is one thing.
    pub waited_for: WaitedFor,
    /// The layer that the bytes came from, if any.
    pub layer: Option<Digest>,
    /// Whether the read failed.
    pub failed: bool,
}

/// Sum of the waits for the same thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitSum {
    /// What they waited for.
    pub waited_for: WaitedFor,
    /// The layer that the bytes came from, if any.
    pub layer: Option<Digest>,
    /// Number of reads.
    pub stalls: u64,
    /// Sum of their waits.
    pub millis: u64,
    /// Reads of these that began within [`START`].
    pub start_stalls: u64,
    /// Sum of the waits of these.
    pub start_millis: u64,
}

/// An event or a decision of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// The fetch of a boot pack of this many encoded bytes began.
    PackBegan {
        /// Encoded bytes.
        bytes: u64,
    },
    /// The boot pack is local, as far as it was needed.
    PackEnded,
    /// The boot pack is missing or damaged. Layers are read instead.
    PackGivenUp {
        /// The failure.
        reason: String,
    },
    /// Bytes could not be fetched.
    SourceFailed {
        /// The failure.
        reason: String,
    },
    /// The source does not answer: reads that need it wait until a probe is answered, and fail if none is.
    SourceRests {
        /// The failure.
        reason: String,
    },
    /// The source answers again.
    SourceAnswers,
    /// Bytes did not match their digest.
    Corrupt {
        /// The mismatch.
        reason: String,
    },
    /// An object differs from what the image's index states.
    Refuted {
        /// The object.
        object: ObjectId,
    },
    /// A layer is no longer served.
    Distrusted {
        /// The layer.
        layer: Digest,
        /// The difference found.
        reason: String,
    },
    /// The store refused a write: fetched bytes are not kept.
    StoreRefused {
        /// Its error.
        reason: String,
    },
    /// The image is fetched in another way from now on.
    Switched {
        /// The new way.
        to: String,
        /// The reason.
        reason: String,
    },
}

impl Event {
    /// Cuts the reason to [`REASON_BYTES`].
    fn bounded(mut self) -> Self {
        match &mut self {
            Self::PackGivenUp { reason }
            | Self::SourceFailed { reason }
            | Self::SourceRests { reason }
            | Self::Corrupt { reason }
            | Self::Distrusted { reason, .. }
            | Self::StoreRefused { reason } => cut(reason),
            Self::Switched { to, reason } => {
                cut(to);
                cut(reason);
            }
            Self::PackBegan { .. } | Self::PackEnded | Self::SourceAnswers | Self::Refuted { .. } => {}
        }
        self
    }
}

fn cut(text: &mut String) {
    if text.len() > REASON_BYTES {
        let end = (0..=REASON_BYTES).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
}

/// An event with its time and count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// When it happened last, since the image was loaded.
    pub at_millis: u64,
    /// Number of occurrences.
    pub times: u64,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// Contents of a journal at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// When the image was loaded, in milliseconds since 1970.
    pub loaded_unix_millis: u64,
    /// The slowest waits, slowest first.
    pub slowest: Vec<Stall>,
    /// All waits by cause, longest first.
    pub waits: Vec<WaitSum>,
    /// The newest events, oldest first.
    pub events: Vec<Noted>,
    /// Older events that were dropped.
    pub events_dropped: u64,
}

/// The cause of a wait, and the layer that the bytes came from.
type Kind = (WaitedFor, Option<Digest>);

/// Waits of one kind.
#[derive(Default)]
struct Sums {
    all: (u64, Duration),
    start: (u64, Duration),
}

/// The journal of one image.
pub struct Journal {
    loaded: Instant,
    loaded_unix_millis: u64,
    stalls: Mutex<Vec<Stall>>,
    /// Waits that are not longer need no lock.
    floor_millis: AtomicU64,
    /// By cause and layer: at most one for each layer of the image and each cause.
    waits: Mutex<BTreeMap<Kind, Sums>>,
    events: Mutex<Events>,
}

#[derive(Default)]
struct Events {
    ring: VecDeque<Noted>,
    dropped: u64,
}

/// The cause of a read's wait, collected during the wait.
#[derive(Default)]
pub(crate) struct Waiting {
    longest: Option<(Duration, WaitedFor, Option<Digest>)>,
}

impl Waiting {
    /// Adds a wait for `what`.
    pub(crate) fn note(&mut self, waited: Duration, what: WaitedFor, layer: Option<Digest>) {
        if self.longest.is_none_or(|(longest, ..)| longest < waited) {
            self.longest = Some((waited, what, layer));
        }
    }

    fn cause(&self) -> (WaitedFor, Option<Digest>) {
        self.longest.map_or((WaitedFor::Local, None), |(_, what, layer)| (what, layer))
    }
}

impl Default for Journal {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            loaded: Instant::now(),
            loaded_unix_millis: millis(now),
            stalls: Mutex::default(),
            floor_millis: AtomicU64::new(0),
            waits: Mutex::default(),
            events: Mutex::default(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Journal {
    /// Records an event. A known one is counted.
    pub fn note(&self, event: Event) {
        let (event, at_millis) = (event.bounded(), millis(self.loaded.elapsed()));
        let mut events = self.events.lock();
        let known = events.ring.iter().position(|noted| noted.event == event);
        let mut noted =
            known.and_then(|place| events.ring.remove(place)).unwrap_or(Noted { at_millis, times: 0, event });
        noted.at_millis = at_millis;
        noted.times += 1;
        if events.ring.len() == EVENTS {
            events.ring.pop_front();
            events.dropped += 1;
        }
        events.ring.push_back(noted);
    }

    /// Records that a read waited.
    pub(crate) fn stalled(
        &self,
        read: (ObjectId, &std::ops::Range<u64>),
        waited: Duration,
        waiting: &Waiting,
        failed: bool,
    ) {
        let (waited_for, layer) = waiting.cause();
        let at = self.loaded.elapsed().saturating_sub(waited);
        {
            let mut waits = self.waits.lock();
            let Sums { all, start } = waits.entry((waited_for, layer)).or_default();
            for (stalls, sum) in [Some(all), (at < START).then_some(start)].into_iter().flatten() {
                *stalls += 1;
                *sum += waited;
            }
        }
        let waited_millis = millis(waited);
        if waited_millis < self.floor_millis.load(Relaxed) {
            return;
        }
        let at_millis = millis(at);
        let (object, range) = read;
        let (offset, length) = (range.start, range.end - range.start);
        self.keep(Stall { object, offset, length, waited_millis, at_millis, waited_for, layer, failed });
    }

    /// Inserts the wait among the slowest. Of equal ones the first stays.
    fn keep(&self, stall: Stall) {
        let mut stalls = self.stalls.lock();
        let place = stalls.partition_point(|known| known.waited_millis >= stall.waited_millis);
        if place == SLOWEST_STALLS {
            return;
        }
        stalls.truncate(SLOWEST_STALLS - 1);
        stalls.insert(place, stall);
        if let Some(last) = stalls.get(SLOWEST_STALLS - 1) {
            self.floor_millis.store(last.waited_millis.saturating_add(1), Relaxed);
        }
    }

    /// The contents of the journal.
    pub fn account(&self) -> Account {
        let mut waits: Vec<WaitSum> = self
            .waits
            .lock()
            .iter()
            .map(|((waited_for, layer), Sums { all, start })| WaitSum {
                waited_for: *waited_for,
                layer: *layer,
                stalls: all.0,
                millis: millis(all.1),
                start_stalls: start.0,
                start_millis: millis(start.1),
            })
            .collect();
        waits.sort_by_key(|wait| std::cmp::Reverse(wait.millis));
        let slowest = self.stalls.lock().clone();
        let events = self.events.lock();
        Account {
            loaded_unix_millis: self.loaded_unix_millis,
            slowest,
            waits,
            events: events.ring.iter().cloned().collect(),
            events_dropped: events.dropped,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stalled(journal: &Journal, offset: u64, waited: u64) {
        let mut waiting = Waiting::default();
        waiting.note(Duration::from_millis(1), WaitedFor::Pack, None);
        waiting.note(Duration::from_millis(waited), WaitedFor::OwnRequest, Some(Digest::of(b"layer")));
        journal.stalled((Digest::of(b"object"), &(offset..offset + 1)), Duration::from_millis(waited), &waiting, false);
    }

    #[test]
    fn the_slowest_are_kept_and_all_are_counted() {
        let journal = Journal::default();
        let count = 3 * SLOWEST_STALLS as u64;
        for round in 0..count {
            // 5 and the number of rounds have no common factor: each wait once, in no order.
            stalled(&journal, round, 1000 + round * 5 % count);
        }
        let account = journal.account();
        let kept: Vec<u64> = account.slowest.iter().map(|stall| stall.waited_millis).collect();
        let slowest: Vec<u64> = (1000..1000 + count).rev().take(SLOWEST_STALLS).collect();
        assert_eq!(kept, slowest);
        let sum = (1000..1000 + count).sum();
        let all = WaitSum {
            waited_for: WaitedFor::OwnRequest,
            layer: Some(Digest::of(b"layer")),
            stalls: count,
            millis: sum,
            start_stalls: count,
            start_millis: sum,
        };
        assert_eq!(account.waits, [all], "for what it waited longest");
    }

    #[tokio::test(start_paused = true)]
    async fn waits_of_a_start_are_counted_apart_from_later_ones() {
        let journal = Journal::default();
        tokio::time::advance(START).await;
        stalled(&journal, 0, 5);
        tokio::time::advance(Duration::from_millis(5)).await;
        stalled(&journal, 0, 6);
        stalled(&journal, 0, 7);
        let all = journal.account().waits.remove(0);
        assert_eq!((all.stalls, all.millis, all.start_stalls, all.start_millis), (3, 18, 3, 18), "by their beginning");
        stalled(&journal, 0, 4);
        let all = journal.account().waits.remove(0);
        assert_eq!((all.stalls, all.millis, all.start_stalls, all.start_millis), (4, 22, 3, 18));
    }

    #[test]
    fn of_waits_that_are_equally_long_the_first_stay() {
        let journal = Journal::default();
        (0..100).for_each(|offset| stalled(&journal, offset, 7));
        let kept: Vec<u64> = journal.account().slowest.iter().map(|stall| stall.offset).collect();
        assert_eq!(kept, (0..SLOWEST_STALLS as u64).collect::<Vec<_>>());
    }

    #[test]
    fn the_newest_events_are_kept_and_those_that_repeat_themselves_are_one() {
        let journal = Journal::default();
        let event = |number: usize| Event::SourceFailed { reason: format!("failure {number}") };
        journal.note(Event::PackBegan { bytes: 1 });
        for number in 0..EVENTS {
            (0..3).for_each(|_| journal.note(event(number)));
        }
        let account = journal.account();
        assert_eq!((account.events.len(), account.events_dropped), (EVENTS, 1));
        assert_eq!((&account.events[0].event, account.events[0].times), (&event(0), 3), "the oldest event is gone");
        journal.note(event(0));
        let last = journal.account().events.pop().unwrap();
        assert_eq!((last.event, last.times), (event(0), 4), "what has just happened is the newest");
    }

    #[test]
    fn a_reason_is_kept_up_to_its_bound() {
        let journal = Journal::default();
        journal.note(Event::Corrupt { reason: "ä".repeat(REASON_BYTES) });
        let Event::Corrupt { reason } = &journal.account().events[0].event else { panic!("another event") };
        assert_eq!(*reason, format!("{}…", "ä".repeat(REASON_BYTES / 2)));
    }

    #[test]
    fn an_account_survives_the_way_to_another_process() {
        let journal = Journal::default();
        stalled(&journal, 0, 5);
        journal.note(Event::Distrusted { layer: Digest::of(b"layer"), reason: "a wrong chunk".into() });
        let account = journal.account();
        let text = serde_json::to_string(&account).unwrap();
        assert_eq!(serde_json::from_str::<Account>(&text).unwrap(), account);
    }
}
