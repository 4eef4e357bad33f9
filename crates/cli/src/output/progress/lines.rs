//! Progress as plain lines for logs: at most one per second, and one per finished layer.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tarpon_engine::{LayerPlan, Progress};
use tarpon_oci::Digest;

use super::meter::{Meter, Speed};
use super::words::Words;
use crate::line::escape;
use crate::output::print::note;
use crate::size;

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Writes the received bytes to stderr.
pub(super) struct Lines {
    state: Mutex<State>,
}

impl Lines {
    pub(super) fn new(words: &'static Words) -> Self {
        Self { state: Mutex::new(State::new(words, Vec::new(), Instant::now())) }
    }
}

struct State {
    words: &'static Words,
    /// Compressed bytes of the layers that are streamed, by layer; `None` for the others.
    streamed: Vec<Option<u64>>,
    meter: Meter,
    done: usize,
    last: Option<Instant>,
}

impl State {
    fn new(words: &'static Words, streamed: Vec<Option<u64>>, now: Instant) -> Self {
        let meter = Meter::new(streamed.iter().flatten().sum(), now);
        Self { words, streamed, meter, done: 0, last: None }
    }

    fn layers(&self) -> usize {
        self.streamed.iter().flatten().count()
    }

    fn is_streamed(&self, layer: usize) -> bool {
        self.streamed.get(layer).is_some_and(Option::is_some)
    }

    /// Counts received bytes, and returns a line if one is due.
    fn receive(&mut self, layer: usize, bytes: u64, now: Instant) -> Option<String> {
        if !self.is_streamed(layer) {
            return None;
        }
        self.meter.add(bytes, now);
        if now.duration_since(*self.last.get_or_insert(now)) < INTERVAL {
            return None;
        }
        self.last = Some(now);
        let Speed { rate, left } = self.meter.speed(now);
        let done = format!("{} of {} done", self.done, self.layers());
        let facts = [Some(self.meter.amount()), rate, left, Some(done)].into_iter().flatten().collect::<Vec<_>>();
        Some(format!("{} layers: {}", self.words.doing, facts.join(", ")))
    }

    /// Records that so many of a start's missing bytes were requested. Returns the line, if one is due.
    fn start_requested(&mut self, requested: u64, missing: u64, now: Instant) -> Option<String> {
        if !self.streamed.is_empty() || self.meter.total() != missing {
            *self = Self::new(self.words, Vec::new(), now);
            self.meter = Meter::new(missing, now);
        }
        self.meter.add(requested.saturating_sub(self.meter.received()), now);
        if now.duration_since(*self.last.get_or_insert(now)) < INTERVAL {
            return None;
        }
        self.last = Some(now);
        let Speed { rate, left } = self.meter.speed(now);
        let facts = [Some(self.meter.amount()), rate, left].into_iter().flatten().collect::<Vec<_>>();
        Some(format!("{} {}: {}", self.words.doing, self.words.bytes_of, facts.join(", ")))
    }

    /// The line for a finished layer, if it took time.
    fn finish(&mut self, layer: usize) -> Option<String> {
        if !self.is_streamed(layer) {
            return None;
        }
        self.done += 1;
        Some(format!("layer {} {}: {} of {} done", layer + 1, self.words.done, self.done, self.layers()))
    }
}

impl Progress for Lines {
    fn resolved(&self, _: &Digest, layers: &[LayerPlan]) {
        let Ok(mut state) = self.state.lock() else { return };
        let streamed = layers.iter().map(|layer| layer.way.is_streamed().then_some(layer.size)).collect();
        *state = State::new(state.words, streamed, Instant::now());
        if state.layers() > 0 {
            let (total, Words { doing, why, .. }) = (size::human(state.meter.total()), state.words);
            note(&format!("{doing} {} of {} layers, {total}{why}", state.layers(), layers.len()));
        }
    }

    fn received(&self, layer: usize, bytes: u64) {
        let line = self.state.lock().ok().and_then(|mut state| state.receive(layer, bytes, Instant::now()));
        line.iter().for_each(|line| note(line));
    }

    fn start_requested(&self, requested: u64, missing: u64) {
        let line =
            self.state.lock().ok().and_then(|mut state| state.start_requested(requested, missing, Instant::now()));
        line.iter().for_each(|line| note(line));
    }

    fn layer_done(&self, layer: usize) {
        let line = self.state.lock().ok().and_then(|mut state| state.finish(layer));
        line.iter().for_each(|line| note(line));
    }

    fn note(&self, line: &str) {
        note(&escape(line.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::PREPARING;
    use super::*;

    #[test]
    fn at_most_one_line_a_second_counts_bytes() {
        let start = Instant::now();
        let mut state = State::new(&PREPARING, vec![Some(4096), None, Some(4096)], start);
        assert_eq!(state.receive(0, 1024, start), None);
        assert_eq!(state.receive(2, 1024, start + INTERVAL / 2), None);
        let line = state.receive(0, 1024, start + INTERVAL).expect("a second has passed");
        assert_eq!(line, "streaming layers: 3.0 KiB of 8.0 KiB, 3.0 KiB/s, 2 s left, 0 of 2 done");
        assert_eq!(state.receive(0, 1024, start + INTERVAL), None);
    }

    #[test]
    fn a_start_is_counted_after_the_layers() {
        let start = Instant::now();
        let mut state = State::new(&PREPARING, vec![Some(4096)], start);
        assert_eq!(state.start_requested(1024, 4096, start), None);
        let line = state.start_requested(3072, 4096, start + INTERVAL).expect("a second has passed");
        assert_eq!(line, "streaming what a start needs: 3.0 KiB of 4.0 KiB, 3.0 KiB/s, 1 s left");
    }

    #[test]
    fn only_streamed_layers_are_worth_a_line() {
        let mut state = State::new(&PREPARING, vec![Some(4096), None], Instant::now());
        assert_eq!(state.receive(1, 10, Instant::now()), None);
        assert_eq!(state.finish(1), None);
        assert_eq!(state.finish(0).as_deref(), Some("layer 1 indexed: 1 of 1 done"));
    }
}
