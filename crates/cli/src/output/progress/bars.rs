//! Bars on a terminal: one for each layer that is streamed, gone when the work is done.

use std::collections::BTreeMap;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tarpon_engine::{LayerPlan, Progress};
use tarpon_oci::Digest;

use super::Words;
use crate::output::{escape, short_digest};

/// Redraws in a second; more would only cost.
const REDRAWS: u8 = 10;
/// Time after which a rate is drawn anew though nothing arrives.
const TICK: Duration = Duration::from_millis(200);

/// One bar for each layer that has to be streamed. Layers with a table of contents are too quick for one.
pub(super) struct Bars {
    words: &'static Words,
    all: MultiProgress,
    layers: std::sync::Mutex<BTreeMap<usize, ProgressBar>>,
}

impl Bars {
    pub(super) fn new(words: &'static Words) -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(REDRAWS));
        Self { words, all, layers: std::sync::Mutex::default() }
    }

    fn with(&self, layer: usize, f: impl FnOnce(&ProgressBar)) {
        if let Ok(layers) = self.layers.lock()
            && let Some(bar) = layers.get(&layer)
        {
            f(bar);
        }
    }
}

impl Progress for Bars {
    fn resolved(&self, _: &Digest, layers: &[LayerPlan]) {
        let style = ProgressStyle::with_template(
            "  {prefix}  {bar:30}  {binary_bytes:>10} of {binary_total_bytes:10}  {binary_bytes_per_sec:>12}  {msg}",
        )
        .expect("the template is well formed")
        .progress_chars("━╸─");
        let Ok(mut bars) = self.layers.lock() else { return };
        for (number, layer) in layers.iter().enumerate().filter(|(_, layer)| layer.way.is_streamed()) {
            let bar = self.all.add(ProgressBar::new(layer.size).with_style(style.clone()));
            bar.set_prefix(short_digest(&layer.digest));
            bar.enable_steady_tick(TICK);
            bars.insert(number, bar);
        }
    }

    fn received(&self, layer: usize, bytes: u64) {
        self.with(layer, |bar| {
            bar.inc(bytes);
            if bar.length().is_some_and(|length| bar.position() >= length) {
                bar.set_message(self.words.arrived);
            }
        });
    }

    fn layer_done(&self, layer: usize) {
        self.with(layer, |bar| bar.finish_with_message("done"));
    }

    fn note(&self, line: &str) {
        // Through the bars, so that it lands above them. A terminal that is gone loses the line.
        drop(self.all.println(escape(line.as_bytes())));
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        drop(self.all.clear());
    }
}
