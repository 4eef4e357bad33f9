//! Slopes of samples over time, by least squares.

/// A value of one process at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) value: f64,
    /// The process: a new one begins at another value, which is no growth.
    pub(super) life: u32,
}

/// A slope per hour, and its standard error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slope {
    pub(super) per_hour: f64,
    pub(super) error: f64,
    /// The samples that it was computed from.
    pub(super) samples: usize,
}

const HOUR: f64 = 3600.0;

/// The common slope of all lives, each with a level of its own. `None` if there are too few samples for an error.
///
/// Neighbouring samples resemble each other, so the true error is larger than this one, which counts each as independent.
pub(super) fn slope(samples: &[Sample]) -> Option<Slope> {
    let mut lives: Vec<u32> = samples.iter().map(|sample| sample.life).collect();
    lives.dedup();
    let (mut squares, mut products, mut values) = (0.0, 0.0, 0.0);
    for life in &lives {
        let of_life: Vec<_> = samples.iter().filter(|sample| sample.life == *life).collect();
        let mean_time = mean(of_life.iter().map(|sample| sample.seconds / HOUR));
        let mean_value = mean(of_life.iter().map(|sample| sample.value));
        for sample in of_life {
            let (time, value) = (sample.seconds / HOUR - mean_time, sample.value - mean_value);
            squares += time * time;
            products += time * value;
            values += value * value;
        }
    }
    let freedom = samples.len().checked_sub(lives.len() + 1).filter(|freedom| *freedom > 0)?;
    if squares <= 0.0 {
        return None;
    }
    let per_hour = products / squares;
    let residual = (values - per_hour * products).max(0.0);
    let error = (residual / number(freedom) / squares).sqrt();
    Some(Slope { per_hour, error, samples: samples.len() })
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = number(values.len());
    values.sum::<f64>() / count
}

/// Counts are far below the 2^53 that a float represents exactly.
fn number(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(life: u32, from: u32, level: f64, per_hour: f64) -> Vec<Sample> {
        let times = (from..from + 60).map(|minute| f64::from(minute) * 60.0);
        times.map(|seconds| Sample { seconds, value: level + per_hour * seconds / HOUR, life }).collect()
    }

    #[test]
    fn a_line_has_its_slope_without_error() {
        let slope = slope(&line(1, 0, 100.0, 7.0)).unwrap();
        assert!((slope.per_hour - 7.0).abs() < 1e-6 && slope.error < 1e-6, "{slope:?}");
    }

    #[test]
    fn a_new_process_at_another_level_is_no_growth() {
        let samples = [line(1, 0, 100.0, 0.0), line(2, 60, 500.0, 0.0)].concat();
        assert!(slope(&samples).unwrap().per_hour.abs() < 1e-6);
    }

    #[test]
    fn noise_gives_an_error_that_covers_the_slope() {
        let mut samples = line(1, 0, 100.0, 2.0);
        for (position, sample) in samples.iter_mut().enumerate() {
            sample.value += if position % 2 == 0 { 5.0 } else { -5.0 };
        }
        let slope = slope(&samples).unwrap();
        assert!(slope.error > 1.0 && (slope.per_hour - 2.0).abs() < 2.0 * slope.error, "{slope:?}");
    }

    #[test]
    fn too_few_samples_have_no_slope() {
        assert!(slope(&line(1, 0, 0.0, 1.0)[..2]).is_none());
        assert!(slope(&[]).is_none());
    }
}
