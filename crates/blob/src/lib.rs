//! The two interfaces between fetching and its surroundings: [`BlobSource`] (where the bytes of layers come from) and
//! [`ObjectStore`] (where the objects of this host are kept), with their errors.
//!
//! A source or a store implements its trait without a dependency on the code that fetches. The only other thing here is
//! [`LogLimit`], which all of them use, because their users can trigger the same log line without end.

mod log_limit;
mod object_store;
mod source;

pub use log_limit::{LeftOut, LogLimit};
pub use object_store::{ObjectStore, ObjectWriter, Opened, PartialObject, StoreError};
pub use source::{BlobSource, BlobStream, Fault, SourceError};
