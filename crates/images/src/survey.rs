//! [`Survey`]: how large the layers and files of images are, and how often the same ones occur.

use std::collections::HashMap;
use std::path::Path;

use serde::Serialize;
use tarpon_layer::{LayerIndex, Node, ObjectId};
use tarpon_oci::{Blob, Digest, Source};

use crate::access;
use crate::admission;
use crate::error::Result;
use crate::image::ImageRequest;
use crate::images::Images;
use crate::prepare::preparation::index_layers;
use crate::progress::Progress;

/// Figures over all images that were added.
#[derive(Debug, Default)]
pub struct Survey {
    images: Vec<SurveyedImage>,
    layers: HashMap<Digest, LayerFigures>,
    /// Size of each content.
    contents: HashMap<ObjectId, u64>,
    /// Sizes of all files of distinct layers.
    file_sizes: Vec<u64>,
}

/// The figures of one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SurveyedImage {
    /// The image, normalised.
    pub image: String,
    /// Number of layers.
    pub layers: u64,
    /// Compressed bytes of the layers.
    pub compressed: u64,
    /// Regular files of the layers. Those of lower layers that are hidden by upper ones are counted, too.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
}

/// The figures of one layer.
#[derive(Debug, Clone, Copy, Default)]
struct LayerFigures {
    compressed: u64,
    files: u64,
    bytes: u64,
}

/// Quantities with their quantiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// Half of them are at most this.
    pub median: u64,
    /// 90 % of them are at most this.
    pub p90: u64,
    /// All of them are at most this.
    pub most: u64,
}

/// What the images have in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SurveyTotals {
    /// Number of images.
    pub images: u64,
    /// Layers of all images.
    pub layers: u64,
    /// Distinct layers.
    pub distinct_layers: u64,
    /// Compressed bytes of all images.
    pub compressed: u64,
    /// Compressed bytes of distinct layers: what a registry stores.
    pub distinct_compressed: u64,
    /// Bytes of the files of all images.
    pub bytes: u64,
    /// Bytes of the files of distinct layers: what hosts that unpack each layer store.
    pub distinct_bytes: u64,
    /// Bytes of distinct contents: what a store of contents stores.
    pub content_bytes: u64,
    /// Files of distinct layers.
    pub files: u64,
    /// Distinct contents of these files.
    pub contents: u64,
    /// Layers of an image.
    pub layers_of_an_image: Quantiles,
    /// Compressed bytes of a distinct layer.
    pub compressed_of_a_layer: Quantiles,
    /// Files of a distinct layer.
    pub files_of_a_layer: Quantiles,
    /// Bytes of a file of distinct layers.
    pub bytes_of_a_file: Quantiles,
}

/// The images in an OCI layout, or in each OCI layout directly in a folder.
///
/// # Errors
/// The folder cannot be read, or it has no layout.
pub fn images_in(folder: &Path) -> Result<Vec<Source>> {
    tarpon_registry::images_in(folder).map_err(|error| access::source("read the folder", error))
}

impl Images {
    /// Adds an image to a survey. A layer without a table of contents is read whole, once; its content stays in the store.
    ///
    /// # Errors
    /// The image cannot be read.
    pub async fn survey(&self, request: &ImageRequest, survey: &mut Survey, progress: &dyn Progress) -> Result<()> {
        let repository = access::open(&request.text, &request.access).await?;
        let image = admission::resolve(&repository, &request.access, &request.platform).await?;
        let part = self.for_image(&request.text, &request.access)?;
        let layers = index_layers(&part, &repository, &image, progress).await?;
        survey.add(image.name.clone(), layers.iter().map(|layer| (layer.blob, &layer.index)));
        Ok(())
    }
}

