//! Invariant: any bytes are refused or give an index that keeps its promises; a compressed and a bare layer of the same
//! bytes give the same result; and every chunk of a bare layer has the place and the digest that the index states.

use tarpon_layer::decode::decode_chunk;
use tarpon_layer::plain::{Access, ObjectSink, Options, import};
use tarpon_layer::spans::SpanStarts;
use tarpon_layer::{ChunkPlace, LayerIndex, Node};
use tarpon_oci::{Digest, Verified};

use crate::layers::check_index;

/// Larger files take too long to hash. Only files of holes can be larger than the input.
const LARGEST: u64 = 16 << 20;

/// Parses `data` as the tar of a layer.
pub fn tar_walk(data: &[u8]) {
    let walk = |access| import(data, Options { access, hides_toc_files: false }, &mut Sink);
    let (bare, streamed) = (walk(Access::Random), walk(Access::Spans(SpanStarts::default())));
    let (Ok(bare), Ok(streamed)) = (&bare, &streamed) else {
        assert_eq!(bare.is_ok(), streamed.is_ok());
        return;
    };
    check_index(bare, data.len() as u64);
    check_index(streamed, data.len() as u64);
    assert_eq!(shown(bare), shown(streamed));
    let mut bytes = Vec::new();
    for chunk in &bare.chunks {
        if let ChunkPlace::Blob { codec, offset, length, skip } = chunk.place {
            let (start, length) = (usize::try_from(offset).expect("small"), usize::try_from(length).expect("small"));
            decode_chunk(codec, &data[start..start + length], skip, chunk.size, &mut bytes).expect("it is there");
            assert_eq!(Digest::of(&bytes), chunk.digest);
        }
    }
}

fn shown(index: &LayerIndex) -> LayerIndex {
    let mut index = index.clone();
    index.chunks.clear();
    for entry in &mut index.entries {
        if let Node::File(content) = &mut entry.node {
            (content.first_chunk, content.chunk_count) = (0, 0);
        }
    }
    index
}

/// Accepts files up to the limit, and discards them.
pub(super) struct Sink;

impl ObjectSink for Sink {
    type Error = ();

    fn begin(&mut self, size: u64) -> Result<(), ()> {
        if size > LARGEST { Err(()) } else { Ok(()) }
    }

    fn write(&mut self, _: &[u8]) -> Result<(), ()> {
        Ok(())
    }

    fn hole(&mut self, _: u64) -> Result<(), ()> {
        Ok(())
    }

    fn finish(&mut self, _: Verified<()>) -> Result<(), ()> {
        Ok(())
    }
}
