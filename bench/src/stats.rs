//! Statistics over several runs.

/// The median; for an even number the mean of the two middle values.
pub(super) fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The minimum and the maximum.
pub(super) fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let sorted = sorted(values);
    Some((*sorted.first()?, *sorted.last()?))
}

/// The geometric mean, for ratios.
pub(super) fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logarithms: f64 = values.iter().map(|value| value.ln()).sum();
    (!values.is_empty()).then(|| (logarithms / values.len() as f64).exp())
}

/// The empirical distribution function: for each value, in order, the fraction of values that are not above it. A failed run has no
/// value, and counts as above all of them.
pub(super) fn distribution(values: &[f64], failed: usize) -> Vec<(f64, f64)> {
    let sorted = sorted(values);
    let all = (sorted.len() + failed) as f64;
    sorted.iter().enumerate().map(|(place, value)| (*value, (place + 1) as f64 / all)).collect()
}

/// Ratios of neighbouring runs, the first to the second; runs are paired by their numbers.
pub(super) fn ratios<N: PartialEq>(of: &[(N, f64)], to: &[(N, f64)]) -> Vec<f64> {
    let other = |number: &N| to.iter().find(|(n, _)| n == number).map(|(_, value)| *value);
    of.iter().filter_map(|(number, value)| Some(value / other(number).filter(|v| *v > 0.0)?)).collect()
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!((median(&[]), spread(&[])), (None, None));
    }

    #[test]
    fn twice_and_half_as_much_are_as_much_in_the_mean() {
        assert!((geometric_mean(&[2.0, 0.5]).unwrap() - 1.0).abs() < 1e-9);
        assert_eq!((geometric_mean(&[0.0, 4.0]), geometric_mean(&[])), (Some(0.0), None));
    }

    #[test]
    fn a_distribution_rises_to_one_unless_something_failed() {
        assert_eq!(distribution(&[2.0, 1.0], 0), [(1.0, 0.5), (2.0, 1.0)]);
        assert_eq!(distribution(&[2.0, 1.0], 2), [(1.0, 0.25), (2.0, 0.5)]);
        assert_eq!(spread(&[2.0, 1.0, 5.0]), Some((1.0, 5.0)));
    }

    #[test]
    fn runs_are_compared_with_the_neighbour_of_their_number() {
        assert_eq!(ratios(&[(1, 2.0), (2, 9.0), (3, 1.0)], &[(2, 3.0), (1, 1.0), (4, 1.0)]), [2.0, 3.0]);
        assert!(ratios(&[(1, 2.0)], &[(1, 0.0)]).is_empty());
    }
}