impl Survey {
    /// Adds the layers of an image.
    fn add<'a>(&mut self, image: String, layers: impl Iterator<Item = (Blob, &'a LayerIndex)>) {
        let mut added = SurveyedImage { image, layers: 0, compressed: 0, files: 0, bytes: 0 };
        for (blob, index) in layers {
            let figures = match self.layers.get(&blob.digest) {
                Some(known) => *known,
                None => self.add_layer(blob, index),
            };
            added.layers += 1;
            added.compressed += figures.compressed;
            added.files += figures.files;
            added.bytes += figures.bytes;
        }
        self.images.push(added);
    }

    fn add_layer(&mut self, blob: Blob, index: &LayerIndex) -> LayerFigures {
        let mut figures = LayerFigures { compressed: blob.size, ..LayerFigures::default() };
        for entry in &index.entries {
            let Node::File(content) = &entry.node else { continue };
            figures.files += 1;
            figures.bytes += content.size;
            self.contents.insert(content.object, content.size);
            self.file_sizes.push(content.size);
        }
        self.layers.insert(blob.digest, figures);
        figures
    }

    /// The images in the order in which they were added.
    #[must_use]
    pub fn images(&self) -> &[SurveyedImage] {
        &self.images
    }

    /// The figures over all images.
    #[must_use]
    pub fn totals(&self) -> SurveyTotals {
        let of_images = |figure: fn(&SurveyedImage) -> u64| self.images.iter().map(figure);
        let of_layers = |figure: fn(&LayerFigures) -> u64| self.layers.values().map(figure);
        SurveyTotals {
            images: self.images.len() as u64,
            layers: of_images(|image| image.layers).sum(),
            distinct_layers: self.layers.len() as u64,
            compressed: of_images(|image| image.compressed).sum(),
            distinct_compressed: of_layers(|layer| layer.compressed).sum(),
            bytes: of_images(|image| image.bytes).sum(),
            distinct_bytes: of_layers(|layer| layer.bytes).sum(),
            content_bytes: self.contents.values().sum(),
            files: of_layers(|layer| layer.files).sum(),
            contents: self.contents.len() as u64,
            layers_of_an_image: Quantiles::of(of_images(|image| image.layers)),
            compressed_of_a_layer: Quantiles::of(of_layers(|layer| layer.compressed)),
            files_of_a_layer: Quantiles::of(of_layers(|layer| layer.files)),
            bytes_of_a_file: Quantiles::of(self.file_sizes.iter().copied()),
        }
    }
}

impl Quantiles {
    fn of(values: impl Iterator<Item = u64>) -> Self {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        let at = |percent: usize| {
            let place = (values.len() * percent).div_ceil(100).saturating_sub(1);
            values.get(place).copied().unwrap_or_default()
        };
        Self { median: at(50), p90: at(90), most: at(100) }
    }
}

#[cfg(test)]
mod tests {
    use tarpon_layer::{Attributes, Entry, FileContent, LayerPath};

    use super::*;

    fn layer(files: &[&str]) -> (Blob, LayerIndex) {
        let file = |(number, content): (usize, &&str)| Entry {
            path: LayerPath::from_normal(number.to_string().as_bytes()).expect("a path"),
            node: Node::File(
                FileContent {
                    size: content.len() as u64,
                    object: Digest::of(content.as_bytes()),
                    first_chunk: 0,
                    chunk_count: 0,
                }
                .into(),
            ),
            attributes: Attributes::default().into(),
        };
        let entries = files.iter().enumerate().map(file).collect();
        let digest = Digest::of(files.concat().as_bytes());
        (Blob { digest, size: 2 }, LayerIndex { entries, ..LayerIndex::default() })
    }

    #[test]
    fn a_layer_of_two_images_is_counted_once_and_so_is_a_content() {
        let (base, one, other) = (layer(&["aaaa", "bb"]), layer(&["aaaa"]), layer(&["bb", "cccccc"]));
        let mut survey = Survey::default();
        for top in [&one, &other] {
            survey.add("i".to_owned(), [&base, top].into_iter().map(|(blob, index)| (*blob, index)));
        }
        assert_eq!((survey.images()[0].files, survey.images()[0].bytes, survey.images()[1].bytes), (3, 10, 14));
        let totals = survey.totals();
        assert_eq!((totals.images, totals.layers, totals.distinct_layers), (2, 4, 3));
        assert_eq!((totals.compressed, totals.distinct_compressed), (8, 6));
        assert_eq!((totals.bytes, totals.distinct_bytes, totals.content_bytes), (24, 18, 12));
        assert_eq!((totals.files, totals.contents), (5, 3));
        assert_eq!(totals.bytes_of_a_file, Quantiles { median: 4, p90: 6, most: 6 });
    }

    #[test]
    fn nothing_has_no_figures() {
        let totals = Survey::default().totals();
        assert_eq!((totals.images, totals.files, totals.bytes_of_a_file.most), (0, 0, 0));
    }
}
