//! Measures the time and memory of merging and writing a large image.
//!
//! `cargo run --release -p tarpon-tree --example large_tree [FILES [LAYERS [IMAGE]]]` (default: 230,000 files in 50 layers; the
//! EROFS image is written to IMAGE if that is given).
#![allow(clippy::print_stdout)]

use std::time::Instant;

use tarpon_testkit::stacks;
use tarpon_tree::{erofs, merge};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let files = arguments.next().map_or(Ok(230_000), |text| text.parse())?;
    let count = arguments.next().map_or(Ok(50), |text| text.parse())?;
    let layers = stacks::large(files, count);
    let before = resident("VmRSS:")?;
    let start = Instant::now();
    let tree = merge(&layers)?;
    let merged = start.elapsed();
    let bytes = erofs::write(&tree);
    let written = start.elapsed();
    let image = erofs::Image::open(&bytes)?;
    let summary = image.check()?;
    let checked = start.elapsed();
    println!("{} names, {} inodes, {} objects in {} layers", summary.names, summary.inodes, summary.objects, count);
    println!("merged after {merged:.2?}, written after {written:.2?}, checked after {checked:.2?}");
    println!("image: {} bytes, {} a name", bytes.len(), bytes.len() as u64 / summary.names);
    println!("resident: {before} KiB of layers before, {} KiB at the peak", resident("VmHWM:")?);
    if let Some(path) = arguments.next() {
        std::fs::write(path, &bytes)?;
    }
    Ok(())
}

/// A value of `/proc/self/status`, in KiB.
fn resident(field: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
