//! `--scrub` of the subcommands that serve a store, and the scrub in `tarpon status`.

use std::num::NonZeroU64;

use clap::Args;
use tarpon_engine::ScrubStatus;
use tarpon_engine::store::ScrubRun;

use crate::output::listing;
use crate::size;

/// Minimum rate: at less, a store of the default size (20 GiB) takes half of the week in which it is scrubbed once.
const MIN_RATE: u64 = 64 << 10;

/// Whether the store is scrubbed.
#[derive(Debug, Args)]
pub(crate) struct ScrubChoice {
    /// Verify the whole store once a week, at most RATE bytes per second [without a rate: 16MiB], and repair damage
    ///
    /// Runs in a thread of the lowest processor and disk priority, without the page cache. Damaged content is moved out and fetched again,
    /// as by `tarpon cache verify`, and mounts are repaired. `tarpon status` shows the last run. The next server continues an interrupted
    /// run.
    #[arg(
        long,
        value_name = "RATE",
        env = "TARPON_SCRUB",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "16MiB",
        value_parser = rate
    )]
    pub(crate) scrub: Option<NonZeroU64>,
}

/// Parses a rate: `20M`, `20MB/s`.
pub(super) fn rate(text: &str) -> Result<NonZeroU64, String> {
    let bytes = size::parse(text.strip_suffix("/s").unwrap_or(text))?;
    let enough = NonZeroU64::new(bytes).filter(|bytes| bytes.get() >= MIN_RATE);
    enough.ok_or_else(|| {
        let least = size::human(MIN_RATE);
        format!("{} is less than {least} per second; give a unit, such as 16M", size::human(bytes))
    })
}

/// `running (16 MiB/s at most): 120 objects, 3.0 MiB; last run ended 2026-11-20 10:00 UTC: 1500 objects, 2.0 GiB, none damaged`.
pub(crate) fn shown(scrub: &ScrubStatus) -> String {
    let now = match (scrub.rate, scrub.running) {
        (Some(rate), true) => format!("running, {}/s at most", size::human(rate.get())),
        (Some(_), false) => "on".to_owned(),
        (None, _) => "off".to_owned(),
    };
    let under_way = match (&scrub.under_way, scrub.running) {
        (Some(run), true) => format!(": {}", figures(run)),
        (Some(run), false) => format!("; stopped after {}", figures(run)),
        (None, _) => String::new(),
    };
    let last = scrub.last.as_ref().map(|run| {
        let ended = listing::time(run.ended.unwrap_or_default().try_into().unwrap_or(i64::MAX));
        format!("; last run ended {ended}: {}", figures(run))
    });
    format!("{now}{under_way}{}", last.unwrap_or_default())
}

fn figures(run: &ScrubRun) -> String {
    let s = if run.objects == 1 { "" } else { "s" };
    let mut text = format!("{} object{s}, {}", run.objects, size::human(run.bytes));
    let bad = [(run.damaged, "damaged"), (run.unreadable, "unreadable"), (run.skipped, "skipped")];
    if bad.iter().all(|(count, _)| *count == 0) {
        text.push_str(", none damaged");
    }
    for (count, what) in bad.iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!(", {count} {what}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use tarpon_engine::store::SCRUB_RATE;

    use super::*;

    #[test]
    fn a_rate_has_a_unit_and_the_default_is_that_of_the_store() {
        for good in ["16MiB", "16M", "16M/s", "16777216"] {
            assert_eq!(rate(good), Ok(SCRUB_RATE), "{good}");
        }
        for wrong in ["", "0", "16", "63K", "16M/h", "-1"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        let error = rate("16").unwrap_err();
        assert_eq!(error, "16 B is less than 64 KiB per second; give a unit, such as 16M");
    }

    #[test]
    fn a_scrub_is_one_line() {
        let run = ScrubRun { objects: 1500, bytes: 2 << 30, ended: Some(1_767_225_600), ..ScrubRun::default() };
        let off = ScrubStatus { last: Some(run), ..ScrubStatus::default() };
        let last = "last run ended 2026-01-01 00:00 UTC: 1500 objects, 2.0 GiB, none damaged";
        assert_eq!(shown(&off), format!("off; {last}"));
        let some = ScrubRun { objects: 1, bytes: 3, ended: None, damaged: 1, unreadable: 2, ..run };
        let on = ScrubStatus { rate: Some(SCRUB_RATE), under_way: Some(some), ..off };
        let so_far = "1 object, 3 B, 1 damaged, 2 unreadable";
        assert_eq!(shown(&on), format!("on; stopped after {so_far}; {last}"));
        let running = ScrubStatus { running: true, last: None, ..on };
        assert_eq!(shown(&running), format!("running, 16 MiB/s at most: {so_far}"));
    }
}
