//! Traces: the file and its errors, the union of several, the pieces to fetch, and the picture.

mod counting;
mod file;
mod merging;
mod pieces;
mod plots;

use std::ops::Range;
use std::time::Duration;

use tarpon_oci::Digest;
use tarpon_trace::{Header, Origin, Touch, Trace};

fn id(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

fn header() -> Header {
    Header {
        image: "docker.io/library/python:3.12".to_owned(),
        manifest: id("manifest"),
        profile: "default".to_owned(),
        command: ["python", "-c", "import numpy"].map(str::to_owned).into(),
        ready: Some(Duration::from_micros(412_345)),
        truncated: false,
        starts: 0,
    }
}

/// A touch without hints.
fn touch(name: &str, size: u64, range: Range<u64>, micros: u64) -> Touch {
    Touch {
        object: id(name),
        size,
        range,
        at: Duration::from_micros(micros),
        layer: None,
        path: None,
        from: None,
        stall: Duration::ZERO,
    }
}

/// A touch of `path`, as it comes from a mount.
fn read(path: &str, layer: &str, size: u64, range: Range<u64>, micros: u64, from: Origin, stall: u64) -> Touch {
    Touch {
        layer: Some(id(layer)),
        path: Some(path.to_owned()),
        from: Some(from),
        stall: Duration::from_micros(stall),
        ..touch(path, size, range, micros)
    }
}

fn trace(touches: impl Into<Vec<Touch>>) -> Trace {
    Trace { header: header(), touches: touches.into() }
}
