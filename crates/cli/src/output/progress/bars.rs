//! Progress on a terminal: one line for all layers together, erased at the end.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use tarpon_engine::{LayerPlan, Progress};
use tarpon_oci::Digest;

use super::meter::{Meter, Speed};
use super::words::Words;
use crate::line::escape;
use crate::output::print;

/// Redraws per second; more would only cost.
const REDRAWS: u8 = 10;
/// Time after which the line is redrawn even if nothing arrives.
const TICK: Duration = Duration::from_millis(200);
/// Width of the bar in columns.
const BAR: usize = 20;
/// Width of a terminal that does not report one.
const COLUMNS: usize = 80;

/// The layers that must be streamed. Those with a table of contents are too quick for a line.
pub(super) struct Bars {
    words: &'static Words,
    bar: ProgressBar,
    total: Arc<Mutex<Option<Total>>>,
}

struct Total {
    meter: Meter,
    streamed: Vec<bool>,
}

impl Bars {
    pub(super) fn new(words: &'static Words) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(REDRAWS));
        Self { words, bar, total: Arc::default() }
    }

    /// Begins to show these bytes.
    fn show(&self, bytes: u64, streamed: Vec<bool>) {
        let Ok(mut total) = self.total.lock() else { return };
        *total = Some(Total { meter: Meter::new(bytes, Instant::now()), streamed });
        drop(total);
        let (words, total) = (self.words, self.total.clone());
        let draw = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            let line = total
                .lock()
                .ok()
                .and_then(|total| Some(line(words, &total.as_ref()?.meter, Instant::now(), columns())));
            // An empty line is better than half a line.
            let _written = out.write_str(&line.unwrap_or_default());
        };
        let style = ProgressStyle::with_template("{line}").expect("the template is well formed").with_key("line", draw);
        self.bar.set_style(style);
        self.bar.enable_steady_tick(TICK);
    }

    /// Whether the bytes that are shown are those of a start.
    fn shows_start(&self) -> bool {
        self.total.lock().is_ok_and(|total| total.as_ref().is_some_and(|total| total.streamed.is_empty()))
    }
}

impl Progress for Bars {
    fn resolved(&self, _: &Digest, layers: &[LayerPlan]) {
        let streamed: Vec<bool> = layers.iter().map(|layer| layer.way.is_streamed()).collect();
        let bytes = layers.iter().filter(|layer| layer.way.is_streamed()).map(|layer| layer.size).sum();
        if !streamed.contains(&true) {
            return;
        }
        self.show(bytes, streamed);
    }

    fn start_requested(&self, requested: u64, missing: u64) {
        // A server reports nothing before it has looked for what is missing.
        if missing == 0 {
            return;
        }
        if !self.shows_start() {
            self.show(missing, Vec::new());
        }
        if let Ok(mut total) = self.total.lock()
            && let Some(total) = total.as_mut()
        {
            total.meter.set_total(missing);
            let more = requested.saturating_sub(total.meter.received());
            total.meter.add(more, Instant::now());
        }
    }

    fn received(&self, layer: usize, bytes: u64) {
        let Ok(mut total) = self.total.lock() else { return };
        if let Some(total) = total.as_mut().filter(|total| total.streamed.get(layer) == Some(&true)) {
            total.meter.add(bytes, Instant::now());
        }
    }

