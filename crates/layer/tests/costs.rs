//! The cost limit of a layer is proportional to its size, and no ordinary layer comes near it.

mod common;

use std::io::{self, Cursor, Read as _};

use common::index_by_toc_within;
use tarpon_layer::decode::LayerReader;
use tarpon_layer::plain::{Access, Options, import_within};
use tarpon_layer::spans::SpanReader;
use tarpon_layer::toc::TocError;
use tarpon_layer::write::{
    EstargzOptions, WriteError, Written, ZstdChunkedOptions, estargz, estargz_prioritised, zstd_chunked,
};
use tarpon_layer::{Allowance, Excess, LayerIndex, MEMORY_BASE, WRITING, ZEROS_BASE};
use tarpon_testkit::layers::Layer;
use tarpon_testkit::layers::bombs::{bombs, many_empty_files};
use tarpon_testkit::sinks::Forgetful;

/// The errors for an image that would take too much memory, and for one that would take too long.
const EXCESSES: [&str; 2] = ["it would take more than 128 MiB of memory", "it has more than 512 MiB of zeros"];

/// Whole bombs take minutes to make.
const PART: u32 = 16;

/// An allowance of which only this part is left.
fn allowance(part: u32) -> Allowance {
    let allowance = Allowance::default();
    let rest = |base: u64| base - base / u64::from(part);
    let mut share = allowance.share();
    share.take(rest(MEMORY_BASE)).expect("it is within the base");
    share.keep();
    allowance.take_zeros(rest(ZEROS_BASE)).expect("it is within the base");
    allowance
}

/// The layer's index, by its table of contents or by its tar.
fn index(layer: &Layer, allowance: &Allowance) -> Result<LayerIndex, String> {
    allowance.receive(layer.blob.len() as u64);
    if !layer.annotations.is_empty() {
        return index_by_toc_within(layer, allowance).map_err(|error| error.to_string());
    }
    let mut reader = SpanReader::within(&layer.blob[..], allowance).map_err(|error| error.to_string())?;
    let options = Options { access: Access::Spans(reader.starts()), hides_toc_files: false };
    let mut index =
        import_within(&mut reader, options, allowance, &mut Forgetful).map_err(|error| error.to_string())?;
    let compression = reader.compression();
    index.place_in_spans(&reader.finish(), compression);
    Ok(index)
}

#[test]
fn an_image_that_costs_more_than_it_weighs_is_refused_with_the_limit() {
    for (name, make) in bombs(PART) {
        let layers = make();
        let weight: usize = layers.iter().map(|layer| layer.blob.len()).sum();
        assert!(weight <= 512 << 10, "{name}: {weight} bytes are no wonder");
        let allowance = allowance(PART);
        let read: Result<Vec<LayerIndex>, String> = layers.iter().map(|layer| index(layer, &allowance)).collect();
        let error = read.err().unwrap_or_else(|| panic!("{name} is taken"));
        assert!(EXCESSES.iter().any(|excess| error.contains(excess)), "{name}: {error}");
    }
}

#[test]
fn a_table_of_contents_that_costs_too_much_is_no_reason_to_refuse_the_layer() {
    let mut count = 0;
    for (name, make) in bombs(PART).into_iter().filter(|(name, _)| name.contains("table of many entries")) {
        let (layer, allowance) = (&make()[0], allowance(PART));
        allowance.receive(layer.blob.len() as u64);
        let error = index_by_toc_within(layer, &allowance).err();
        assert!(matches!(error, Some(TocError::Excess(Excess::Memory { .. }))), "{name}: {error:?}");
        count += 1;
    }
    assert_eq!(count, 2);
}

#[test]
fn a_layer_of_as_many_empty_files_as_an_image_has_is_read_although_it_weighs_nothing() {
    let layer = many_empty_files(230_000 / 4);
    let index = index(&layer, &allowance(4)).unwrap();
    assert_eq!(index.entries.len(), 57_500);
    assert!(layer.blob.len() < 512 << 10, "{} bytes", layer.blob.len());
}

#[test]
fn what_a_layer_that_was_refused_took_is_free_for_the_next() {
    let allowance = allowance(PART);
    let (_, make) = bombs(PART).swap_remove(1);
    assert!(index(&make()[0], &allowance).is_err());
    allowance.share().take(MEMORY_BASE / u64::from(PART)).unwrap();
}

/// The layer, rewritten by each writer within a part of its allowance.
fn written(layer: &Layer, part: u32) -> [Result<Written, WriteError>; 3] {
    let mut tar = Vec::new();
    let mut decoder = LayerReader::sniffed(&layer.blob[..]).expect("a layer");
    decoder.read_to_end(&mut tar).expect("it decodes");
    let allowance = || {
        let allowance = Allowance::for_writing();
        let mut share = allowance.share();
        share.take(WRITING * (MEMORY_BASE - MEMORY_BASE / u64::from(part))).expect("it is within the base");
        share.keep();
        allowance.receive(layer.blob.len() as u64);
        allowance
    };
    let gzip = EstargzOptions { level: 1, ..EstargzOptions::default() };
    let zstd = ZstdChunkedOptions { level: 1, ..ZstdChunkedOptions::default() };
    [
        estargz(&tar[..], io::sink(), &gzip, &allowance()),
        estargz_prioritised(Cursor::new(&tar), &[], io::sink(), &gzip, &allowance()),
        zstd_chunked(&tar[..], io::sink(), &zstd, &allowance()),
    ]
}

#[test]
fn a_layer_whose_table_of_contents_costs_more_than_its_size_allows_is_not_written() {
    const CASES: [&str; 5] =
        ["many entries, zstd", "deep paths, gzip", "whiteouts of deep paths", "long targets of links", "large xattrs"];
    let mut count = 0;
    for (name, make) in bombs(PART).into_iter().filter(|(name, _)| CASES.contains(name)) {
        for written in written(&make()[0], PART) {
            let error = written.err().unwrap_or_else(|| panic!("{name} is written")).to_string();
            let limit = "it would take more than 256 MiB of memory and 40 bytes for each byte that was received";
            assert!(error.contains(limit), "{name}: {error}");
            count += 1;
        }
    }
    assert_eq!(count, 3 * CASES.len());
}

#[test]
fn a_layer_of_as_many_empty_files_as_can_be_prepared_can_be_written() {
    for written in written(&many_empty_files(230_000 / PART), PART) {
        written.unwrap();
    }
}
