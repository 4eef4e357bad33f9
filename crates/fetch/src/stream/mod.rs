//! Objects of a layer without random access that are not (or no longer) in the store. The layer is decoded from its beginning
//! again, in one **pass** that all requests for later places share.
//!
//! A pass keeps every missing object that it meets, because its bytes were transferred in any case: a reader of one evicted file of an image is
//! likely to read the next. When nothing further on is wanted, the pass pauses for a while (the source's response is not read) and
//! then ends.

mod input;
pub(crate) mod pass;
mod run;
mod walker;