    fn note(&self, line: &str) {
        let print = || print::note(&escape(line.as_bytes()));
        match self.total.lock().is_ok_and(|total| total.is_some()) {
            // The progress line is hidden while the note is printed.
            true => self.bar.suspend(print),
            false => print(),
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        if self.total.lock().is_ok_and(|total| total.is_some()) {
            self.bar.finish_and_clear();
        }
    }
}

/// The most detailed line that fits into so many columns.
fn line(words: &Words, meter: &Meter, now: Instant, columns: usize) -> String {
    let amount = meter.amount();
    let Speed { rate, left } =
        if meter.is_complete() { Speed { rate: Some(words.arrived.to_owned()), left: None } } else { meter.speed(now) };
    let with_left = [Some(amount.clone()), left].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let numbers = match &rate {
        Some(rate) => with_left.replacen(&amount, &format!("{amount}, {rate}"), 1),
        None => with_left.clone(),
    };
    let candidates = [
        format!("{}  {}  {numbers}", words.title, bar(meter)),
        format!("{}: {numbers}", words.title),
        format!("{}: {numbers}", words.doing),
        numbers,
        with_left,
        amount,
    ];
    // The last column stays empty: some terminals wrap after it.
    let fits = |line: &String| line.chars().count() < columns;
    candidates.into_iter().find(fits).unwrap_or_else(|| crate::size::percent(meter.received(), meter.total()))
}

fn bar(meter: &Meter) -> String {
    let part = u128::from(meter.received().min(meter.total())) * BAR as u128;
    let full = part.checked_div(u128::from(meter.total())).and_then(|full| usize::try_from(full).ok()).unwrap_or(BAR);
    format!("{}{}", "━".repeat(full), "─".repeat(BAR - full))
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::super::words::{PREFETCHING, PREPARING, PULLING};
    use super::*;

    fn meter(now: Instant) -> Meter {
        let mut meter = Meter::new(37 << 20, now);
        meter.add(6 << 20, now + Duration::from_secs(1));
        meter.add(6 << 20, now + Duration::from_secs(2));
        meter
    }

    #[test]
    fn the_line_shows_operation_reason_rate_and_time_left() {
        let start = Instant::now();
        let (meter, now) = (meter(start), start + Duration::from_secs(2));
        assert_eq!(
            line(&PREPARING, &meter, now, 120),
            "streaming (no table of contents)  ━━━━━━──────────────  12 MiB of 37 MiB, 6.0 MiB/s, 5 s left"
        );
        assert_eq!(
            line(&PREPARING, &meter, now, 80),
            "streaming (no table of contents): 12 MiB of 37 MiB, 6.0 MiB/s, 5 s left"
        );
        assert_eq!(line(&PREPARING, &meter, now, 40), "12 MiB of 37 MiB, 6.0 MiB/s, 5 s left");
        assert_eq!(line(&PULLING, &meter, now, 60), "fetching: 12 MiB of 37 MiB, 6.0 MiB/s, 5 s left");
    }

    #[test]
    fn the_line_is_shorter_than_any_terminal_is_wide() {
        let start = Instant::now();
        let mut long = Meter::new(1023 << 30, start);
        long.add(1022 << 20, start + Duration::from_secs(1));
        for (meter, seconds) in [(&meter(start), 2), (&long, 1), (&long, 90)] {
            for columns in 8..=200 {
                let line = line(&PREPARING, meter, start + Duration::from_secs(seconds), columns);
                assert!(!line.is_empty() && line.chars().count() < columns, "{columns}: {line}");
            }
        }
    }

    #[test]
    fn the_total_of_a_start_is_the_last_one_that_is_known() {
        let bars = Bars::new(&PREFETCHING);
        let amount = || bars.total.lock().unwrap().as_ref().map(|total| total.meter.amount());
        bars.start_requested(0, 0);
        assert_eq!(amount(), None);
        bars.start_requested(1 << 20, 3 << 20);
        assert_eq!(amount().as_deref(), Some("1.0 MiB of 3.0 MiB"));
        bars.start_requested(2 << 20, 4 << 20);
        bars.start_requested(0, 0);
        assert_eq!(amount().as_deref(), Some("2.0 MiB of 4.0 MiB"));
    }

    #[test]
    fn after_the_last_byte_the_line_shows_the_next_step() {
        let start = Instant::now();
        let mut meter = meter(start);
        meter.add(25 << 20, start + Duration::from_secs(3));
        assert_eq!(line(&PREPARING, &meter, start, 40), "streaming: 37 MiB of 37 MiB, indexing");
    }
}
