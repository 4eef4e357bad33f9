//! Counters as text, for `status` and `why`.

use tarpon_engine::{Early, EndpointKind, EndpointStatus, WaitedFor};

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

/// The role of an endpoint, and what it was asked for: `mirror`, `cache.example:5000: 2.1 MiB in 12 requests, answered after 33 ms on average`.
pub(crate) fn endpoint(status: &EndpointStatus) -> (&'static str, String) {
    let EndpointStatus { endpoint, kind, requests, bytes, wait_millis, failures, rest_millis, last_failure } = status;
    let kind = match kind {
        EndpointKind::Tier => "tier",
        EndpointKind::Mirror => "mirror",
        EndpointKind::Registry => "registry",
        EndpointKind::IndexMirror => "index mirror",
        EndpointKind::Index => "index",
    };
    let mut text = match requests {
        0 => format!("{endpoint}: not asked"),
        1 => format!("{endpoint}: {} in 1 request, answered after {}", size::human(*bytes), duration(*wait_millis)),
        _ => {
            let (bytes, wait) = (size::human(*bytes), duration(wait_millis / requests));
            format!("{endpoint}: {bytes} in {requests} requests, answered after {wait} on average")
        }
    };
    if *failures > 0 {
        text += &format!(", {failures} failure{}", if *failures == 1 { "" } else { "s" });
    }
    match rest_millis {
        None => {}
        Some(0) => text += ", tried again by the next request",
        Some(millis) => text += &format!(", not asked for {}", duration(*millis)),
    }
    if let Some(failure) = last_failure {
        text += &format!("; last failure: {failure}");
    }
    (kind, text)
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

    #[test]
    fn an_endpoint_shows_whether_it_is_asked_and_why_not() {
        let quiet = EndpointStatus {
            endpoint: "cache.test".into(),
            kind: EndpointKind::Mirror,
            requests: 0,
            bytes: 0,
            wait_millis: 0,
            failures: 0,
            rest_millis: None,
            last_failure: None,
        };
        let text = |status: &EndpointStatus| endpoint(status).1;
        assert_eq!(endpoint(&quiet), ("mirror", "cache.test: not asked".to_owned()));
        let one = EndpointStatus { kind: EndpointKind::Index, requests: 1, bytes: 2048, wait_millis: 1_400, ..quiet };
        assert_eq!(endpoint(&one), ("index", "cache.test: 2.0 KiB in 1 request, answered after 1.4 s".to_owned()));
        let failed = EndpointStatus { requests: 4, failures: 1, last_failure: Some("502".into()), ..one };
        let failed_text = "cache.test: 2.0 KiB in 4 requests, answered after 350 ms on average, 1 failure";
        assert_eq!(text(&failed), format!("{failed_text}; last failure: 502"));
        let rests = EndpointStatus { rest_millis: Some(12_400), ..failed };
        assert_eq!(text(&rests), format!("{failed_text}, not asked for 12.4 s; last failure: 502"));
        let due = EndpointStatus { rest_millis: Some(0), ..rests };
        assert_eq!(text(&due), format!("{failed_text}, tried again by the next request; last failure: 502"));
    }
}
