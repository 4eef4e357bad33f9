//! Counters as text, for `status` and `why`.

use tarpon_engine::{Early, WaitedFor};

use crate::size;

/// `310 ms`, `1.3 s`.
pub(crate) fn duration(millis: u64) -> String {
    if millis < 1000 { format!("{millis} ms") } else { format!("{}.{} s", millis / 1000, millis % 1000 / 100) }
}

/// `1 read`, `3 reads`.
pub(crate) fn reads(count: u64) -> String {
    format!("{count} read{}", if count == 1 { "" } else { "s" })
}

/// `12 reads waited, 1.3 s in all, the slowest 310 ms`.
pub(crate) fn stalls(count: u64, millis: u64, slowest: u64) -> String {
    if count == 0 {
        return "no read waited".to_owned();
    }
    format!("{} waited, {} in all, the slowest {}", reads(count), duration(millis), duration(slowest))
}

/// Bytes received by purpose; purposes with zero bytes are left out, except reads.
pub(crate) fn lanes(demand: u64, pack: u64, read_ahead: u64, whole: u64, backfill: u64) -> String {
    let mut parts = vec![format!("{} for readers", size::human(demand))];
    let others = [
        (pack, "of the boot pack"),
        (read_ahead, "read ahead"),
        (whole, "to have the image whole"),
        (backfill, "in the background"),
    ];
    let others = others.iter().filter(|(bytes, _)| *bytes > 0);
    parts.extend(others.map(|(bytes, what)| format!("{} {what}", size::human(*bytes))));
    parts.join(", ")
}

/// `3.0 MiB, of which 2.0 MiB were read, 1.0 MiB not so far`.
pub(crate) fn early(early: &Early) -> String {
    let Early { brought, used, unused, unknown } = early;
    let mut text = format!("{}, of which {} were read", size::human(*brought), size::human(*used));
    if *unused > 0 {
        text += &format!(", {} not so far", size::human(*unused));
    }
    if *unknown > 0 {
        text += &format!(", {} perhaps (the kernel reads them by itself)", size::human(*unknown));
    }
    text
}

/// The cause of a wait.
pub(crate) fn waited_for(what: WaitedFor) -> &'static str {
    match what {
        WaitedFor::OwnRequest => "its own request",
        WaitedFor::OtherReader => "another reader's request",
        WaitedFor::ReadAhead => "read-ahead on its way",
        WaitedFor::Pack => "the boot pack",
        WaitedFor::WholeDownload => "the rest of the image on its way",
        WaitedFor::WholeLayer => "the layer from its beginning",
        WaitedFor::Local => "disk or processor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_said_in_words_and_zeros_are_left_out() {
        assert_eq!((duration(0), duration(999), duration(61_250)), ("0 ms".into(), "999 ms".into(), "61.2 s".into()));
        assert_eq!(stalls(0, 0, 0), "no read waited");
        assert_eq!(stalls(1, 30, 30), "1 read waited, 30 ms in all, the slowest 30 ms");
        assert_eq!(lanes(0, 0, 0, 0, 0), "0 B for readers");
        assert_eq!(lanes(1024, 0, 2048, 0, 10), "1.0 KiB for readers, 2.0 KiB read ahead, 10 B in the background");
        let brought = Early { brought: 40, used: 10, unused: 0, unknown: 30 };
        assert_eq!(early(&brought), "40 B, of which 10 B were read, 30 B perhaps (the kernel reads them by itself)");
    }
}
