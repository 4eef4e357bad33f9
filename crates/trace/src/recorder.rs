//! [`Recorder`]: records touches while they happen.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tarpon_oci::{Digest, limits};

use crate::journal::{self, InvalidJournal, Journal};
use crate::model::{Header, LONGEST, Origin, TOUCHES, Touch, Trace, whole_micros};
use crate::ranges::Ranges;

/// Longest time between the first and the last of the reads that are joined to one touch. A file that is read sequentially in small steps
/// becomes a few touches, and the time of no byte is wrong by more than this.
const JOINED_WITHIN: Duration = Duration::from_millis(10);

/// Collects touches from any number of threads. A call takes a lock and does a look-up; most calls add nothing.
pub struct Recorder {
    start: Instant,
    recording: Mutex<Recording>,
}

#[derive(Default)]
struct Recording {
    touches: Vec<Touch>,
    objects: HashMap<Digest, (u64, Ranges)>,
    truncated: bool,
    /// Gets each change before the lock is released.
    journal: Option<Box<dyn Journal>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Recorder").field("start", &self.start).finish_non_exhaustive()
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// A recorder whose time starts now.
    pub fn new() -> Self {
        Self { start: Instant::now(), recording: Mutex::default() }
    }

    /// As [`new`](Self::new), with a journal from which another process can [continue](Self::continued). `now`: the time on a clock that
    /// both processes have.
    pub fn journaled(mut journal: Box<dyn Journal>, now: Duration) -> Self {
        journal::begin(&mut *journal, now);
        let recording = Recording { journal: Some(journal), ..Recording::default() };
        Self { recording: Mutex::new(recording), ..Self::new() }
    }

    /// The recorder whose journal has these bytes, in another process. Times count from its start. It continues the journal.
    ///
    /// # Errors
    /// The bytes are no journal of this version.
    pub fn continued(bytes: &[u8], journal: Box<dyn Journal>, now: Duration) -> Result<Self, InvalidJournal> {
        let journaled = journal::read(bytes)?;
        let elapsed = now.checked_sub(journaled.start).ok_or(InvalidJournal)?;
        let start = Instant::now().checked_sub(elapsed).ok_or(InvalidJournal)?;
        let (objects, truncated, touches) = (journaled.objects()?, journaled.truncated, journaled.touches);
        let recording = Recording { touches, objects, truncated, journal: Some(journal) };
        Ok(Self { start, recording: Mutex::new(recording) })
    }

    /// Records that a read of `range` has just been answered, for which the reader waited `stall`. Bytes that were touched before are
    /// ignored.
    pub fn touch(&self, object: Digest, size: u64, range: Range<u64>, from: Origin, stall: Duration) {
        self.touch_at(self.start.elapsed().saturating_sub(stall), object, size, range, from, stall);
    }

    /// As [`touch`](Self::touch), for a read that began at `at` since the start.
    fn touch_at(&self, at: Duration, object: Digest, size: u64, range: Range<u64>, from: Origin, stall: Duration) {
        let touch = Touch {
            object,
            size,
            range: range.start..range.end.min(size),
            at: whole_micros(at),
            layer: None,
            path: None,
            from: Some(from),
            stall: whole_micros(stall),
        };
        self.recording.lock().touch(touch);
    }

    /// The touches up to now. `truncated` of the header is set here, whatever `header` has.
    pub fn finish(&self, header: Header) -> Trace {
        let (mut touches, truncated) = {
            let recording = self.recording.lock();
            (recording.touches.clone(), recording.truncated)
        };
        // They were recorded in the order of the answers.
        touches.sort_by_key(|touch| touch.at);
        Trace { header: Header { truncated, ..header }, touches }
    }
}

impl Recording {
    fn touch(&mut self, touch: Touch) {
        if self.truncated || touch.range.is_empty() || touch.size > limits::BLOB_BYTES {
            return;
        }
        if touch.at > LONGEST || touch.stall > LONGEST || self.touches.len() >= TOUCHES {
            self.truncate();
            return;
        }
        let (size, ranges) = self.objects.entry(touch.object).or_insert_with(|| (touch.size, Ranges::default()));
        if *size != touch.size {
            return;
        }
        let mut stall = touch.stall;
        let room = TOUCHES - self.touches.len();
        let mut new = ranges.add(touch.range.clone());
        if new.len() > room {
            self.truncate();
        }
        new.truncate(room);
        for range in new {
            // The stall of a read counts once, however many new ranges it has.
            let new = Touch { range, stall: std::mem::take(&mut stall), ..touch.clone() };
            match self.touches.last_mut().filter(|last| follows(last, &new)) {
                Some(last) => {
                    last.range.end = new.range.end;
                    last.stall += new.stall;
                }
                None => self.touches.push(new),
            }
            if let (Some(journal), Some(last)) = (&mut self.journal, self.touches.last()) {
                journal::put(&mut **journal, self.touches.len() - 1, last);
            }
        }
    }

