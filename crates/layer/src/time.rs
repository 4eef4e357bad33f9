//! RFC 3339 times, as Go's JSON writes them.

use crate::index::Timestamp;
pub use crate::write::time::format;

/// `YYYY-MM-DDTHH:MM:SS[.FRACTION](Z|±HH:MM)`. Go's zero time (year 1), which writers use for "unknown", is the epoch.
pub fn parse(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(10)?;
    let (clock, rest) = rest.strip_prefix('T')?.split_at_checked(8)?;
    let [year, month, day] = numbers(date, b'-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(clock, b':', [2, 2, 2])?;
    let (nanoseconds, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            (fraction(&rest.as_bytes()[..digits])?, &rest[digits..])
        }
    };
    let is_valid = (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_valid {
        return None;
    }
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset(zone)?;
    if year == 1 && month == 1 && day == 1 {
        return Some(Timestamp::default());
    }
    Some(Timestamp { seconds, nanoseconds })
}

fn numbers(text: &str, separator: u8, widths: [usize; 3]) -> Option<[i64; 3]> {
    let mut rest = text.as_bytes();
    let mut numbers = [0; 3];
    for (place, width) in widths.into_iter().enumerate() {
        if place > 0 {
            rest = rest.strip_prefix(&[separator])?;
        }
        let (digits, after) = rest.split_at_checked(width)?;
        numbers[place] = digits
            .iter()
            .try_fold(0_i64, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))?;
        rest = after;
    }
    rest.is_empty().then_some(numbers)
}

fn fraction(digits: &[u8]) -> Option<u32> {
    let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
    (!digits.is_empty()).then(|| padded.fold(0, |number, digit| number * 10 + u32::from(digit - b'0')))
}

/// Seconds east of Greenwich.
fn offset(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let (sign, rest) = match zone.as_bytes().first()? {
        b'+' => (1, &zone[1..]),
        b'-' => (-1, &zone[1..]),
        _ => return None,
    };
    let [hours, minutes, _] = numbers(&format!("{rest}:00"), b':', [2, 2, 2])?;
    (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01, in the proleptic Gregorian calendar; the year starts in March, so that the leap day is last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_since_1970() {
        let at = |seconds, nanoseconds| Some(Timestamp { seconds, nanoseconds });
        assert_eq!(parse("1970-01-01T00:00:00Z"), at(0, 0));
        assert_eq!(parse("2023-11-14T22:13:20Z"), at(1_700_000_000, 0));
        assert_eq!(parse("2009-02-14T00:31:30.987654321+01:00"), at(1_234_567_890, 987_654_321));
        assert_eq!(parse("2000-02-29T12:00:00-00:30"), at(951_827_400, 0));
        assert_eq!(parse("1969-12-31T23:59:59.5Z"), at(-1, 500_000_000));
        assert_eq!(parse("2242-03-16T12:56:32Z"), at(8_589_934_592, 0));
        assert_eq!(parse("0001-01-01T00:00:00Z"), at(0, 0));
    }

    #[test]
    fn everything_else_is_no_time() {
        for text in [
            "",
            "2023-11-14",
            "2023-11-14 22:13:20Z",
            "2023-13-14T22:13:20Z",
            "2023-02-29T22:13:20Z",
            "2023-11-14T24:13:20Z",
            "2023-11-14T22:13:20",
            "2023-11-14T22:13:20.Z",
            "2023-11-14T22:13:20+1:00",
            "+023-11-14T22:13:20Z",
            "2023-11-14T22:13:2\u{e9}",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
