//! Reads while the disk of the store fails: each call of the disk, in each way. The reader gets the right bytes from the
//! source.
//!
//! A seed determines the contents, and which cases are part of an ordinary run: see [`tarpon_testkit::seeds`].

mod common;

use std::sync::Arc;

use common::noise;
use futures::future::join_all;
use tarpon_fetch::{Config, Fetcher};
use tarpon_oci::Digest;
use tarpon_store::{Store, StoreConfig};
use tarpon_testkit::matrix;
use tarpon_testkit::seeds::Seeds;
use tarpon_testkit::source::{Form, MemorySource, PackedLayer, Packer, table_of};
use tarpon_testkit::storage::{EDQUOT, EIO, EMFILE, ENOSPC, EROFS, Fault, FaultyDisk};
use tokio::runtime::Handle;

const FAULTS: [Fault; 9] = [
    Fault::Once(EIO),
    Fault::Once(ENOSPC),
    Fault::EverFrom(EIO),
    Fault::FromNowOn(ENOSPC),
    Fault::FromNowOn(EDQUOT),
    Fault::FromNowOn(EROFS),
    Fault::OpensFrom(EMFILE),
    Fault::Interrupted,
    Fault::Short,
];
/// Objects in memory until they are complete, in one file, and of several chunks.
const SIZES: [usize; 3] = [10_000, 100_000, 300_000];
const CHUNK: usize = 64 << 10;
/// One of so many cases is part of an ordinary run. No divisor of the number of faults.
const ORDINARY: usize = 8;

struct Layer {
    contents: Vec<(Digest, Vec<u8>)>,
    packed: PackedLayer,
}

impl Layer {
    fn new(seed: u64) -> Self {
        let mut packer = Packer::new(Form::Zstd);
        let contents = SIZES.iter().zip(seed * 8..).map(|(&size, seed)| noise(seed, size));
        let contents = contents.map(|content| (packer.object(&content, CHUNK), content)).collect();
        Self { contents, packed: packer.finish() }
    }

    /// Reads everything twice through a store on this disk. A store that cannot be opened serves no reader.
    async fn read(&self, disk: &Arc<FaultyDisk>) -> Result<(), String> {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).map_err(|e| e.to_string())?;
        let storage = Arc::new(FaultyDisk::healthy());
        drop(Store::open(folder.path(), StoreConfig { storage, ..StoreConfig::default() }));
        let storage: Arc<FaultyDisk> = Arc::clone(disk);
        let config = StoreConfig { storage, free_floor: Some(0), ..StoreConfig::default() };
        let Ok(store) = Store::open(folder.path(), config) else { return Ok(()) };
        let fetcher = Fetcher::new(Arc::new(store), Handle::current(), Config::default());
        let source = Arc::new(MemorySource::new([self.packed.bytes.clone()]));
        let _image = fetcher.add_image(table_of(&[&self.packed]), source, "test:latest");
        for round in ["first", "second"] {
            let reads = self.contents.iter().map(|(object, content)| {
                let read = fetcher.read(object, 0, content.len() as u64);
                async move {
                    match read.await {
                        Ok(bytes) if bytes.clone().into_bytes() == *content => Ok(()),
                        Ok(_) => Err(format!("{} wrong bytes in the {round} round", content.len())),
                        Err(error) => Err(format!("{} bytes in the {round} round: {error}", content.len())),
                    }
                }
            });
            join_all(reads).await.into_iter().collect::<Result<(), String>>()?;
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_any_call_of_the_disk_reaches_no_reader() {
    let seeds = Seeds::from_environment(1);
    let every = if seeds.is_complete || matrix::is_full() { 1 } else { ORDINARY };
    let (mut cases, mut failures) = (0, Vec::new());
    for seed in seeds {
        let layer = Layer::new(seed);
        let sound = Arc::new(FaultyDisk::healthy());
        layer.read(&sound).await.unwrap();
        let all = (1..=sound.operations()).flat_map(|at| FAULTS.map(|fault| (at, fault)));
        for (at, fault) in all.skip(usize::try_from(seed).unwrap() % every).step_by(every) {
            cases += 1;
            let disk = Arc::new(FaultyDisk::new(at, fault));
            if let Err(why) = layer.read(&disk).await {
                // Which call is the nth differs from run to run: several threads use the disk.
                let log = disk.log();
                let call = log.get(usize::try_from(at - 1).unwrap()).map_or("", String::as_str);
                failures.push(format!("{fault:?} at call {at}, {call}, SEED={seed}: {why}"));
            }
        }
    }
    println!("cases: {cases}\nfailures: {}", failures.len());
    assert!(failures.is_empty(), "{} of {cases}:\n{}", failures.len(), failures.join("\n"));
}
