//! Formats and parses sizes in binary units.

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// `2.9 MiB`: one decimal below ten, none from there on, none for plain bytes.
pub(crate) fn human(bytes: u64) -> String {
    // Rounded in tenths, in integers: 1023.96 KiB must become 1.0 MiB, not 1024 KiB.
    let mut unit = 0;
    let mut tenths = u128::from(bytes) * 10;
    let mut divisor = 1_u128;
    while unit + 1 < UNITS.len() && (tenths + divisor * 5) / divisor / 10 >= 1024 {
        unit += 1;
        divisor *= 1024;
    }
    tenths = (tenths + divisor / 2) / divisor;
    if unit == 0 || tenths >= 100 {
        format!("{} {}", (tenths + 5) / 10, UNITS[unit])
    } else {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

/// A percentage: `1.4 %`; `0 %` only for nothing, `100 %` only for everything.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".to_owned();
    }
    if part >= whole {
        return "100 %".to_owned();
    }
    let tenths = (u128::from(part) * 1000 / u128::from(whole)).clamp(1, 999);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// Parses `4096`, `512K`, `20GiB`, `1.5 TiB`: units are powers of 1024, with or without `iB` or `B`, in any case.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    const SHAPE: &str = "expected a size such as 512M or 20GiB";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let power = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0_u32,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(SHAPE.to_owned()),
    };
    let scale = 1024_u128.pow(power);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.len() > 6 || fraction.contains('.') || number.ends_with('.') {
        return Err(SHAPE.to_owned());
    }
    let whole: u64 = whole.parse().map_err(|_| SHAPE.to_owned())?;
    let fraction_scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| SHAPE.to_owned())?);
    let fraction: u64 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| SHAPE.to_owned())? };
    let bytes = u128::from(whole) * scale + u128::from(fraction) * scale / fraction_scale;
    u64::try_from(bytes).map_err(|_| "the size is too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_two_or_three_digits() {
        let table = [
            (0, "0 B"),
            (999, "999 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (10 * 1024, "10 KiB"),
            (42_343, "41 KiB"),
            (1024 * 1024 - 1, "1.0 MiB"),
            (3_040_870, "2.9 MiB"),
            (20 << 30, "20 GiB"),
            (5 << 50, "5120 TiB"),
            (u64::MAX, "16777216 TiB"),
        ];
        for (bytes, text) in table {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn a_percentage_never_rounds_to_nothing_or_all() {
        assert_eq!(percent(0, 10), "0 %");
        assert_eq!(percent(1, 1_000_000), "0.1 %");
        assert_eq!(percent(14, 1000), "1.4 %");
        assert_eq!(percent(999_999, 1_000_000), "99.9 %");
        assert_eq!(percent(10, 10), "100 %");
        assert_eq!(percent(0, 0), "0 %");
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        let table = [
            ("0", 0),
            ("4096", 4096),
            ("512K", 512 << 10),
            ("512kB", 512 << 10),
            ("20GiB", 20 << 30),
            ("20 g", 20 << 30),
            ("1.5T", 3 << 39),
        ];
        for (text, bytes) in table {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "G", "-1", "1.", "1.5.2G", "20 apples", "99999999999T", "1e3"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
