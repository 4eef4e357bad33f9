//! Notes the beginnings of spans while a layer is decoded.

use miniz_oxide::inflate::core::BlockBoundaryState;

use super::checkpoint::{self, Checkpoint};
use super::{SpanStarts, WINDOW_BYTES, sparse};

/// A place where decoding needs no window (member, frame) begins a span if the one before has at least this part of a span's
/// bytes: such places cost nothing, but spans of a few KiB would cost a request each.
const FREE_PART: u64 = 4;
/// Encoded bytes that are kept to see what of a window is needed. 32 KiB decoded are hardly ever more; if they are, the
/// window is kept whole.
const TRAIL_BYTES: usize = 4 * WINDOW_BYTES;

/// The beginning of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Start {
    /// In the decoded layer.
    pub(super) decoded: u64,
    /// In the blob: its first byte.
    pub(super) offset: u64,
    /// Bits of that byte that belong to the span before.
    pub(super) used_bits: u8,
    /// What deflate refers to, if it starts in the middle of a member.
    pub(super) window: Option<Box<[u8]>>,
}

pub(super) struct Recorder {
    span_bytes: u64,
    pub(super) starts: SpanStarts,
    pub(super) spans: Vec<Start>,
    trail: Option<Trail>,
}

/// What follows a checkpoint, until it is known what of the window it needs.
struct Trail {
    state: BlockBoundaryState,
    window: Box<[u8; WINDOW_BYTES]>,
    encoded: Vec<u8>,
    /// Where 32 KiB are over.
    until: u64,
}

impl Recorder {
    pub(super) fn new(span_bytes: u64) -> Self {
        Self { span_bytes, starts: SpanStarts::default(), spans: Vec::new(), trail: None }
    }

    /// Whether the span has become long enough at this place.
    pub(super) fn is_due(&self, decoded: u64) -> bool {
        decoded - self.last() >= self.span_bytes
    }

    /// At a place where decoding can start without a window.
    pub(super) fn free(&mut self, decoded: u64, offset: u64) {
        self.end_trail();
        if self.spans.is_empty() || decoded - self.last() >= self.span_bytes / FREE_PART {
            self.push(Start { decoded, offset, used_bits: 0, window: None });
        }
    }

    /// At a boundary of blocks: `taken` bytes of the blob were taken, `before` was decoded from the member before it.
    pub(super) fn block(&mut self, decoded: u64, taken: u64, state: BlockBoundaryState, before: &[u8]) {
        self.end_trail();
        let shared = u64::from(state.num_bits > 0);
        let used_bits = (8 - state.num_bits) % 8;
        self.push(Start { decoded, offset: taken - shared, used_bits, window: None });
        let mut window = Box::new([0; WINDOW_BYTES]);
        let tail = &before[before.len().saturating_sub(WINDOW_BYTES)..];
        window[WINDOW_BYTES - tail.len()..].copy_from_slice(tail);
        self.trail = Some(Trail { state, window, encoded: Vec::new(), until: decoded + WINDOW_BYTES as u64 });
    }

    /// `encoded` was taken, and everything up to `decoded` came out of it.
    pub(super) fn follow(&mut self, encoded: &[u8], decoded: u64) {
        let Some(trail) = &mut self.trail else { return };
        let room = TRAIL_BYTES.saturating_sub(trail.encoded.len());
        trail.encoded.extend_from_slice(&encoded[..encoded.len().min(room)]);
        if decoded >= trail.until {
            self.end_trail();
        }
    }

    /// Settles what the last checkpoint needs: at the latest when its member ends.
    pub(super) fn end_trail(&mut self) {
        let Some(mut trail) = self.trail.take() else { return };
        if trail.encoded.len() < TRAIL_BYTES {
            sparse::thin(&mut trail.window, &trail.state, &trail.encoded);
        }
        if let Some(start) = self.spans.last_mut() {
            start.window = Some(checkpoint::pack(&trail.window));
        }
    }

    fn push(&mut self, start: Start) {
        self.starts.push(start.decoded);
        self.spans.push(start);
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
