//! `tarpon convert`: copies an image to a destination, in a format that can be read lazily.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use tarpon_engine::{
    Access, Conversion, ConvertRequest, ConvertedImage, ErrorKind, MAX_CONVERT_JOBS, Outcome, Platforms,
};
use tarpon_oci::Platform;

use super::creds::{Creds, creds, creds_file};
use super::image::{ImageName, REGISTRY_OPTIONS, RegistryConnection, destination_name, image_name};
use super::options::FormatName;
use crate::exit::Exit;
use crate::failure::{Context, Failure, Result};
use crate::global::Global;
use crate::output::{self, Table, escape};
use crate::signals::interruptible;
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon convert --format estargz debian:12 registry.example/debian:12-lazy
  tarpon convert --format zstd:chunked --all-platforms alpine:3.20 registry.example/alpine:3.20
  tarpon convert --format estargz --prioritize files.txt oci-archive:app.tar oci:/srv/layout:v1
  tarpon convert --format zstd:chunked --json oci:app localhost:5000/app | jq -r .digest

SRC is an image as in other commands; DST is [docker://]NAME[:TAG] or oci:DIR[:TAG].
The result is an OCI image, even if SRC is a Docker image. The same image and options give the same digest.";

const HIGHEST_GZIP_LEVEL: u8 = 9;
const HIGHEST_ZSTD_LEVEL: u8 = 22;

/// Convert an image to a format that can be read lazily
///
/// Streams each layer from SRC to DST and rewrites it on the way, without unpacking it. Layers that are already in the format are
/// copied. The tag of DST is set last, after all content was verified against the digests of SRC and uploaded.
///
/// Of an image index, only the image for this machine is converted, unless --platform or --all-platforms is given. Attestations are
/// left out, because they refer to digests that change. Foreign layers are rejected, and so are layers that the format cannot
/// represent, for example because a name is not UTF-8.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Convert {
    /// Target format
    #[arg(long, value_name = "FORMAT")]
    format: FormatName,
    /// Platform to convert, as OS/ARCH[/VARIANT]; several give an index [default: this machine's]
    #[arg(long, value_name = "PLATFORM")]
    platform: Vec<Platform>,
    /// Convert all platforms, to an index
    #[arg(long, conflicts_with = "platform")]
    all_platforms: bool,
    /// Compression level: 0 to 9 for estargz [default: 6], 1 to 22 for zstd:chunked [default: 6]
    #[arg(long, value_name = "N")]
    level: Option<u8>,
    /// Layers to convert in parallel [default: 3]; each needs up to 60 MiB of memory, plus its table of contents
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=MAX_CONVERT_JOBS as i64))]
    jobs: Option<u16>,
    /// Keep diffIDs, config and image ID; eStargz tables of contents then go to a separate image, DST-esgztoc (zstd:chunked always
    /// keeps them)
    #[arg(long)]
    keep_diff_id: bool,
    /// File with paths, one per line, of files to put first in their layers for prefetching (estargz only; needs disk space for
    /// uncompressed layers in $TMPDIR or /var/tmp)
    #[arg(long, value_name = "FILE", conflicts_with = "keep_diff_id")]
    prioritize: Option<PathBuf>,
    /// Rewrite layers that are already in the format
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    registries: Registries,
    /// Image to convert, for example docker.io/library/alpine:3.20
    #[arg(value_name = "SRC", value_parser = image_name)]
    source: ImageName,
    /// Destination
    #[arg(value_name = "DST", value_parser = destination_name)]
    destination: ImageName,
}

/// Options for the registries of SRC and DST.
#[derive(Debug, Clone, Args)]
struct Registries {
    #[command(flatten)]
    connection: RegistryConnection,
    /// Credentials for SRC; visible to other users, so prefer --src-creds-file or --authfile
    #[arg(long, value_name = "USER:PASSWORD", value_parser = creds, help_heading = REGISTRY_OPTIONS)]
    src_creds: Option<Creds>,
    /// File with the credentials for SRC as USER:PASSWORD; - for standard input, /dev/fd/3 for a descriptor
    #[arg(long, value_name = "FILE", value_parser = creds_file(), conflicts_with = "src_creds")]
    #[arg(help_heading = REGISTRY_OPTIONS)]
    src_creds_file: Option<Creds>,
    /// Credentials for DST; visible to other users, so prefer --dest-creds-file or --authfile
    #[arg(long, value_name = "USER:PASSWORD", value_parser = creds, help_heading = REGISTRY_OPTIONS)]
    dest_creds: Option<Creds>,
    /// File with the credentials for DST as USER:PASSWORD; - for standard input, /dev/fd/3 for a descriptor
    #[arg(long, value_name = "FILE", value_parser = creds_file(), conflicts_with = "dest_creds")]
    #[arg(help_heading = REGISTRY_OPTIONS)]
    dest_creds_file: Option<Creds>,
}

impl Registries {
    fn access(&self, argument: &Option<Creds>, file: &Option<Creds>) -> Access {
        let creds = argument.as_ref().or(file.as_ref());
        Access { creds: creds.map(|creds| creds.0.clone()), ..self.connection.access() }
    }
}

