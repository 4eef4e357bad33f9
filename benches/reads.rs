//! The cost of a read without the network: hits, misses of small objects, a long sequential read. The source and the store are in
//! memory, so this measures fetching alone: planning, waiting, decoding, hashing.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tarpon_fetch::{Config, Fetcher, ImageHandle};
use tarpon_oci::Digest;
use tarpon_testkit::source::{Form, MemorySource, MemoryStore, PackedLayer, Packer, table_of};
use tokio::runtime::Runtime;

const MIB: usize = 1 << 20;

fn text(bytes: usize) -> Vec<u8> {
    (0_u64..)
        .flat_map(|line| format!("line {line} {:x}\n", line.wrapping_mul(0x9e37_79b9)).into_bytes())
        .take(bytes)
        .collect()
}

fn fetcher(runtime: &Runtime, layer: &PackedLayer, config: Config) -> (Fetcher, ImageHandle) {
    let source = Arc::new(MemorySource::new([layer.bytes.clone()]));
    let fetcher = Fetcher::new(Arc::new(MemoryStore::default()), runtime.handle().clone(), config);
    let image = fetcher.add_image(table_of(&[layer]), source, "bench:latest");
    (fetcher, image)
}

fn hits(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut packer = Packer::new(Form::Zstd);
    let (whole, part) = (packer.object(&text(MIB), 64 << 10), packer.object(&text(2 * MIB), 64 << 10));
    let (fetcher, _image) = fetcher(&runtime, &packer.finish(), Config::default());
    runtime.block_on(async {
        for (object, length) in [(whole, MIB), (part, MIB)] {
            fetcher.read(&object, 0, length as u64).await.expect("a read");
        }
    });
    while fetcher.open_local(&whole).is_none() {
        std::thread::yield_now();
    }
    for (name, object) in [("complete", whole), ("partial", part)] {
        for length in [4 << 10, 128 << 10] {
            c.bench_function(&format!("hit/{name}/{}k", length >> 10), |b| {
                b.iter(|| black_box(fetcher.read_local(&object, 512 << 10, length)).expect("here"));
            });
        }
    }
}

fn misses(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut packer = Packer::new(Form::Zstd);
    let objects: Vec<Digest> = (0..256).map(|number| packer.object(&text(8000 + number), 64 << 10)).collect();
    let layer = packer.finish();
    let mut group = c.benchmark_group("miss/256 objects of 8k");
    group.sample_size(20);
    for inline_bytes in [0, 32 << 10] {
        let config = Config { inline_bytes, ..Config::default() };
        group.bench_function(format!("inline {inline_bytes}"), |b| {
            let new = || fetcher(&runtime, &layer, config.clone());
            let read = |(fetcher, image): (Fetcher, ImageHandle)| {
                for object in &objects {
                    runtime.block_on(fetcher.read(object, 0, 9000)).expect("a read");
                }
                image
            };
            b.iter_batched(new, read, BatchSize::PerIteration);
        });
    }
    group.finish();
}

fn sequential(c: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = c.benchmark_group("sequential 64 MiB");
    group.sample_size(10).throughput(Throughput::Bytes(64 << 20));
    for (form, chunk) in [(Form::Raw, 4 * MIB), (Form::Zstd, 64 << 10), (Form::Gzip, 4 * MIB)] {
        let mut packer = Packer::new(form);
        let object = packer.object(&text(64 * MIB), chunk);
        let layer = packer.finish();
        group.bench_function(format!("{form:?}"), |b| {
            let new = || fetcher(&runtime, &layer, Config::default());
            let read = |(fetcher, image): (Fetcher, ImageHandle)| {
                for part in 0..512_u64 {
                    let at = part * (128 << 10);
                    if fetcher.read_local(&object, at, 128 << 10).is_none() {
                        runtime.block_on(fetcher.read(&object, at, 128 << 10)).expect("a read");
                    }
                }
                image
            };
            b.iter_batched(new, read, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group!(benches, hits, misses, sequential);
criterion_main!(benches);
