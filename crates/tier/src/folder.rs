//! [`Folder`]: a folder of a shared file system as a store.
//!
//! A system call on a file system whose server is away may never return. Such calls run on threads of their own: they cannot use up the
//! threads on which the program reads and writes its own files, and the program does not wait for them when it ends.

use std::fmt;
use std::fs::File;
use std::future::Future;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, Stream};
use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::error;
use crate::links::{Links, refuse};
use crate::listing::Listing;
use crate::timing::REQUEST;

/// Most system calls at the same time: reads of a few containers that start.
const THREADS: usize = 16;
/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;
const STEP: &str = "open the tier";

/// Objects as files in a folder.
pub(crate) struct Folder {
    root: PathBuf,
    files: LocalFileSystem,
    threads: Option<Runtime>,
    handle: Handle,
}

impl Folder {
    /// The folder, which must exist.
    pub(crate) fn open(folder: PathBuf) -> error::Result<Self> {
        let failed = |error: std::io::Error| error::Error::new(STEP, error.to_string());
        let (sender, receiver) = mpsc::channel();
        let open = move || {
            // Fails if the caller does not wait any more.
            let _sent = sender.send(files(folder));
        };
        std::thread::Builder::new().name("tarpon-tier".to_owned()).spawn(open).map_err(failed)?;
        let (root, files) = receiver.recv_timeout(REQUEST).map_err(|_| error::Error::late(STEP))??;
        let mut threads = Builder::new_current_thread();
        let threads = threads.max_blocking_threads(THREADS).thread_name("tarpon-tier").build().map_err(failed)?;
        let handle = threads.handle().clone();
        Ok(Self { root, files, threads: Some(threads), handle })
    }

    /// Fails if the path leads through a symbolic link.
    async fn refuse_links(&self, path: &Path, links: Links) -> Result<()> {
        let (root, path) = (self.root.clone(), path.clone());
        self.handle.spawn_blocking(move || refuse(&root, &path, links)).await?
    }

    fn lacks<T>(&self, operation: &str) -> Result<T> {
        Err(Error::NotImplemented { operation: operation.to_owned(), implementer: self.to_string() })
    }

    /// Lets the system calls of a future or stream of the library run on the threads.
    fn run<T>(&self, begin: impl FnOnce() -> T) -> OnThreads<T> {
        let _entered = self.handle.enter();
        OnThreads { inner: begin(), threads: self.handle.clone() }
    }
}

fn files(folder: PathBuf) -> error::Result<(PathBuf, LocalFileSystem)> {
    if !folder.is_dir() {
        return Err(error::Error::missing(STEP, "its folder does not exist"));
    }
    // What is visible there is complete, also after a power failure.
    let files = LocalFileSystem::new_with_prefix(&folder).map(|files| files.with_fsync(true));
    let files = files.map_err(|error| error::Error::of(STEP, &error))?;
    // As the library: the folder itself may be behind a link.
    let root = folder.canonicalize().map_err(|error| error::Error::of_file(STEP, &error))?;
    Ok((root, files))
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

#[async_trait]
impl ObjectStore for Folder {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.refuse_links(path, Links::Invalid).await?;
        self.run(|| self.files.put_opts(path, payload, options)).await
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.refuse_links(path, Links::Invalid).await?;
        let (files, path) = (self.files.clone(), path.clone());
        // The library creates the file on the thread that polls.
        let begin = move || files.put_multipart_opts(&path, options).now_or_never();
        let begun = self.handle.spawn_blocking(begin).await?;
        let waits = || Error::Generic { store: "folder", source: "the library does not begin at once".into() };
        let inner = begun.unwrap_or_else(|| Err(waits()))?;
        Ok(Box::new(FolderUpload { inner, threads: self.handle.clone() }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.refuse_links(path, Links::Missing).await?;
        let mut result = self.run(|| self.files.get_opts(path, options)).await?;
        if let GetResultPayload::File(file, _) = result.payload {
            let pieces = Pieces { file: Arc::new(file), left: result.range.clone(), threads: self.handle.clone() };
            result.payload = GetResultPayload::Stream(stream::try_unfold(pieces, Pieces::next).boxed());
        }
        Ok(result)
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (root, threads) = (self.root.clone(), self.handle.clone());
        let checked = paths.and_then(move |path| {
            let root = root.clone();
            let check = move || refuse(&root, &path, Links::Invalid).map(|()| path);
            let check = threads.spawn_blocking(check);
            async move { check.await? }
        });
        self.run(|| self.files.delete_stream(checked.boxed())).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (root, threads) = (self.root.clone(), self.handle.clone());
        let listing = Listing::new(root, prefix.cloned().unwrap_or_default());
        stream::try_unfold(listing, move |listing| listing.next(threads.clone())).boxed()
    }

    async fn list_with_delimiter(&self, _prefix: Option<&Path>) -> Result<ListResult> {
        self.lacks("listing with a delimiter")
    }

    async fn copy_opts(&self, _from: &Path, _to: &Path, _options: CopyOptions) -> Result<()> {
        self.lacks("copying")
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.files.fmt(f)
    }
}

impl fmt::Display for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.files, f)
    }
}

/// A future or stream that runs system calls on the threads.
struct OnThreads<T> {
    inner: T,
    threads: Handle,
}

impl<T: Future + Unpin> Future for OnThreads<T> {
    type Output = T::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T::Output> {
        let threads = self.threads.clone();
        let _entered = threads.enter();
        self.inner.poll_unpin(context)
    }
}

impl<T: Stream + Unpin> Stream for OnThreads<T> {
    type Item = T::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T::Item>> {
        let threads = self.threads.clone();
        let _entered = threads.enter();
        self.inner.poll_next_unpin(context)
    }
}

/// A range of a file. The library's own stream reads 8 KiB at a time.
struct Pieces {
    file: Arc<File>,
    left: Range<u64>,
    threads: Handle,
}

impl Pieces {
    /// Ends early if the file became shorter.
    async fn next(mut self) -> Result<Option<(Bytes, Self)>> {
        let (file, start) = (self.file.clone(), self.left.start);
        let wanted = usize::try_from(self.left.end - start).unwrap_or(PIECE).min(PIECE);
        if wanted == 0 {
            return Ok(None);
        }
        let read = move || {
            let mut piece = vec![0; wanted];
            let count = file.read_at(&mut piece, start)?;
            piece.truncate(count);
            Ok::<Bytes, std::io::Error>(piece.into())
        };
        let read = self.threads.spawn_blocking(read).await?;
        let piece = read.map_err(|error| Error::Generic { store: "folder", source: error.into() })?;
        self.left.start += piece.len() as u64;
        Ok((!piece.is_empty()).then_some((piece, self)))
    }
}

/// An object that is written in parts.
struct FolderUpload {
    inner: Box<dyn MultipartUpload>,
    threads: Handle,
}

#[async_trait]
impl MultipartUpload for FolderUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        OnThreads { inner: self.inner.put_part(data), threads: self.threads.clone() }.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        OnThreads { inner: self.inner.complete(), threads: self.threads.clone() }.await
    }

    async fn abort(&mut self) -> Result<()> {
        OnThreads { inner: self.inner.abort(), threads: self.threads.clone() }.await
    }
}

impl fmt::Debug for FolderUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
