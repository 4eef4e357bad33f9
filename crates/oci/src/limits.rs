//! Limits for external input, each with its reason. A parser checks them before it allocates, recurses or loops.

/// Bytes of a manifest, image index or image config. The distribution spec requires registries to accept 4 MB.
pub const MANIFEST_BYTES: u64 = 4 << 20;
/// Items of one list or object in a manifest or config. Histories and label sets of real images have hundreds.
pub const JSON_ITEMS: usize = 10_000;
/// Bytes of a lock of indexes. A pin takes some 250, so [`JSON_ITEMS`] of them fit.
pub const LOCK_BYTES: u64 = 4 << 20;
/// Bytes of one blob: far beyond any layer, and far from wrapping in `i64`.
pub const BLOB_BYTES: u64 = 1 << 43;
/// Layers of an image. Runtimes fail far earlier (overlayfs at 500 lowers).
pub const LAYERS: usize = 512;
/// Compressed bytes of a TOC: containers/storage accepts 150 MiB, and 32 MiB compressed hold two million entries.
pub const TOC_COMPRESSED_BYTES: u64 = 32 << 20;
/// Decoded bytes of a TOC.
pub const TOC_BYTES: u64 = 128 << 20;
/// Entries of one layer, TOC or tar: 128 MiB of TOC at 64 bytes each.
pub const ENTRIES: usize = 2_000_000;
/// Entries of all layers of an image together, and directories that they imply: about 1 GiB while merging.
pub const IMAGE_ENTRIES: usize = 4_000_000;
/// Chunks of one layer. Chunks of zstd:chunked are about 64 KiB: this allows 256 GiB of them.
pub const CHUNKS: usize = 4_000_000;
/// Components of a path.
pub const PATH_DEPTH: usize = 256;
/// Bytes of a path: `PATH_MAX` of Linux.
pub const PATH_BYTES: usize = 4096;
/// Bytes of one component: `NAME_MAX` of Linux.
pub const NAME_BYTES: usize = 255;
/// Bytes of a symbolic link's target: `PATH_MAX` less its terminator.
pub const SYMLINK_BYTES: usize = 4095;
/// Bytes of an xattr's value: one less than `XATTR_SIZE_MAX` of Linux, because EROFS counts them in 16 bits.
pub const XATTR_VALUE_BYTES: usize = (64 << 10) - 1;
/// Bytes of an xattr's name: `XATTR_NAME_MAX` of Linux.
pub const XATTR_NAME_BYTES: usize = 255;
/// Xattrs of one inode.
pub const XATTRS: usize = 256;
/// Bytes of a file: offsets stay far from wrapping in `i64`, and one EROFS chunk can describe it.
pub const FILE_BYTES: u64 = 1 << 43;
/// Decoded bytes of a chunk. eStargz writes 4 MiB, zstd:chunked seldom more than 1 MiB.
pub const CHUNK_BYTES: u64 = 16 << 20;
/// Encoded bytes of a chunk: decoded plus the little that incompressible data grows by.
pub const CHUNK_ENCODED_BYTES: u64 = 17 << 20;
/// Largest power of two for the zstd window of a chunk or TOC: containers/storage writes zstd:chunked with 32 MiB windows.
pub const ZSTD_CHUNK_WINDOW_LOG: u32 = 25;
/// Largest power of two for the zstd window of a streamed layer: the largest that the zstd tool accepts by default (128 MiB).
pub const ZSTD_LAYER_WINDOW_LOG: u32 = 27;
/// Bytes of PAX records and long names of one tar entry: 256 xattrs would fit, a bomb does not.
pub const TAR_EXTENSION_BYTES: u64 = 1 << 20;
/// Segments of a sparse file in a tar.
pub const SPARSE_SEGMENTS: usize = 1 << 20;
/// Bytes of holes in the sparse files of one layer. A hole costs nothing in a tar but must be hashed: this many take
/// seconds, not hours.
pub const SPARSE_HOLE_BYTES: u64 = 16 << 30;
/// Bytes of a file of nothing but holes in a table of contents or an index. It is hashed when the index is read, with all smaller ones
/// of the layer in one go: this many take two seconds where the processor knows SHA, ten elsewhere.
pub const ZERO_FILE_BYTES: u64 = 4 << 30;
/// Largest major and minor device numbers that Linux accepts from user space.
pub const DEVICE_MAJOR: u64 = (1 << 12) - 1;
/// See [`DEVICE_MAJOR`].
pub const DEVICE_MINOR: u64 = (1 << 20) - 1;
/// Decoded bytes of a gzip member or zstd frame from its start to the end of a chunk in it: the cost limit of reading one chunk.
/// eStargz writers let small files share members of a few hundred KiB.
pub const MEMBER_BYTES: u64 = 64 << 20;
/// Largest uid or gid; `u32::MAX` means "none" to the kernel.
pub const ID: u64 = u32::MAX as u64 - 1;
/// Bytes of a token response.
pub const TOKEN_BYTES: u64 = 64 << 10;
/// Bytes of an error body that are read for its message.
pub const ERROR_BODY_BYTES: u64 = 16 << 10;
/// Pages of one list of tags. Registries have 100 to 1,000 tags on a page.
pub const TAG_PAGES: usize = 100;
/// Tags of one repository that are listed: more than any official image has.
pub const TAGS: usize = 50_000;
/// Index repositories of a user: each is asked for every image that is prepared.
pub const INDEX_REPOS: usize = 8;
/// Redirects of one request.
pub const REDIRECTS: usize = 3;
/// Attempts of one request, the first included.
pub const ATTEMPTS: u32 = 4;
/// Pages of one list of referrers.
pub const REFERRERS_PAGES: usize = 16;
/// Referrers on one page, or examined in a layout: signatures and reports of many years.
pub const REFERRERS: usize = 1_000;
/// Bytes of one small record file of the store (image record, reference, mount): 512 layers at 300 bytes each, with
/// room to spare.
pub const STORE_RECORD_BYTES: u64 = 1 << 20;
/// Bytes of an index artifact: a layer of 100,000 files takes about 6 MiB.
pub const INDEX_ARTIFACT_BYTES: u64 = 128 << 20;
/// Bytes of the index of a boot pack: a start that touches 180,000 pieces of files.
pub const BOOT_INDEX_BYTES: u64 = 8 << 20;
/// Bytes of a stored layer index: as many as the table of contents that it may have come from.
pub const LAYER_INDEX_BYTES: u64 = TOC_BYTES;
/// Bytes of a ztoc: 33 KB for each span of 4 MiB, which is enough for a layer of 16 GB.
pub const ZTOC_BYTES: u64 = 128 << 20;
