//! Plain lines for logs: at most one a second, and one when a layer is done.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tarpon_engine::{LayerPlan, Progress};
use tarpon_oci::Digest;

use super::Words;
use crate::output::{escape, note};
use crate::size;

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// Writes to stderr what has arrived.
pub(super) struct Lines {
    state: Mutex<State>,
}

impl Lines {
    pub(super) fn new(words: &'static Words) -> Self {
        Self { state: Mutex::new(State::new(words, Vec::new())) }
    }
}

struct State {
    words: &'static Words,
    /// Compressed bytes of the layers that are streamed, by layer; `None` for the others.
    streamed: Vec<Option<u64>>,
    received: u64,
    done: usize,
    last: Option<Instant>,
}

impl State {
    fn new(words: &'static Words, streamed: Vec<Option<u64>>) -> Self {
        Self { words, streamed, received: 0, done: 0, last: None }
    }

    fn total(&self) -> u64 {
        self.streamed.iter().flatten().sum()
    }

    fn layers(&self) -> usize {
        self.streamed.iter().flatten().count()
    }

    fn is_streamed(&self, layer: usize) -> bool {
        self.streamed.get(layer).is_some_and(Option::is_some)
    }

    /// The line for more bytes, if it is time for one.
    fn receive(&mut self, layer: usize, bytes: u64, now: Instant) -> Option<String> {
        if !self.is_streamed(layer) {
            return None;
        }
        self.received += bytes;
        if now.duration_since(*self.last.get_or_insert(now)) < INTERVAL {
            return None;
        }
        self.last = Some(now);
        let (received, total) = (size::human(self.received), size::human(self.total()));
        let (doing, layers) = (self.words.doing, self.layers());
        Some(format!("{doing} layers: {received} of {total}, {} of {layers} done", self.done))
    }

    /// The line for a finished layer, if it is one that took time.
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
        state.streamed = layers.iter().map(|layer| layer.way.is_streamed().then_some(layer.size)).collect();
        if state.layers() > 0 {
            let (total, Words { doing, how, why, .. }) = (size::human(state.total()), state.words);
            note(&format!("{doing} {} of {} layers{how}, {total}{why}", state.layers(), layers.len()));
        }
    }

    fn received(&self, layer: usize, bytes: u64) {
        let line = self.state.lock().ok().and_then(|mut state| state.receive(layer, bytes, Instant::now()));
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
    use super::super::PREPARING;
    use super::*;

    #[test]
    fn at_most_one_line_a_second_counts_bytes() {
        let mut state = State::new(&PREPARING, vec![Some(4096), None, Some(4096)]);
        let start = Instant::now();
        assert_eq!(state.receive(0, 1024, start), None);
        assert_eq!(state.receive(2, 1024, start + INTERVAL / 2), None);
        let line = state.receive(0, 1024, start + INTERVAL).expect("a second has passed");
        assert_eq!(line, "streaming layers: 3.0 KiB of 8.0 KiB, 0 of 2 done");
        assert_eq!(state.receive(0, 1024, start + INTERVAL), None);
    }

    #[test]
    fn only_streamed_layers_are_worth_a_line() {
        let mut state = State::new(&PREPARING, vec![Some(4096), None]);
        assert_eq!(state.receive(1, 10, Instant::now()), None);
        assert_eq!(state.finish(1), None);
        assert_eq!(state.finish(0).as_deref(), Some("layer 1 indexed: 1 of 1 done"));
    }
}
