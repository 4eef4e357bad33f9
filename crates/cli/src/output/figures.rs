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

/// `12 reads waited, 1.3 s in total, slowest 310 ms`.
pub(crate) fn stalls(count: u64, millis: u64, slowest: u64) -> String {
    if count == 0 {
        return "no read waited".to_owned();
    }
    format!("{} waited, {} in total, slowest {}", reads(count), duration(millis), duration(slowest))
}

/// Bytes received by purpose; purposes with zero bytes are left out, except reads.
pub(crate) fn lanes(demand: u64, pack: u64, read_ahead: u64, whole: u64, backfill: u64) -> String {
    let mut parts = vec![format!("{} on demand", size::human(demand))];
    let others = [
        (pack, "from the boot pack"),
        (read_ahead, "by read-ahead"),
        (whole, "by whole download"),
        (backfill, "by backfill"),
    ];
    let others = others.iter().filter(|(bytes, _)| *bytes > 0);
    parts.extend(others.map(|(bytes, what)| format!("{} {what}", size::human(*bytes))));
    parts.join(", ")
}

/// `3.0 MiB prefetched, 2.0 MiB of it used, 1.0 MiB unused`.
pub(crate) fn early(early: &Early) -> String {
    let Early { brought, used, unused, unknown } = early;
    let mut text = format!("{} prefetched, {} of it used", size::human(*brought), size::human(*used));
    if *unused > 0 {
        text += &format!(", {} unused", size::human(*unused));
    }
    if *unknown > 0 {
        text += &format!(", {} unknown (read by the kernel itself)", size::human(*unknown));
    }
    text
}

/// The cause of a wait.
pub(crate) fn waited_for(what: WaitedFor) -> &'static str {
    match what {
        WaitedFor::OwnRequest => "its own request",
        WaitedFor::OtherReader => "another reader's request",
        WaitedFor::ReadAhead => "read-ahead in progress",
        WaitedFor::Pack => "the boot pack",
        WaitedFor::WholeDownload => "whole download in progress",
        WaitedFor::WholeLayer => "the layer, streamed from its beginning",
        WaitedFor::Local => "disk or processor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_words_and_zeros_are_left_out() {
        assert_eq!((duration(0), duration(999), duration(61_250)), ("0 ms".into(), "999 ms".into(), "61.2 s".into()));
        assert_eq!(stalls(0, 0, 0), "no read waited");
        assert_eq!(stalls(1, 30, 30), "1 read waited, 30 ms in total, slowest 30 ms");
        assert_eq!(lanes(0, 0, 0, 0, 0), "0 B on demand");
        assert_eq!(lanes(1024, 0, 2048, 0, 10), "1.0 KiB on demand, 2.0 KiB by read-ahead, 10 B by backfill");
        let brought = Early { brought: 40, used: 10, unused: 0, unknown: 30 };
        assert_eq!(early(&brought), "40 B prefetched, 10 B of it used, 30 B unknown (read by the kernel itself)");
    }
}
