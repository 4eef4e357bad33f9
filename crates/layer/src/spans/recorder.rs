//! Records the beginnings of spans while a layer is decoded.

use miniz_oxide::inflate::core::BlockBoundaryState;

use super::checkpoint::{self, Checkpoint};
use super::sparse::Needed;
use super::{SpanStarts, WINDOW_BYTES};

/// A place where decoding needs no window (member, frame) begins a span if the one before has at least this part of a span's
/// bytes: such places cost nothing, but spans of a few KiB would cost a request each.
const FREE_PART: u64 = 4;
/// Block boundaries that are examined once a span is long enough. The next span begins at the one with the smallest window. Windows
/// are most of an index. Each examination costs the time of decoding 64 KiB.
const CANDIDATES: usize = 4;
/// Encoded bytes that are kept to find the needed part of a window. 32 KiB decoded are hardly ever more. If they are, the window is
/// kept whole.
const TRAIL_BYTES: usize = 4 * WINDOW_BYTES;

/// Memory of a start without its window: here, in the list of the walker, and in index and chunk table.
const START: usize = 192;
/// Copies of a window at a time.
const COPIES: usize = 3;

/// The beginning of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    /// Offset in the decoded layer.
    pub(super) decoded: u64,
    /// Offset in the blob of its first byte.
    pub(super) offset: u64,
    /// Bits of that byte that belong to the span before.
    pub(super) used_bits: u8,
    /// The window, if it starts in the middle of a member.
    pub(super) window: Option<Box<[u8]>>,
}

pub(super) struct Recorder {
    span_bytes: u64,
    pub(super) starts: SpanStarts,
    pub(super) spans: Vec<Start>,
    /// The boundary under examination.
    trail: Option<Trail>,
    /// The best candidate since the last span began.
    best: Option<Candidate>,
    looks: usize,
    /// Bytes of `spans` and `starts`.
    held: u64,
}

/// A block boundary, and the bytes after it until the needed part of its window is known.
struct Trail {
    start: Start,
    state: BlockBoundaryState,
    window: Box<[u8; WINDOW_BYTES]>,
    encoded: Vec<u8>,
    /// The end of the 32 KiB.
    until: u64,
}

struct Candidate {
    start: Start,
    window: Box<[u8; WINDOW_BYTES]>,
    cost: usize,
}

impl Recorder {
    pub(super) fn new(span_bytes: u64) -> Self {
        let (starts, spans) = (SpanStarts::default(), Vec::new());
        Self { span_bytes, starts, spans, trail: None, best: None, looks: 0, held: 0 }
    }

    /// Whether the next block boundary should be examined.
    pub(super) fn is_due(&self, decoded: u64) -> bool {
        self.trail.is_none() && decoded - self.last() >= self.span_bytes
    }

    /// Handles a place where decoding can start without a window.
    pub(super) fn free(&mut self, decoded: u64, offset: u64) {
        self.settle();
        if self.spans.is_empty() || decoded - self.last() >= self.span_bytes / FREE_PART {
            self.starts.push(decoded);
            self.push(Start { decoded, offset, used_bits: 0, window: None });
        }
    }

    /// Handles a block boundary: `taken` bytes of the blob were consumed, `before` was decoded from the member before it.
    pub(super) fn block(&mut self, decoded: u64, taken: u64, state: BlockBoundaryState, before: &[u8]) {
        let shared = u64::from(state.num_bits > 0);
        let used_bits = (8 - state.num_bits) % 8;
        let start = Start { decoded, offset: taken - shared, used_bits, window: None };
        let mut window = Box::new([0; WINDOW_BYTES]);
        let tail = &before[before.len().saturating_sub(WINDOW_BYTES)..];
        window[WINDOW_BYTES - tail.len()..].copy_from_slice(tail);
        self.starts.push(decoded);
        self.trail = Some(Trail { start, state, window, encoded: Vec::new(), until: decoded + WINDOW_BYTES as u64 });
    }

    /// Records that `encoded` was consumed, and everything up to `decoded` was decoded from it.
    pub(super) fn follow(&mut self, encoded: &[u8], decoded: u64) {
        let Some(trail) = &mut self.trail else { return };
        let room = TRAIL_BYTES.saturating_sub(trail.encoded.len());
        trail.encoded.extend_from_slice(&encoded[..encoded.len().min(room)]);
        if decoded >= trail.until {
            self.measure();
            if self.looks == CANDIDATES {
                self.settle();
            }
        }
    }

    /// Begins a span at the best place that was found, at the latest when the member ends.
    pub(super) fn settle(&mut self) {
        self.measure();
        self.looks = 0;
        if let Some(Candidate { start, window, .. }) = self.best.take() {
            self.push(Start { window: Some(checkpoint::pack(&window, checkpoint::WINDOW_LEVEL)), ..start });
        }
    }

    fn push(&mut self, start: Start) {
        let window = start.window.as_ref().map_or(0, |window| window.len());
        // Windows are copied into the index of the layer and into the chunk table of the image.
        self.held += (START + COPIES * window) as u64;
        self.spans.push(start);
    }

    /// Memory of all recorded state.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// Finds the needed part of the boundary's window, and whether it is smaller than any other since the last span began.
    fn measure(&mut self) {
        let Some(Trail { start, state, mut window, encoded, .. }) = self.trail.take() else { return };
        let needed = Needed::by(&state, &encoded);
        let is_known = encoded.len() < TRAIL_BYTES || needed.is_all();
        let cost = if is_known { needed.thin(&mut window) } else { WINDOW_BYTES };
        self.looks += 1;
        if self.best.as_ref().is_none_or(|best| cost < best.cost) {
            self.best = Some(Candidate { start, window, cost });
        }
    }

    fn last(&self) -> u64 {
        self.spans.last().map_or(0, |start| start.decoded)
    }
}

impl Start {
    pub(super) fn checkpoint(&self) -> Option<Checkpoint> {
        let window = self.window.clone()?;
        Some(Checkpoint { offset: self.offset, used_bits: self.used_bits, window })
    }
}
