//! Formats times and sizes, and chooses round ones for an axis.

use std::time::Duration;

use crate::model;

const UNITS: [(u64, &str); 5] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B")];

/// `1.5 MiB`; no decimals for whole numbers.
pub(super) fn size(bytes: u64) -> String {
    let (unit, name) = UNITS.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1, "B"));
    with_decimals(bytes, unit, name)
}

/// `412 ms`, `1.2 s`; no decimals for whole numbers.
pub(super) fn time(time: Duration) -> String {
    let micros = model::micros(time);
    match micros {
        0 => "0".to_owned(),
        1_000_000.. => with_decimals(micros, 1_000_000, "s"),
        1000.. => with_decimals(micros, 1000, "ms"),
        _ => with_decimals(micros, 1, "µs"),
    }
}

/// One decimal below 100, none above.
fn with_decimals(number: u64, unit: u64, name: &str) -> String {
    let tenths = (u128::from(number) * 10 + u128::from(unit) / 2) / u128::from(unit);
    if tenths >= 1000 || tenths.is_multiple_of(10) {
        format!("{} {name}", (tenths + 5) / 10)
    } else {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }
}

/// At most `most` multiples of a power of two, up to `end`.
pub(super) fn ticks(end: u64, most: u64) -> impl Iterator<Item = u64> {
    let step = (end / most.max(1)).max(1).checked_next_power_of_two().unwrap_or(1 << 63);
    (1..=end / step).map(move |number| number * step)
}

/// At most `most` round times after the start, and the start.
pub(super) fn time_ticks(end: Duration, most: u64) -> impl Iterator<Item = Duration> {
    let end = model::micros(end);
    let steps = (0..).flat_map(|power| [1, 2, 5].map(|digit: u64| digit * 10_u64.pow(power)));
    let step = steps.take(48).find(|step| end / step <= most).unwrap_or(u64::MAX);
    (0..=end / step).map(move |number| Duration::from_micros(number * step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_rounded_for_display() {
        let sizes = [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (128 << 10, "128 KiB"), (5 << 30, "5 GiB")];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
        let times = [(0, "0"), (999, "999 µs"), (1500, "1.5 ms"), (412_345, "412 ms"), (61_240_000, "61.2 s")];
        for (micros, text) in times {
            assert_eq!(time(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn an_axis_has_few_and_round_ticks() {
        assert_eq!(ticks(10 << 20, 4).collect::<Vec<_>>(), [4 << 20, 8 << 20]);
        assert_eq!(ticks(0, 4).count(), 0);
        assert_eq!(ticks(u64::MAX, 4).count(), 3);
        let times = |end| time_ticks(Duration::from_millis(end), 10).map(|t| t.as_millis()).collect::<Vec<_>>();
        assert_eq!(times(431), [0, 50, 100, 150, 200, 250, 300, 350, 400]);
        assert_eq!(time_ticks(Duration::MAX, 10).count(), 2);
        assert_eq!(time_ticks(Duration::ZERO, 10).count(), 1);
    }
}
