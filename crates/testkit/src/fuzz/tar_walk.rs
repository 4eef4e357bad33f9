//! Invariant: any bytes are refused or give an index that keeps its promises; a compressed and a bare layer of the same bytes
//! show the same; and every chunk of a bare layer is where the index says, under the digest that the index says.

use tarpon_layer::decode::decode_chunk;
use tarpon_layer::plain::{Access, ObjectSink, Options, import};
use tarpon_layer::spans::SpanStarts;
use tarpon_layer::{LayerIndex, Node, Place};
use tarpon_oci::{Digest, Verified};

use crate::layers::check_index;

/// Larger files (of holes: nothing else can be larger than the input) take too long to hash.
const LARGEST: u64 = 16 << 20;

/// Takes `data` as the tar of a layer.
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
        if let Place::Blob { codec, offset, length, skip } = chunk.place {
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

/// Takes files that are not too large, and forgets them.
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
