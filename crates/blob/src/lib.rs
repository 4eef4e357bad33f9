//! The two interfaces between fetching and its surroundings: [`BlobSource`] (where the bytes of layers come from) and
//! [`ObjectStore`] (where the objects of this host are kept), with their errors.
//!
//! A source or a store implements its trait without a dependency on the code that fetches. The only other things here
//! are [`LogLimit`], which all of them use, because their users can trigger the same log line without end, and [`Paced`], a source with
//! a limited rate.

mod log_limit;
mod object_store;
mod paced;
mod source;

pub use log_limit::{LeftOut, LogLimit};
pub use object_store::{ObjectStore, ObjectWriter, Opened, PartialObject, StoreError};
pub use paced::{Pace, Paced};
pub use source::{BlobSource, BlobStream, Fault, SourceError};
