//! [`Reads`]: the bytes of a file, all or nothing.
//!
//! A read is answered in two steps, so that the caller can choose its thread: [`Reads::now`] uses local data only;
//! [`Reads::later`] may use the network, and always ends within its deadline. Both return exactly the bytes between
//! `offset` and the smaller of `offset + length` and the end of the file: the reading program would take a shorter answer
//! in mid-file for the end of the file.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tarpon_blob::LogLimit;

use crate::{Content, Errno, Objects};

/// Maximum duration of a read. The fetcher gives up after 28 s; this is the safety net below it.
const DEADLINE: Duration = Duration::from_secs(30);

/// Reads of files over a source of objects. Cheap to clone.
#[derive(Clone)]
pub struct Reads {
    objects: Arc<dyn Objects>,
}

/// The plan of a read before any byte is accessed.
enum Plan {
    Nothing,
    Range { object: tarpon_oci::Digest, length: usize },
}

impl Reads {
    /// Reads bytes from `objects`.
    pub fn new(objects: Arc<dyn Objects>) -> Self {
        Self { objects }
    }

    /// The bytes, if they are local; `None` means: call [`Reads::later`].
    pub fn now(&self, content: Content, offset: u64, length: u32) -> Result<Option<Bytes>, Errno> {
        match plan(content, offset, length)? {
            Plan::Nothing => Ok(Some(Bytes::new())),
            Plan::Range { object, length } => {
                self.objects.read_local(&object, offset, length)?.map(|bytes| whole(bytes, length)).transpose()
            }
        }
    }

    /// The bytes, from any source.
    pub async fn later(&self, content: Content, offset: u64, length: u32) -> Result<Bytes, Errno> {
        match plan(content, offset, length)? {
            Plan::Nothing => Ok(Bytes::new()),
            Plan::Range { object, length } => {
                let answer = tokio::time::timeout(DEADLINE, self.objects.read(object, offset, length)).await;
                whole(answer.map_err(|_late| Errno::Io)??, length)
            }
        }
    }

    /// Bytes that no reader requested, for the kernel's page cache, if all of them are local: see [`Objects::page_in`].
    pub fn page_in(&self, content: Content, offset: u64, length: u32) -> Option<Bytes> {
        let Ok(Plan::Range { object, length }) = plan(content, offset, length) else { return None };
        self.objects.page_in(&object, offset, length).filter(|bytes| bytes.len() == length)
    }

    /// The future to await before [`Reads::local_file`], if there is a local file that must be verified first.
    pub fn before_local_file(&self, content: Content) -> Option<BoxFuture<'static, ()>> {
        content.object.and_then(|object| self.objects.check_local(&object))
    }

    /// The file's bytes as one complete local file, if they are all local and verified.
    pub fn local_file(&self, content: Content) -> Option<Arc<File>> {
        content.object.and_then(|object| self.objects.open_local(&object))
    }
}

fn plan(content: Content, offset: u64, length: u32) -> Result<Plan, Errno> {
    let left = content.size.saturating_sub(offset);
    let length = usize::try_from(left.min(u64::from(length))).map_err(|_| Errno::Invalid)?;
    match content.object {
        _ if length == 0 => Ok(Plan::Nothing),
        Some(object) => Ok(Plan::Range { object, length }),
        // A non-empty file without an object: the tree is not one of ours.
        None => Err(Errno::Io),
    }
}

fn whole(bytes: Bytes, length: usize) -> Result<Bytes, Errno> {
    if bytes.len() == length {
        return Ok(bytes);
    }
    static HELD_BACK: LogLimit = LogLimit::new();
    if let Some(left_out) = HELD_BACK.admit() {
        tracing::error!(asked = length, got = bytes.len(), "a read of the wrong length was held back{left_out}");
    }
    Err(Errno::Io)
}

#[cfg(test)]
mod tests {
    use tarpon_oci::Digest;

    use super::*;

    /// An object that returns fewer bytes than requested, or never answers.
    struct Bad {
        silent: bool,
    }

    impl Objects for Bad {
        fn size(&self, _: &Digest) -> Option<u64> {
            None
        }

        fn read_local(&self, _: &Digest, _: u64, length: usize) -> Result<Option<Bytes>, Errno> {
            Ok(Some(Bytes::from(vec![0; length - 1])))
        }

        fn read(&self, _: Digest, _: u64, length: usize) -> BoxFuture<'static, Result<Bytes, Errno>> {
            let silent = self.silent;
            Box::pin(async move {
                if silent {
                    std::future::pending::<()>().await;
                }
                Ok(Bytes::from(vec![0; length - 1]))
            })
        }

        fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
            None
        }
    }

    fn content(size: u64) -> Content {
        Content { object: Some(Digest::of(b"")), size }
    }

    #[tokio::test]
    async fn bytes_that_are_too_few_are_an_error() {
        let reads = Reads::new(Arc::new(Bad { silent: false }));
        assert_eq!(reads.now(content(10), 0, 10), Err(Errno::Io));
        assert_eq!(reads.later(content(10), 0, 10).await, Err(Errno::Io));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_never_answers_is_an_error_in_the_end() {
        let reads = Reads::new(Arc::new(Bad { silent: true }));
        assert_eq!(reads.later(content(10), 0, 10).await, Err(Errno::Io));
    }

    #[tokio::test]
    async fn reads_beyond_the_end_ask_for_nothing() {
        let reads = Reads::new(Arc::new(Bad { silent: true }));
        for (offset, length) in [(10, 1), (u64::MAX, u32::MAX), (3, 0)] {
            assert_eq!(reads.now(content(10), offset, length), Ok(Some(Bytes::new())));
            assert_eq!(reads.later(content(10), offset, length).await, Ok(Bytes::new()));
        }
        let empty = Content { object: None, size: 0 };
        assert_eq!(reads.now(empty, 0, 4096), Ok(Some(Bytes::new())));
        let inconsistent = Content { object: None, size: 1 };
        assert_eq!(reads.now(inconsistent, 0, 4096), Err(Errno::Io));
    }
}
