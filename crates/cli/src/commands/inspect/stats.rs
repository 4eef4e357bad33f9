//! `tarpon inspect --stats`.

use std::path::PathBuf;

use serde::Serialize;
use tarpon_engine::{Quantiles, Survey, SurveyTotals, SurveyedImage, images_in};

use crate::commands::image::{ImageName, ImageNameError, ImageOptions, image_name};
use crate::commands::session::{Session, command_runtime};
use crate::failure::{Context, Result};
use crate::output::{self, Table, escape};
use crate::size;

/// What is compared.
#[derive(Debug, Clone)]
pub(super) enum Target {
    Image(ImageName),
    /// An OCI layout, or a folder of them.
    Folder(PathBuf),
}

/// Parses an argument: a path that begins with a slash or a dot is a folder, which no image name is.
pub(super) fn target(argument: &str) -> std::result::Result<Target, ImageNameError> {
    if argument.starts_with(['/', '.']) {
        return Ok(Target::Folder(std::path::absolute(argument)?));
    }
    image_name(argument).map(Target::Image)
}

#[derive(Serialize)]
struct Stats<'a> {
    images: &'a [SurveyedImage],
    totals: SurveyTotals,
}

pub(super) fn run(session: &Session, options: &ImageOptions, targets: Vec<Target>, json: bool, quiet: bool) -> Result {
    let mut survey = Survey::default();
    let progress = output::progress(quiet);
    let runtime = command_runtime()?;
    for image in images(targets)? {
        let doing = || format!("cannot inspect {}", image.text);
        let request = options.request(image.clone()).doing(doing)?;
        runtime.block_on(session.engine().survey(&request, &mut survey, &*progress)).doing(doing)?;
    }
    drop(progress);
    let stats = Stats { images: survey.images(), totals: survey.totals() };
    if json { output::json(&stats) } else { output::text(&text(&stats)) }
}

/// The images of all targets, in order.
fn images(targets: Vec<Target>) -> Result<Vec<ImageName>> {
    let mut images = Vec::new();
    for target in targets {
        match target {
            Target::Image(image) => images.push(image),
            Target::Folder(folder) => {
                let found =
                    images_in(&folder).doing(|| format!("cannot inspect the images in {}", folder.display()))?;
                images.extend(found.into_iter().map(|source| ImageName { text: source.to_string(), source }));
            }
        }
    }
    Ok(images)
}

fn text(stats: &Stats<'_>) -> String {
    format!("{}\n{}\n{}", facts(&stats.totals), quantiles(&stats.totals), table(stats.images))
}

/// `2.6`, for a ratio.
fn times(whole: u64, part: u64) -> String {
    if part == 0 { "1.0".to_owned() } else { format!("{:.1}", whole as f64 / part as f64) }
}

fn facts(totals: &SurveyTotals) -> String {
    let mut facts = Table::new(&["", ""]);
    let mut fact = |name: &str, value: String| facts.row([name.to_owned(), value]);
    fact("images", totals.images.to_string());
    fact("layers", format!("{}, {} of them distinct", totals.layers, totals.distinct_layers));
    fact(
        "compressed",
        format!("{}, distinct layers {}", size::human(totals.compressed), size::human(totals.distinct_compressed)),
    );
    fact(
        "unpacked",
        format!(
            "{}, distinct layers {}, {} times their compressed size",
            size::human(totals.bytes),
            size::human(totals.distinct_bytes),
            times(totals.distinct_bytes, totals.distinct_compressed)
        ),
    );
    let copies = totals.files.saturating_sub(totals.contents);
    fact(
        "files",
        format!(
            "{} in distinct layers, {} of them copies of others",
            totals.files,
            size::percent(copies, totals.files)
        ),
    );
    fact(
        "store",
        format!(
            "{} of distinct contents: {} less than unpacked layers, {} less than unpacked images",
            size::human(totals.content_bytes),
            size::percent(totals.distinct_bytes.saturating_sub(totals.content_bytes), totals.distinct_bytes),
            size::percent(totals.bytes.saturating_sub(totals.content_bytes), totals.bytes)
        ),
    );
    facts.to_string()
}

fn quantiles(totals: &SurveyTotals) -> String {
    let mut table = Table::new(&["", ">MEDIAN", ">90 %", ">MOST"]);
    let mut row = |name: &str, quantiles: &Quantiles, shown: fn(u64) -> String| {
        table.row([name.to_owned(), shown(quantiles.median), shown(quantiles.p90), shown(quantiles.most)]);
    };
    let count = |count: u64| count.to_string();
    row("layers of an image", &totals.layers_of_an_image, count);
    row("compressed bytes of a layer", &totals.compressed_of_a_layer, size::human);
    row("files of a layer", &totals.files_of_a_layer, count);
    row("bytes of a file", &totals.bytes_of_a_file, size::human);
    table.to_string()
}

fn table(images: &[SurveyedImage]) -> String {
    let mut table = Table::new(&["IMAGE", ">LAYERS", ">COMPRESSED", ">FILES", ">UNPACKED"]);
    for image in images {
        table.row([
            escape(image.image.as_bytes()),
            image.layers.to_string(),
            size::human(image.compressed),
            image.files.to_string(),
            size::human(image.bytes),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_folder_and_anything_else_an_image() {
        let is_folder = |argument: &str| matches!(target(argument), Ok(Target::Folder(_)));
        assert!(is_folder("./layouts") && is_folder("/srv/layouts") && is_folder("."));
        assert!(!is_folder("layouts") && !is_folder("oci:/srv/layout:v1") && target("oci:").is_err());
    }

    #[test]
    fn ratios_of_nothing_are_one() {
        assert_eq!([times(26, 10), times(0, 0)], ["2.6", "1.0"]);
    }
}
