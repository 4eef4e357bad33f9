//! The demo's report.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::output::escape;
use crate::size;

/// Traffic with the registry.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Cost {
    pub(super) requests: u64,
    pub(super) bytes: u64,
}

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) image: String,
    pub(super) mode: String,
    pub(super) fallbacks: Vec<String>,
    pub(super) layers: Vec<String>,
    /// Regular files in the image.
    pub(super) files: u64,
    pub(super) files_read: u64,
    /// Compressed bytes of the layers.
    pub(super) image_bytes: u64,
    #[serde(rename = "mount_milliseconds", serialize_with = "milliseconds")]
    pub(super) mount_time: Duration,
    /// Cost of the mount: manifest, config, tables of contents, and the plain layer.
    pub(super) to_mount: Cost,
    /// Cost until the program ended.
    pub(super) total: Cost,
    /// Output of the program.
    pub(super) program: String,
}

fn milliseconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u128(time.as_millis())
}

impl Report {
    pub(super) fn text(&self) -> String {
        let layers = self.layers.join(", ");
        let program: String = self.program.lines().map(|line| format!("  | {}\n", escape(line.as_bytes()))).collect();
        let fallbacks: String =
            self.fallbacks.iter().map(|line| format!("            {}\n", escape(line.as_bytes()))).collect();
        format!(
            "image       {image}, {size} compressed, {files} files\n\
             layers      {layers}\n\
             mounted     in {time} ms, mode {mode}, after {mount_requests} requests and {mount_bytes}\n\
             {fallbacks}\n\
             $ {program_name}\n\
             {program}\n\
             read        {read} of {files} files, including the program\n\
             fetched     {bytes} of {size} ({share}) in {requests} requests, including manifest and tables of contents\n\
             cleaned up  removed mount, store and registry\n",
            image = self.image,
            size = size::human(self.image_bytes),
            files = self.files,
            time = self.mount_time.as_millis(),
            mode = self.mode,
            mount_requests = self.to_mount.requests,
            mount_bytes = size::human(self.to_mount.bytes),
            program_name = super::image::PROGRAM,
            read = self.files_read,
            bytes = size::human(self.total.bytes),
            share = size::percent(self.total.bytes, self.image_bytes),
            requests = self.total.requests,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_fits_a_screen() {
        let report = Report {
            image: "127.0.0.1:34567/tarpon/demo:latest".into(),
            mode: "fuse".into(),
            fallbacks: vec!["mode fuse, not native: not root".into()],
            layers: vec!["eStargz".into(), "zstd:chunked".into(), "plain".into()],
            files: 515,
            files_read: 4,
            image_bytes: 1_682_426,
            mount_time: Duration::from_millis(23),
            to_mount: Cost { requests: 6, bytes: 19_000 },
            total: Cost { requests: 9, bytes: 61_000 },
            program: "Welcome.\n\nNumber 496\n".into(),
        };
        insta::assert_snapshot!(report.text());
    }
}
