//! [`FaultyStore`]: a store that fails as a test demands, and counts what it is asked.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;
use tokio::time::sleep;

/// What a store is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Get,
    List,
    Put,
    Delete,
    Begin,
    Part,
    Complete,
}

/// How it does that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    /// An error.
    Fail,
    /// The error of a store that does not accept the credentials.
    Refuse,
    /// No answer.
    Hang,
    /// An answer after this time.
    Wait(Duration),
    /// Of a put: it is carried out after this time, also if the client does not wait for the answer.
    Late(Duration),
    /// Of a body: an error after so many bytes.
    Break(usize),
    /// Of a body: it ends after so many bytes.
    End(usize),
    /// Of a body: no byte after so many.
    Stall(usize),
    /// Of a body: pieces of so many bytes, each after this time.
    Trickle(usize, Duration),
    /// Of a body: many empty pieces after so many bytes, then an error.
    Spin(usize),
    /// Of a body: these bytes follow.
    Append(&'static [u8]),
    /// Of a body: each piece ends with these bytes too.
    Lengthen(&'static [u8]),
}

/// A store over another one.
pub(crate) struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    state: Arc<State>,
    listing: Mutex<Option<Vec<ObjectMeta>>>,
}

#[derive(Default)]
struct State {
    always: Mutex<HashMap<Operation, Fault>>,
    script: Mutex<HashMap<Operation, VecDeque<Option<Fault>>>>,
    asked: Mutex<Vec<(Operation, String)>>,
    /// Uploads in parts that were neither completed nor aborted.
    unfinished: AtomicUsize,
}

impl FaultyStore {
    pub(crate) fn over(inner: impl ObjectStore) -> Arc<Self> {
        Arc::new(Self { inner: Arc::new(inner), state: Arc::default(), listing: Mutex::default() })
    }

    /// From now on this operation has this fault, or none.
    pub(crate) fn always(&self, operation: Operation, fault: impl Into<Option<Fault>>) {
        let mut always = self.state.always.lock();
        match fault.into() {
            Some(fault) => drop(always.insert(operation, fault)),
            None => drop(always.remove(&operation)),
        }
    }

    /// The next times this operation has these faults. They come before those of [`Self::always`].
    pub(crate) fn script(&self, operation: Operation, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.state.script.lock().entry(operation).or_default().extend(faults);
    }

    /// What is listed from now on, whatever there is.
    pub(crate) fn lists(&self, objects: Vec<ObjectMeta>) {
        *self.listing.lock() = Some(objects);
    }

    /// How often this operation was requested.
    pub(crate) fn count(&self, operation: Operation) -> usize {
        self.state.asked.lock().iter().filter(|(asked, _)| *asked == operation).count()
    }

    /// The last names of the objects that this operation was requested for.
    pub(crate) fn names(&self, operation: Operation) -> Vec<String> {
        let asked = self.state.asked.lock();
        let names = asked.iter().filter(|(asked, _)| *asked == operation).map(|(_, path)| path);
        names.map(|path| path.rsplit('/').next().unwrap_or_default().to_owned()).collect()
    }

    /// Uploads in parts that were neither completed nor aborted.
    pub(crate) fn unfinished(&self) -> usize {
        self.state.unfinished.load(Ordering::SeqCst)
    }
}

impl State {
    async fn begin(&self, operation: Operation, path: &str) -> Result<Option<Fault>> {
        self.asked.lock().push((operation, path.to_owned()));
        let scripted = self.script.lock().get_mut(&operation).and_then(VecDeque::pop_front);
        let fault = scripted.unwrap_or_else(|| self.always.lock().get(&operation).copied());
        match fault {
            Some(Fault::Fail) => Err(failure()),
            Some(Fault::Refuse) => Err(Error::PermissionDenied { path: path.to_owned(), source: "no key".into() }),
            Some(Fault::Hang) => futures::future::pending().await,
            Some(Fault::Wait(time)) => {
                sleep(time).await;
                Ok(None)
            }
            of_body => Ok(of_body),
        }
    }
}

fn failure() -> Error {
    Error::Generic { store: "faulty", source: "the disk\nis on fire".into() }
}