impl Convert {
    pub(crate) fn run(self, global: &Global) -> Result {
        let request = self.request()?;
        let doing = || format!("cannot convert {} to {}", self.source.text, self.destination.text);
        let progress = Arc::from(output::conversion_progress(global.quiet));
        let converted = interruptible(doing, async {
            tarpon_engine::convert(&request, progress).await.map_err(|error| failure(doing(), error))
        })?;
        if self.json { output::json(&converted) } else { output::text(&text(&converted)) }
    }

    fn request(&self) -> Result<ConvertRequest> {
        self.check_level()?;
        let usage = |message| Failure::new(Exit::Usage, message);
        if self.format == FormatName::ZstdChunked && self.prioritize.is_some() {
            return Err(usage("--prioritize requires --format estargz"));
        }
        let source_access = self.registries.access(&self.registries.src_creds, &self.registries.src_creds_file);
        let source = self.source.clone().completed(&source_access.registries)?;
        Ok(ConvertRequest {
            source_access,
            destination_access: self.registries.access(&self.registries.dest_creds, &self.registries.dest_creds_file),
            platforms: match (self.all_platforms, self.platform.as_slice()) {
                (true, _) => Platforms::All,
                (false, []) => Platforms::Host,
                (false, these) => Platforms::These(these.to_vec()),
            },
            level: self.level,
            jobs: self.jobs.map(usize::from),
            keep_diff_id: self.keep_diff_id,
            prioritised: self.prioritised()?,
            force: self.force,
            ..ConvertRequest::new(&source.text, &self.destination.text, self.format.into())
        })
    }

    fn check_level(&self) -> Result {
        let (format, levels) = match self.format {
            FormatName::Estargz => ("estargz", 0..=HIGHEST_GZIP_LEVEL),
            FormatName::ZstdChunked => ("zstd:chunked", 1..=HIGHEST_ZSTD_LEVEL),
        };
        match self.level {
            Some(level) if !levels.contains(&level) => {
                let (low, high) = levels.into_inner();
                let message = format!("--level {level}: levels of {format} are {low} to {high}");
                Err(Failure::new(Exit::Usage, message))
            }
            _ => Ok(()),
        }
    }

    /// The paths in the file: any bytes but newlines; blank lines are ignored.
    fn prioritised(&self) -> Result<Vec<Vec<u8>>> {
        let Some(file) = &self.prioritize else { return Ok(Vec::new()) };
        let text = std::fs::read(file).doing(|| format!("cannot read {}", file.display()))?;
        let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        Ok(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
    }
}

/// Option errors that only the engine detects are still usage errors.
fn failure(doing: String, error: tarpon_engine::Error) -> Failure {
    let is_usage = error.kind == ErrorKind::Other && error.step.starts_with("read the ");
    let mut failure = Failure::engine(doing, error);
    if is_usage {
        failure.exit = Exit::Usage;
    }
    failure
}

fn text(done: &Conversion) -> String {
    let mut facts = Table::new(&["", ""]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), escape(value.as_bytes())]);
    fact("image", format!("{} ({})", done.destination, done.format));
    fact(if done.is_index { "index" } else { "manifest" }, done.digest.to_string());
    if let Some(toc) = &done.external_toc {
        fact("toc image", format!("{} {}", toc.tag, toc.digest));
    }
    for image in &done.images {
        let (before, after) = (size::human(image.source_size), size::human(image.size));
        fact(&image.platform, format!("{before} → {after} ({})", ratio(image.size, image.source_size)));
    }
    for note in &done.notes {
        fact("note", note.clone());
    }
    let tables: Vec<String> = done.images.iter().map(|image| layers(image, done.is_index)).collect();
    format!("{facts}\n{}", tables.join("\n"))
}

fn layers(image: &ConvertedImage, is_one_of_many: bool) -> String {
    let mut table = Table::new(&[">LAYER", "SOURCE", "DIGEST", ">BEFORE", ">AFTER", ">RATIO", "RESULT"]);
    for (number, layer) in image.layers.iter().enumerate() {
        let how = match layer.outcome {
            Outcome::Converted => "converted",
            Outcome::Copied => "copied",
            Outcome::Reused => "already present",
        };
        table.row([
            (number + 1).to_string(),
            output::short_digest(&layer.source_digest),
            output::short_digest(&layer.digest),
            size::human(layer.source_size),
            size::human(layer.size),
            ratio(layer.size, layer.source_size),
            how.to_owned(),
        ]);
    }
    match is_one_of_many {
        true => format!("{} {}\n{table}", escape(image.platform.as_bytes()), image.digest),
        false => table.to_string(),
    }
}

/// New size relative to the old one: `103 %`.
fn ratio(after: u64, before: u64) -> String {
    match (u128::from(after) * 100 + u128::from(before) / 2).checked_div(u128::from(before)) {
        Some(percent) => format!("{percent} %"),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_rounded_and_a_size_of_zero_has_none() {
        assert_eq!([ratio(103, 100), ratio(1, 3), ratio(5, 0)], ["103 %", "33 %", "-"]);
    }
}
