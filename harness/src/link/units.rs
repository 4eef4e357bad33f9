//! Parses rates and times.

use std::time::Duration;

/// Bits per second from `512kbit`, `100mbit`, `1gbit`.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    let factors = [("kbit", 1_000.0), ("mbit", 1_000_000.0), ("gbit", 1_000_000_000.0)];
    let bits = number_with(text, &factors).filter(|b| *b >= 1000.0 && *b <= 1e12);
    bits.and_then(|b| format!("{b:.0}").parse().ok()).ok_or_else(|| "want a rate such as 100mbit".to_owned())
}

/// A duration from `500us`, `10ms`, `1s`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let factors = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = number_with(text, &factors).filter(|s| *s >= 0.0 && *s <= 60.0);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "want a time such as 10ms, at most a minute".to_owned())
}

fn number_with(text: &str, factors: &[(&str, f64)]) -> Option<f64> {
    let (unit, factor) = factors.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
    Some(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_in_bits_per_second() {
        assert_eq!(rate("100mbit"), Ok(100_000_000));
        assert_eq!(rate("1.5gbit"), Ok(1_500_000_000));
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(time("10ms"), Ok(Duration::from_millis(10)));
        assert_eq!(time("500us"), Ok(Duration::from_micros(500)));
        assert_eq!(time("1s"), Ok(Duration::from_secs(1)));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in ["", "100", "mbit", "-1mbit", "0kbit", "nanmbit"] {
            assert!(rate(text).is_err(), "{text}");
        }
        for text in ["", "10", "ms", "-1ms", "2000s", "nans"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
