//! Maps values to positions in a picture, and chooses the values on an axis.

/// The unit of a value, which determines its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Bytes,
    /// A factor.
    Times,
    Count,
    /// A fraction of one.
    Share,
}

impl Unit {
    /// Formats a value for readers.
    pub(crate) fn show(self, value: f64) -> String {
        self.with(value, short)
    }

    /// Formats a measured value with as many digits as its neighbours.
    pub(super) fn measured(self, value: f64) -> String {
        self.with(value, three_digits)
    }

    fn with(self, value: f64, short: fn(f64) -> String) -> String {
        match self {
            Self::Seconds | Self::Bytes if value == 0.0 => "0".to_owned(),
            Self::Seconds if value < 0.001 => format!("{} µs", short(value * 1e6)),
            Self::Seconds if value < 0.1 => format!("{} ms", short(value * 1e3)),
            Self::Seconds => format!("{} s", short(value)),
            Self::Bytes if value >= 1e9 => format!("{} GB", short(value / 1e9)),
            Self::Bytes if value >= 1e6 => format!("{} MB", short(value / 1e6)),
            Self::Bytes => format!("{} kB", short(value / 1e3)),
            Self::Times => format!("{}×", short(value)),
            Self::Count if value >= 1e6 => format!("{} M", short(value / 1e6)),
            Self::Count if value >= 1e4 => format!("{} k", short(value / 1e3)),
            Self::Count => short(value),
            Self::Share => format!("{:.0} %", value * 100.0),
        }
    }
}

/// Three significant digits, without trailing zeros.
fn short(value: f64) -> String {
    let text = three_digits(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn three_digits(value: f64) -> String {
    let digits = match value.abs() {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

/// An axis between two positions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    from: f64,
    to: f64,
    least: f64,
    most: f64,
    logarithmic: bool,
}

/// Ratio of values from which an axis is logarithmic: on a linear one the small ones would shrink to points.
const FAR_APART: f64 = 25.0;

impl Axis {
    /// An axis that holds all values: linear from zero, or logarithmic if they are far apart.
    pub(super) fn over(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let positive = values.clone().filter(|value| *value > 0.0);
        let least = positive.clone().fold(f64::INFINITY, f64::min);
        let most = positive.fold(0.0, f64::max);
        // Zero cannot be on a logarithmic axis.
        if values.clone().all(|value| value > 0.0) && most / least > FAR_APART {
            return Self { from, to, least: least * 0.8, most: most * 1.25, logarithmic: true };
        }
        let most = if most > 0.0 { most * 1.05 } else { 1.0 };
        Self { from, to, least: 0.0, most, logarithmic: false }
    }

    /// A linear axis with these ends.
    pub(super) fn linear(least: f64, most: f64, from: f64, to: f64) -> Self {
        Self { from, to, least, most, logarithmic: false }
    }

    /// The caption of the axis, which marks a logarithmic one so that it is not read as linear.
    pub(super) fn caption(&self, words: &str) -> String {
        if self.logarithmic { format!("{words} (logarithmic)") } else { words.to_owned() }
    }

    /// The position of a value.
    pub(super) fn place(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value / self.least).ln() / (self.most / self.least).ln()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        self.from + share * (self.to - self.from)
    }

    /// Round values on the axis, at most about `count` of them.
    pub(super) fn ticks(&self, count: usize) -> Vec<f64> {
        if self.logarithmic { self.powers(count) } else { self.steps(count) }
    }

    fn steps(&self, count: usize) -> Vec<f64> {
        let rough = (self.most - self.least) / count.max(1) as f64;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power);
        let first = (self.least / step).ceil();
        (0..=count * 2).map(|number| (first + number as f64) * step).take_while(|tick| *tick <= self.most).collect()
    }

    fn powers(&self, count: usize) -> Vec<f64> {
        // Thirds of decades if they are few, else halves.
        let choices: [&[f64]; 3] = [&[1.0, 2.0, 5.0], &[1.0, 3.0], &[1.0]];
        let ticks = choices.map(|factors| self.decades(factors));
        ticks.iter().find(|ticks| ticks.len() <= count + 1).unwrap_or(&ticks[2]).clone()
    }

    /// Powers of ten times these factors within the axis.
    fn decades(&self, factors: &[f64]) -> Vec<f64> {
        let mut ticks = Vec::new();
        let mut power = self.least.log10().floor();
        while power <= self.most.log10().ceil() {
            ticks.extend(factors.iter().map(|factor| factor * 10_f64.powf(power)));
            power += 1.0;
        }
        ticks.retain(|tick| (self.least..=self.most).contains(tick));
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_near_each_other_begin_at_zero_and_others_are_logarithmic() {
        let near = Axis::over([1.0, 4.0].into_iter(), 0.0, 100.0);
        assert!(near.place(0.0).abs() < 1e-9 && near.place(4.0) > 90.0);
        let far = Axis::over([0.01, 10.0].into_iter(), 0.0, 100.0);
        assert!((far.place(0.1) - far.place(0.01) - (far.place(10.0) - far.place(1.0))).abs() < 1e-6);
        let with_zero = Axis::over([0.0, 1000.0].into_iter(), 0.0, 100.0);
        assert!(with_zero.place(0.0).is_finite());
    }

    #[test]
    fn ticks_are_round_and_on_the_axis() {
        assert_eq!(Axis::linear(0.0, 10.0, 0.0, 1.0).ticks(5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Axis::over([0.02, 11.0].into_iter(), 0.0, 1.0).ticks(4), [0.1, 1.0, 10.0]);
        assert_eq!(Axis::over([30.0, 1000.0].into_iter(), 0.0, 1.0).ticks(6), [50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(Axis::over([0.0].into_iter(), 0.0, 1.0).ticks(2), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn a_value_that_was_measured_keeps_its_zeros() {
        assert_eq!([2.0, 0.8999, 9.999].map(|value| Unit::Seconds.measured(value)), ["2.00 s", "0.90 s", "10.0 s"]);
    }

    #[test]
    fn values_are_shown_with_three_digits_and_their_unit() {
        let shown = [
            (Unit::Seconds, 0.0123, "12.3 ms"),
            (Unit::Seconds, 1.0, "1 s"),
            (Unit::Seconds, 123.4, "123 s"),
            (Unit::Bytes, 104_857_600.0, "105 MB"),
            (Unit::Bytes, 1500.0, "1.5 kB"),
            (Unit::Times, 1.254, "1.25×"),
            (Unit::Count, 1_000_000.0, "1 M"),
            (Unit::Count, 100.0, "100"),
            (Unit::Share, 0.5, "50 %"),
        ];
        for (unit, value, text) in shown {
            assert_eq!(unit.show(value), text);
        }
    }
}
