//! [`Page`]: the layout. All measures are whole pixels, so that every machine draws the same.

use std::time::Duration;

use crate::model::{Trace, micros};
use crate::summary::TouchedFile;

/// The page.
pub(super) const WIDTH: u64 = 1100;
/// Left edge of the rows; the names are to the left of it.
pub(super) const LEFT: u64 = 320;
/// Width of the size axis.
const RIGHT_MARGIN: u64 = 76;
/// Title, numbers, legend.
pub(super) const HEAD: u64 = 118;
/// Top and height of the curve.
pub(super) const CURVE: (u64, u64) = (HEAD + 8, 104);
/// Between the curve and the rows.
const GAP: u64 = 14;
/// Height of the time axis and the layers.
pub(super) const FOOT: u64 = 64;
/// Maximum number of files with rows that are high enough for names.
const FEW_FILES: usize = 48;
/// Height of such a row.
const ROW: u64 = 16;
/// Minimum and maximum total height of the rows of more files. They share it by size, so that large files are visible.
const ROWS: (u64, u64) = (800, 1600);
/// Maximum number of files with a row. Later files hardly delay a start.
pub(super) const DRAWN_FILES: usize = 4000;

/// The measures of one plot.
pub(super) struct Page {
    /// The time at the right edge.
    pub(super) end: Duration,
    /// Height of the page.
    pub(super) height: u64,
    /// Top and height of each row.
    pub(super) rows: Vec<(u64, u64)>,
}

impl Page {
    /// The page that `trace` needs.
    pub(super) fn of(trace: &Trace, files: &[TouchedFile]) -> Self {
        let last = trace.touches.iter().map(|touch| touch.at + touch.stall).chain(trace.header.ready).max();
        let end = last.unwrap_or_default().max(Duration::from_millis(1));
        let rows = rows(&files[..files.len().min(DRAWN_FILES)]);
        let mut page = Self { end, height: 0, rows };
        page.height = page.bottom() + FOOT;
        page
    }

    /// The horizontal position of a time.
    pub(super) fn x(&self, time: Duration) -> u64 {
        LEFT + share(micros(time), micros(self.end), self.right() - LEFT)
    }

    /// Where the rows end.
    #[expect(clippy::unused_self, reason = "the page is asked for all its edges")]
    pub(super) fn right(&self) -> u64 {
        WIDTH - RIGHT_MARGIN
    }

    /// Where the last row ends.
    pub(super) fn bottom(&self) -> u64 {
        self.rows.last().map_or(CURVE.0 + CURVE.1 + GAP, |(top, height)| top + height)
    }
}

/// The position of `part` out of `whole` on a line of `length`.
pub(super) fn share(part: u64, whole: u64, length: u64) -> u64 {
    let place = u128::from(part.min(whole)) * u128::from(length) / u128::from(whole.max(1));
    u64::try_from(place).unwrap_or(length)
}

fn rows(files: &[TouchedFile]) -> Vec<(u64, u64)> {
    let mut top = CURVE.0 + CURVE.1 + GAP;
    let heights: Vec<u64> = if files.len() <= FEW_FILES {
        files.iter().map(|_| ROW).collect()
    } else {
        let weight = |file: &TouchedFile| 8 + u64::from(file.size.max(1).ilog2());
        let all: u64 = files.iter().map(weight).sum();
        let height = (2 * files.len() as u64).clamp(ROWS.0, ROWS.1);
        files.iter().map(|file| share(weight(file), all, height).max(1)).collect()
    };
    let row = |height| {
        top += height;
        (top - height, height)
    };
    heights.into_iter().map(row).collect()
}
