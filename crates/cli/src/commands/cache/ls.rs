//! `tarpon cache ls`.

use clap::Args;
use serde::Serialize;
use tarpon_engine::store::{ImageRecord, LayerRecord, Store};
use tarpon_engine::{Commits, Committed};
use tarpon_oci::Digest;

use crate::failure::{Context, Result};
use crate::output::{self, Table, escape};
use crate::size;

const EXAMPLES: &str = "\
Examples:
  tarpon cache ls
  tarpon cache ls --json | jq -r '.[].digest'
  tarpon cache ls --committed --json | jq -r '.[] | select(.pushed == null).image'";

/// List stored images and committed images
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Ls {
    /// List only images created by `tarpon commit`
    #[arg(long)]
    committed: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Image<'a> {
    digest: Digest,
    references: &'a [String],
    platform: &'a str,
    layers: &'a [LayerRecord],
    image_bytes: u64,
    record_bytes: u64,
    last_used: u64,
}

impl Ls {
    pub(super) fn run(&self, store: &Store) -> Result {
        let committed = Commits::of(store).list().doing(|| "cannot list the committed images")?;
        if self.committed {
            return if self.json { output::json(&committed) } else { output::text(&committed_table(&committed)) };
        }
        let images = store.images().doing(|| "cannot list the images")?;
        if self.json {
            return output::json(&images.iter().map(describe).collect::<Vec<_>>());
        }
        output::text(&table(&images))?;
        if committed.is_empty() { Ok(()) } else { output::text(&format!("\n{}", committed_table(&committed))) }
    }
}

fn describe(record: &ImageRecord) -> Image<'_> {
    Image {
        digest: record.manifest,
        references: &record.references,
        platform: &record.platform,
        layers: &record.layers,
        image_bytes: record.compressed_size(),
        record_bytes: record.record_size(),
        last_used: record.last_used,
    }
}

fn table(images: &[ImageRecord]) -> String {
    if images.is_empty() {
        return "no images\n".to_owned();
    }
    let mut table = Table::new(&["IMAGE", "DIGEST", "PLATFORM", ">LAYERS", ">SIZE", "LAST USED"]);
    for image in images {
        table.row([
            escape(image.references.last().map_or("-", String::as_str).as_bytes()),
            output::short_digest(&image.manifest),
            escape(image.platform.as_bytes()),
            image.layers.len().to_string(),
            size::human(image.compressed_size()),
            output::listing::time(i64::try_from(image.last_used).unwrap_or(i64::MAX)),
        ]);
    }
    table.to_string()
}

fn committed_table(committed: &[Committed]) -> String {
    if committed.is_empty() {
        return "no committed images\n".to_owned();
    }
    let mut table = Table::new(&["COMMITTED", "DIGEST", "BASE", ">LAYER", "CREATED", "PUSHED TO"]);
    for image in committed {
        table.row([
            escape(image.image.as_bytes()),
            output::short_digest(&image.digest),
            escape(image.base.as_bytes()),
            size::human(image.layer_size),
            output::listing::time(i64::try_from(image.committed).unwrap_or(i64::MAX)),
            escape(image.pushed.as_deref().unwrap_or("not pushed").as_bytes()),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use tarpon_engine::store::{LayerKind, Verification};

    use super::*;

    fn record() -> ImageRecord {
        let layer = LayerRecord {
            digest: Digest::of(b"layer"),
            size: 3 << 20,
            format: LayerKind::Estargz,
            verification: Verification::Toc,
            prefetch: None,
            index: None,
        };
        let mut record = ImageRecord::new(Digest::of(b"m"), "docker://host/app:v1", "linux/amd64", vec![layer]);
        record.last_used = 1_767_225_600;
        record
    }

    #[test]
    fn images_are_listed_one_a_line() {
        insta::assert_snapshot!(table(&[record()]));
        assert_eq!(table(&[]), "no images\n");
    }

    #[test]
    fn the_json_of_an_image_has_a_stable_shape() {
        insta::assert_snapshot!(serde_json::to_string_pretty(&[describe(&record())]).expect("serialisable"));
    }
}
