//! [`ConvertRequest`]: what to convert, and how.

use tarpon_images::Access;
use tarpon_layer::LayerPath;
use tarpon_layer::toc::Format;
use tarpon_layer::write::{DEFAULT_ESTARGZ_CHUNK_BYTES, DEFAULT_GZIP_LEVEL, DEFAULT_ZSTD_LEVEL};
use tarpon_oci::Platform;

use super::rewrite::Recipe;
use crate::{Error, ErrorKind, Result};

/// Default number of layers converted at once: enough to keep a link busy while one of them compresses.
const DEFAULT_JOBS: usize = 3;
/// Maximum number of layers converted at once. Each takes up to 50 MiB for data between its stages and for retries of its upload, and 10
/// MiB for each of its compressing threads, besides its table of contents.
pub const MAX_CONVERT_JOBS: usize = 32;

/// A request to convert.
#[derive(Debug, Clone)]
pub struct ConvertRequest {
    /// The image, as the user wrote it.
    pub source: String,
    /// Access to the source.
    pub source_access: Access,
    /// The destination, as the user wrote it: a registry or an OCI layout, with a tag.
    pub destination: String,
    /// Access to the destination.
    pub destination_access: Access,
    /// Format of the layers.
    pub format: Format,
    /// Which images of an index.
    pub platforms: Platforms,
    /// Level of gzip (0 to 9) or zstd (1 to 22); `None`: the format's default.
    pub level: Option<u8>,
    /// Layers at once, at most [`MAX_CONVERT_JOBS`]; `None`: a few.
    pub jobs: Option<usize>,
    /// Layers keep their diffIDs, and the image its config. For eStargz, tables of contents then go into an image of their
    /// own, beside the result. zstd:chunked never changes them.
    pub keep_diff_id: bool,
    /// Paths that come first in their layers, in this order: any bytes, with or without a leading slash. eStargz only. Rewrites
    /// layers that are eStargz already.
    pub prioritised: Vec<Vec<u8>>,
    /// Rewrites layers that are already in the format.
    pub force: bool,
}

/// Which images of an index are converted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Platforms {
    /// The one for this machine, which becomes a single manifest.
    #[default]
    Host,
    /// Those for these platforms: a single manifest if it is one, else an index.
    These(Vec<Platform>),
    /// All, as an index.
    All,
}

impl ConvertRequest {
    /// A conversion of `source` to `destination` for this machine's platform, with defaults for everything else.
    pub fn new(source: impl Into<String>, destination: impl Into<String>, format: Format) -> Self {
        Self {
            source: source.into(),
            source_access: Access::default(),
            destination: destination.into(),
            destination_access: Access::default(),
            format,
            platforms: Platforms::Host,
            level: None,
            jobs: None,
            keep_diff_id: false,
            prioritised: Vec::new(),
            force: false,
        }
    }

    pub(super) fn jobs(&self) -> usize {
        self.jobs.unwrap_or(DEFAULT_JOBS).clamp(1, MAX_CONVERT_JOBS)
    }

    /// How layers are written.
    pub(super) fn recipe(&self) -> Result<Recipe> {
        let step = "read the options";
        if self.format == Format::ZstdChunked && !self.prioritised.is_empty() {
            return Err(Error::new(
                ErrorKind::Other,
                step,
                "zstd:chunked has no order of priority: it goes with eStargz only",
            ));
        }
        if self.keep_diff_id && !self.prioritised.is_empty() {
            return Err(Error::new(ErrorKind::Other, step, "files cannot come first in layers that keep their diffID"));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / self.jobs()).max(1);
        Ok(match self.format {
            Format::ZstdChunked => Recipe::ZstdChunked(tarpon_layer::write::ZstdChunkedOptions {
                level: self.level.map_or(DEFAULT_ZSTD_LEVEL, i32::from),
                threads,
            }),
            Format::Estargz => Recipe::Estargz {
                options: tarpon_layer::write::EstargzOptions {
                    chunk_bytes: DEFAULT_ESTARGZ_CHUNK_BYTES,
                    level: self.level.map_or(DEFAULT_GZIP_LEVEL, u32::from),
                    threads,
                    keep_diff_id: self.keep_diff_id,
                },
                prioritised: self.prioritised.iter().map(|path| priority(path)).collect::<Result<_>>()?,
            },
        })
    }

    /// Whether a layer that is already in the format may stay unchanged.
    pub(super) fn reuses(&self) -> bool {
        !self.force && self.prioritised.is_empty()
    }
}

fn priority(path: &[u8]) -> Result<LayerPath> {
    let parsed = LayerPath::from_tar_name(path);
    parsed.map_err(|error| Error::new(ErrorKind::Other, format!("read the path {:?}", path.escape_ascii()), error))
}
