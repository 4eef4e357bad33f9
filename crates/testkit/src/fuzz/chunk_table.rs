//! Invariant: any bytes are refused or are a table with consistent answers.

use tarpon_layer::ChunkPlace;
use tarpon_layer::chunks::ChunkTable;

/// Parses `data` as a chunk table.
pub fn chunk_table(data: &[u8]) {
    let Ok(table) = ChunkTable::open(data) else { return };
    let mut seen = 0;
    for (id, object) in table.objects() {
        assert_eq!(table.find(&id).as_ref(), Some(&object));
        let mut place = 0;
        for number in object.chunks.clone() {
            let entry = table.chunk(number).expect("it is there");
            assert_eq!((entry.object, entry.chunk.object_offset), (object.number, place));
            assert_eq!(table.chunk_at(&object, place), Some(number));
            assert!(table.layer(entry.layer).is_some());
            if let ChunkPlace::Blob { offset, .. } = entry.chunk.place {
                let next = offset.saturating_add(1);
                assert!(offset == u64::MAX || table.by_place(entry.layer, offset..next).any(|other| other == number));
            }
            place += entry.chunk.size;
            seen += 1;
        }
        assert_eq!((place, table.chunk_at(&object, place)), (object.size, None));
    }
    assert_eq!(seen, table.chunk_count());
}
