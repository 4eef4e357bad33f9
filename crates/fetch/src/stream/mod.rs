//! Objects of a layer without random access that are not (or no longer) in the store: the layer is decoded from its beginning once more, in
//! one **pass** that all requests for something further on share.
//!
//! A pass keeps every missing object that it comes across, since its bytes are paid for: a reader of one evicted file of an image is likely to
//! read the next. When nothing further on is wanted, the pass pauses for a while (the source's response is not read) and then ends.

mod input;
pub(crate) mod pass;
mod run;
mod walker;