    fn truncate(&mut self) {
        self.truncated = true;
        if let Some(journal) = &mut self.journal {
            journal::truncate(&mut **journal);
        }
    }
}

/// Whether `new` continues where `last` ended, at about the same time.
fn follows(last: &Touch, new: &Touch) -> bool {
    let end = new.at.saturating_add(new.stall);
    let close = new.at >= last.at && end.saturating_sub(last.at) <= JOINED_WITHIN;
    close && (last.object, last.range.end, last.from) == (new.object, new.range.start, new.from)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    const DEMAND: Origin = Origin::Demand;

    fn header() -> Header {
        Header::new("app:v1", Digest::of(b"manifest"), "default")
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Object, range, time in milliseconds, stall in milliseconds.
    fn noted(recorder: &Recorder) -> Vec<(Digest, Range<u64>, u128, u128)> {
        let touches = recorder.finish(header()).touches.into_iter();
        touches.map(|touch| (touch.object, touch.range, touch.at.as_millis(), touch.stall.as_millis())).collect()
    }

    #[test]
    fn only_untouched_ranges_are_recorded() {
        let (recorder, object) = (Recorder::new(), Digest::of(b"a"));
        for (at, range) in [(0, 10..20), (100, 10..20), (200, 0..30), (300, 5..25), (400, 90..200), (500, 50..50)] {
            recorder.touch_at(millis(at), object, 100, range, DEMAND, millis(1));
        }
        let expected = [(10..20, 0, 1), (0..10, 200, 1), (20..30, 200, 0), (90..100, 400, 1)];
        assert_eq!(noted(&recorder), expected.map(|(range, at, stall)| (object, range, at, stall)));
    }

    #[test]
    fn steps_through_a_file_are_joined_for_a_moment() {
        let (recorder, object) = (Recorder::new(), Digest::of(b"a"));
        for step in 0..30 {
            recorder.touch_at(millis(step), object, 300, step * 10..step * 10 + 10, DEMAND, Duration::ZERO);
        }
        let expected = [(0..110, 0), (110..220, 11), (220..300, 22)];
        assert_eq!(noted(&recorder), expected.map(|(range, at)| (object, range, at, 0)));
    }

    #[test]
    fn steps_are_not_joined_over_another_file_or_another_origin() {
        let (recorder, [a, b]) = (Recorder::new(), [Digest::of(b"a"), Digest::of(b"b")]);
        recorder.touch_at(millis(0), a, 100, 0..10, DEMAND, Duration::ZERO);
        recorder.touch_at(millis(1), b, 100, 0..10, DEMAND, Duration::ZERO);
        recorder.touch_at(millis(2), a, 100, 10..20, DEMAND, Duration::ZERO);
        recorder.touch_at(millis(3), a, 100, 20..30, Origin::Local, Duration::ZERO);
        assert_eq!(noted(&recorder).len(), 4);
    }

    #[test]
    fn touches_stand_in_the_order_in_which_they_were_asked_for() {
        let (recorder, [slow, quick]) = (Recorder::new(), [Digest::of(b"slow"), Digest::of(b"quick")]);
        recorder.touch_at(millis(5), quick, 10, 0..10, DEMAND, millis(1));
        recorder.touch_at(millis(2), slow, 10, 0..10, DEMAND, millis(90));
        assert_eq!(noted(&recorder), [(slow, 0..10, 2, 90), (quick, 0..10, 5, 1)]);
    }

    #[test]
    fn an_object_has_one_size() {
        let (recorder, object) = (Recorder::new(), Digest::of(b"a"));
        recorder.touch_at(millis(0), object, 10, 0..5, DEMAND, Duration::ZERO);
        recorder.touch_at(millis(1), object, 20, 5..20, DEMAND, Duration::ZERO);
        assert_eq!(noted(&recorder), [(object, 0..5, 0, 0)]);
    }

    #[test]
    fn a_full_trace_is_marked_and_can_still_be_read() {
        let (recorder, object, size) = (Recorder::new(), Digest::of(b"a"), 4 * TOUCHES as u64);
        let touch = |at| recorder.touch_at(millis(0), object, size, 2 * at..2 * at + 1, DEMAND, Duration::ZERO);
        (0..TOUCHES as u64).for_each(touch);
        assert!(!recorder.finish(header()).header.truncated);
        touch(TOUCHES as u64);
        let trace = recorder.finish(header());
        assert_eq!((trace.touches.len(), trace.header.truncated), (TOUCHES, true));
        assert_eq!(Trace::read(&trace.write()), Ok(trace));
    }

    #[test]
    fn touches_after_a_day_do_not_belong_to_the_start() {
        let recorder = Recorder::new();
        recorder.touch_at(LONGEST + millis(1), Digest::of(b"a"), 10, 0..10, DEMAND, Duration::ZERO);
        let trace = recorder.finish(header());
        assert!(trace.touches.is_empty() && trace.header.truncated);
    }

    #[test]
    fn threads_note_every_byte_once() {
        let (recorder, object) = (Recorder::new(), Digest::of(b"a"));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for step in 0..250_u64 {
                        let start = step * 4 + thread;
                        recorder.touch(object, 1000, start..start + 10, DEMAND, Duration::ZERO);
                    }
                });
            }
        });
        let trace = recorder.finish(header());
        let bytes: u64 = trace.touches.iter().map(|touch| touch.range.end - touch.range.start).sum();
        assert_eq!(bytes, 1000);
        assert_eq!(Trace::read(&trace.write()), Ok(trace));
    }

    /// A journal that outlives its recorder.
    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Journal for Memory {
        fn write_at(&mut self, offset: u64, bytes: &[u8]) {
            self.0.lock().write_at(offset, bytes);
        }
    }

    impl Memory {
        fn recorder(&self, now: Duration) -> Recorder {
            Recorder::journaled(Box::new(self.clone()), now)
        }

        fn continued(&self, now: Duration) -> Result<Recorder, InvalidJournal> {
            let bytes = self.0.lock().clone();
            Recorder::continued(&bytes, Box::new(self.clone()), now)
        }
    }

    #[test]
    fn time_goes_on_while_no_process_records() {
        let memory = Memory::default();
        memory.recorder(millis(10_000)).touch(Digest::of(b"a"), 10, 0..10, DEMAND, Duration::ZERO);
        let next = memory.continued(millis(40_000)).unwrap();
        next.touch(Digest::of(b"b"), 10, 0..10, DEMAND, Duration::ZERO);
        let at: Vec<Duration> = next.finish(header()).touches.iter().map(|touch| touch.at).collect();
        assert!(at[0] < millis(20_000) && at[1] >= millis(30_000) && at[1] < millis(50_000), "{at:?}");
        assert_eq!(memory.continued(millis(9_999)).unwrap_err(), InvalidJournal, "the clock of another machine");
    }

    #[test]
    fn a_full_recording_is_full_in_the_next_process_too() {
        let (memory, object, size) = (Memory::default(), Digest::of(b"a"), 4 * TOUCHES as u64);
        let recorder = memory.recorder(Duration::ZERO);
        for at in 0..=TOUCHES as u64 {
            recorder.touch_at(millis(0), object, size, 2 * at..2 * at + 1, DEMAND, Duration::ZERO);
        }
        assert_eq!(memory.0.lock().len() as u64, crate::JOURNAL_BYTES);
        let next = memory.continued(Duration::ZERO).unwrap();
        next.touch_at(millis(0), Digest::of(b"b"), 10, 0..10, DEMAND, Duration::ZERO);
        let trace = next.finish(header());
        assert!(trace.header.truncated && trace == recorder.finish(header()));
    }

    proptest! {
        /// Touches of two objects, in steps that are often joined. The process changes after some of them, and within the write of an entry.
        #[test]
        fn a_recording_in_several_processes_is_the_same_as_in_one(
            touches in prop::collection::vec(
                (0_u64..4, 0..2_u8, 0_u64..64, 1_u64..16, any::<bool>(), 0_u64..2, any::<bool>()), 0..64)
        ) {
            let (memory, plain) = (Memory::default(), Recorder::new());
            let (mut recorder, mut at) = (memory.recorder(Duration::ZERO), 0);
            for (step, object, start, length, is_local, stall, is_killed) in touches {
                at += step;
                let object = Digest::of(&[object]);
                let from = if is_local { Origin::Local } else { DEMAND };
                for recorder in [&plain, &recorder] {
                    recorder.touch_at(millis(at), object, 72, start..start + length, from, millis(stall));
                }
                if is_killed {
                    let whole = memory.0.lock().len();
                    memory.0.lock().resize(whole + usize::try_from(start).unwrap(), 0);
                    recorder = memory.continued(Duration::ZERO).unwrap();
                }
                prop_assert_eq!(recorder.finish(header()), plain.finish(header()));
            }
        }
    }
}
