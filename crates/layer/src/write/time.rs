//! RFC 3339 times in the form that readers of TOCs accept.

use crate::index::Timestamp;

/// Years that `toc` reads: before them is Go's zero time, which means "unknown"; after them are five digits.
const FIRST_SECOND: i64 = -62_104_060_800;
const LAST_SECOND: i64 = 253_402_300_799;

/// `YYYY-MM-DDTHH:MM:SS[.NNNNNNNNN]Z`; `None` for times outside of the years 2 to 9999.
pub fn format(time: Timestamp) -> Option<String> {
    if !(FIRST_SECOND..=LAST_SECOND).contains(&time.seconds) {
        return None;
    }
    let (days, second) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let mut text = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if time.nanoseconds != 0 {
        text.push_str(format!(".{:09}", time.nanoseconds).trim_end_matches('0'));
    }
    text.push('Z');
    Some(text)
}

/// The date this many days after 1970-01-01, in the proleptic Gregorian calendar. As in the reader, the year starts in March.
fn date(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_ERA: i64 = 146_097;
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(DAYS_OF_ERA), days.rem_euclid(DAYS_OF_ERA));
    let year = (day - day / 1460 + day / 36_524 - day / (DAYS_OF_ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Option<String> {
        format(Timestamp { seconds, nanoseconds })
    }

    #[test]
    fn seconds_since_1970_are_dates() {
        assert_eq!(at(0, 0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(at(1_700_000_000, 0).as_deref(), Some("2023-11-14T22:13:20Z"));
        assert_eq!(at(951_827_400, 120_000_000).as_deref(), Some("2000-02-29T12:30:00.12Z"));
        assert_eq!(at(-1, 500_000_000).as_deref(), Some("1969-12-31T23:59:59.5Z"));
        assert_eq!(at(LAST_SECOND, 1).as_deref(), Some("9999-12-31T23:59:59.000000001Z"));
        assert_eq!(at(FIRST_SECOND, 0).as_deref(), Some("0002-01-01T00:00:00Z"));
    }

    #[test]
    fn other_years_have_no_text() {
        assert_eq!(at(LAST_SECOND + 1, 0), None);
        assert_eq!(at(FIRST_SECOND - 1, 0), None);
        assert_eq!(at(i64::MAX, 0), None);
        assert_eq!(at(i64::MIN, 0), None);
    }
}
