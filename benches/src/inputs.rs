//! Layers that resemble those of an interpreter with packages, and texts that compress like programs.

use std::io;

use tarpon_layer::LayerIndex;
use tarpon_layer::plain::{Access, ObjectSink, Options, import};
use tarpon_oci::Verified;

/// Text of this many bytes, the same for the same seed.
pub(crate) fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let line = |number: u64| format!("line {number} {:x}\n", (number ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..).flat_map(|number| line(number).into_bytes()).take(bytes).collect()
}

/// The tar of a layer of `files` files, sixteen to a directory.
pub(crate) fn layer_tar(seed: u64, files: u64) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for number in 0..files {
        let folder = format!("usr/lib/python3/site-packages/package_{}/part_{}", number / 128, number / 16);
        if number % 16 == 0 {
            let mut header = header(0o755, 0);
            header.set_entry_type(tar::EntryType::Directory);
            tar.append_data(&mut header, &folder, io::empty()).unwrap();
        }
        // A quarter of the files are the same in each layer of a stack.
        let seed = if number % 4 == 0 { number } else { number ^ (seed << 32) };
        let content = text(seed, 200 + usize::try_from(number % 7).unwrap_or(0) * 500);
        let path = format!("{folder}/module_{number}.py");
        tar.append_data(&mut header(0o644, content.len() as u64), path, &content[..]).unwrap();
    }
    tar.into_inner().unwrap()
}

fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(1_700_000_000);
    header
}

/// A stack of layers, as imported.
pub(crate) fn stack(layers: u64, files: u64) -> Vec<LayerIndex> {
    let options = || Options { access: Access::Random, hides_toc_files: false };
    (0..layers).map(|seed| import(&layer_tar(seed, files)[..], options(), &mut Forget).unwrap()).collect()
}

/// A sink that drops all files.
pub(crate) struct Forget;

impl ObjectSink for Forget {
    type Error = std::convert::Infallible;

    fn begin(&mut self, _: u64) -> Result<(), Self::Error> {
        Ok(())
    }

    fn write(&mut self, _: &[u8]) -> Result<(), Self::Error> {
        Ok(())
    }

    fn hole(&mut self, _: u64) -> Result<(), Self::Error> {
        Ok(())
    }

    fn finish(&mut self, _: Verified<()>) -> Result<(), Self::Error> {
        Ok(())
    }
}