type Body = BoxStream<'static, Result<Bytes>>;

/// A body with a fault.
fn spoiled(body: Body, fault: Fault) -> Body {
    match fault {
        Fault::Break(count) => first(body, count).chain(stream::iter([Err(failure())])).boxed(),
        Fault::End(count) => first(body, count),
        Fault::Stall(count) => first(body, count).chain(stream::pending()).boxed(),
        Fault::Spin(count) => {
            let empty = stream::repeat_with(|| Ok(Bytes::new())).take(1_000);
            first(body, count).chain(empty).chain(stream::iter([Err(failure())])).boxed()
        }
        Fault::Trickle(count, time) => trickle(body, count, time),
        Fault::Append(more) => body.chain(stream::iter([Ok(Bytes::from_static(more))])).boxed(),
        Fault::Lengthen(more) => body.map_ok(move |piece| [&piece[..], more].concat().into()).boxed(),
        _ => body,
    }
}

/// A body in pieces of `count` bytes, each after this time.
fn trickle(body: Body, count: usize, time: Duration) -> Body {
    let cut = move |piece: Bytes| {
        let starts = (0..piece.len()).step_by(count);
        let pieces = starts.map(move |start| Ok(piece.slice(start..piece.len().min(start + count))));
        stream::iter(pieces).then(move |piece| async move {
            sleep(time).await;
            piece
        })
    };
    body.map_ok(cut).try_flatten().boxed()
}

/// The first `count` bytes of a body.
fn first(body: Body, count: usize) -> Body {
    let mut left = count;
    let cut = body.map_ok(move |mut piece| {
        piece.truncate(left);
        left -= piece.len();
        piece
    });
    cut.try_filter(|piece| futures::future::ready(!piece.is_empty())).boxed()
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let Some(Fault::Late(time)) = self.state.begin(Operation::Put, path.as_ref()).await? else {
            return self.inner.put_opts(path, payload, options).await;
        };
        let (inner, path) = (self.inner.clone(), path.clone());
        let put = tokio::spawn(async move {
            sleep(time).await;
            inner.put_opts(&path, payload, options).await
        });
        put.await?
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.state.begin(Operation::Begin, path.as_ref()).await?;
        let inner = self.inner.put_multipart_opts(path, options).await?;
        self.state.unfinished.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(FaultyUpload { inner, state: self.state.clone(), path: path.to_string() }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.state.begin(Operation::Get, path.as_ref()).await?;
        let result = self.inner.get_opts(path, options).await?;
        let Some(fault) = fault else { return Ok(result) };
        let (meta, range, attributes) = (result.meta.clone(), result.range.clone(), result.attributes.clone());
        let payload = GetResultPayload::Stream(spoiled(result.into_stream(), fault));
        Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (state, inner) = (self.state.clone(), self.inner.clone());
        let delete = move |path: Result<Path>| {
            let (state, inner) = (state.clone(), inner.clone());
            async move {
                let path = path?;
                state.begin(Operation::Delete, path.as_ref()).await?;
                let mut deleted = inner.delete_stream(stream::iter([Ok(path.clone())]).boxed());
                deleted.next().await.unwrap_or(Ok(path))
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.map(Path::to_string).unwrap_or_default();
        let all = match &*self.listing.lock() {
            Some(objects) => stream::iter(objects.clone().into_iter().map(Ok)).boxed(),
            None => self.inner.list(Some(&Path::from(prefix.as_str()))),
        };
        let state = self.state.clone();
        let begun = async move { state.begin(Operation::List, &prefix).await.map(|_| all) };
        stream::once(begun).try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyStore")
    }
}

struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    state: Arc<State>,
    path: String,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, state, path) = (self.inner.put_part(data), self.state.clone(), self.path.clone());
        Box::pin(async move {
            state.begin(Operation::Part, &path).await?;
            part.await
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.state.begin(Operation::Complete, &self.path).await?;
        let result = self.inner.complete().await?;
        self.state.unfinished.fetch_sub(1, Ordering::SeqCst);
        Ok(result)
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await?;
        self.state.unfinished.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

impl fmt::Debug for FaultyUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultyUpload")
    }
}
