//! [`LogLimit`]: bounds how many log lines of one cause are written.
//!
//! A reader or a client can trigger the same line any number of times. Each place that writes such a line has its own
//! limit: the first lines are written at once, then one per period, with the number of lines that were omitted.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Lines that are written at once: enough to show whether several files or clients are affected.
const BURST: u32 = 5;
/// One more line may be written after each of these periods. A line of 500 bytes per minute comes to 700 KB a day.
const PERIOD: Duration = Duration::from_secs(60);

/// The limit of the log lines of one cause. It fits in a `static`:
///
/// ```
/// # use tarpon_blob::LogLimit;
/// static REFUSED: LogLimit = LogLimit::new();
/// if let Some(left_out) = REFUSED.admit() {
///     tracing::warn!("a client was refused{left_out}");
/// }
/// ```
#[derive(Debug)]
pub struct LogLimit(Mutex<Allowance>);

#[derive(Debug)]
struct Allowance {
    /// Start of the current period; `None` before the first line.
    since: Option<Instant>,
    /// Lines that may be written now.
    left: u32,
    left_out: u64,
}

/// The number of lines of the cause that were omitted before this one. Displays as nothing, or as ` (N similar lines omitted)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeftOut(u64);

impl LogLimit {
    /// A limit that has admitted nothing yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Allowance { since: None, left: BURST, left_out: 0 }))
    }

    /// `Some` if one more line may be written now: append the value to it. `None`: omit the line.
    pub fn admit(&self) -> Option<LeftOut> {
        let now = Instant::now();
        let mut state = self.0.lock();
        state.refill(now);
        if state.left == 0 {
            state.left_out += 1;
            return None;
        }
        if state.left == BURST {
            state.since = Some(now);
        }
        state.left -= 1;
        Some(LeftOut(std::mem::take(&mut state.left_out)))
    }
}

impl Default for LogLimit {
    fn default() -> Self {
        Self::new()
    }
}

impl Allowance {
    fn refill(&mut self, now: Instant) {
        let Some(since) = self.since else { return };
        let periods = now.saturating_duration_since(since).as_secs() / PERIOD.as_secs();
        let periods = u32::try_from(periods).unwrap_or(u32::MAX).min(BURST - self.left);
        self.left += periods;
        self.since = Some(since + PERIOD * periods);
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" (1 similar line omitted)"),
            number => write!(f, " ({number} similar lines omitted)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that `tries` tries in a row write.
    fn lines(limit: &LogLimit, tries: u32) -> Vec<String> {
        (0..tries).filter_map(|_| limit.admit()).map(|left_out| format!("line{left_out}")).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_lines_are_written_and_then_one_in_each_period() {
        let limit = LogLimit::new();
        assert_eq!(lines(&limit, 1_000), ["line"; 5]);
        tokio::time::advance(PERIOD).await;
        assert_eq!(lines(&limit, 2), ["line (995 similar lines omitted)"]);
        tokio::time::advance(PERIOD).await;
        assert_eq!(lines(&limit, 1), ["line (1 similar line omitted)"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cause_that_was_quiet_has_its_first_lines_again() {
        let limit = LogLimit::new();
        lines(&limit, 6);
        tokio::time::advance(PERIOD * 1_000).await;
        let written = lines(&limit, 100);
        assert_eq!((written.len(), written[0].as_str()), (5, "line (1 similar line omitted)"));
        assert_eq!(lines(&limit, 100), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_day_of_errors_is_a_bounded_number_of_lines() {
        let limit = LogLimit::new();
        let mut written = 0;
        for _second in 0..24 * 3600 {
            written += lines(&limit, 10).len();
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(written, 5 + 24 * 60 - 1);
    }
}
