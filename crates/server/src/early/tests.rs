use std::collections::VecDeque;

use futures::FutureExt;
use tarpon_blob::Fault;
use tarpon_oci::Digest;
use tokio::sync::mpsc;

use super::*;

const SIZE: u64 = REPLAY_FIRST_BYTES + 100;

fn blob() -> Blob {
    Blob { digest: Digest::of(b"pack"), size: SIZE }
}

fn content(range: Range<u64>) -> Vec<u8> {
    range.map(|at| (at % 251) as u8).collect()
}

type Answer = mpsc::UnboundedReceiver<Result<Bytes, SourceError>>;

/// Replies to each request with what the test sends, and records the requests.
#[derive(Default)]
struct Scripted {
    asked: Mutex<Vec<Range<u64>>>,
    answers: Mutex<VecDeque<Answer>>,
}

impl Scripted {
    /// A sender for the response to the next request. Dropping it ends the response.
    fn answer(&self) -> mpsc::UnboundedSender<Result<Bytes, SourceError>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.answers.lock().push_back(receiver);
        sender
    }

    /// Expects this range as the next request, and replies at once.
    fn answers(&self, range: Range<u64>) {
        self.answer().send(Ok(content(range).into())).unwrap();
    }

    fn asked(&self) -> Vec<Range<u64>> {
        self.asked.lock().clone()
    }
}

impl BlobSource for Scripted {
    fn read(&self, _: Blob, range: Range<u64>) -> BoxFuture<'_, Result<BlobStream, SourceError>> {
        self.asked.lock().push(range);
        let answer = self.answers.lock().pop_front();
        Box::pin(async move {
            let answer = answer.ok_or_else(|| SourceError::new(Fault::Unavailable, "nobody is there"))?;
            Ok(stream::unfold(answer, |mut answer| async { Some((answer.recv().await?, answer)) }).boxed())
        })
    }

    fn name(&self) -> String {
        "scripted".to_owned()
    }
}

/// All bytes of a response, in any number of pieces.
async fn read(source: &dyn BlobSource, range: Range<u64>) -> Result<Vec<u8>, String> {
    let mut pieces = source.read(blob(), range).await.map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await {
        bytes.extend_from_slice(&piece.map_err(|error| error.to_string())?);
    }
    Ok(bytes)
}

async fn at_once() {}

#[tokio::test]
async fn what_has_come_early_is_not_asked_for_again() {
    let (pack, source) = (Arc::new(EarlyPack::new(blob())), Arc::new(Scripted::default()));
    source.answers(0..REPLAY_FIRST_BYTES);
    source.answers(REPLAY_FIRST_BYTES..SIZE);
    pack.prefetch(source.clone(), at_once).await;
    assert_eq!(source.asked(), [0..REPLAY_FIRST_BYTES, REPLAY_FIRST_BYTES..SIZE]);
    let through = pack.before(source.clone());
    assert_eq!(read(&*through, 0..SIZE).await.unwrap(), content(0..SIZE));
    assert_eq!(read(&*through, 7..REPLAY_FIRST_BYTES + 9).await.unwrap(), content(7..REPLAY_FIRST_BYTES + 9));
    assert_eq!(source.asked().len(), 2);
}

#[tokio::test]
async fn two_requests_are_under_way_and_the_next_follows_when_one_ends() {
    let large = Blob { size: MOST_BYTES, ..blob() };
    let (pack, source) = (Arc::new(EarlyPack::new(large)), Arc::new(Scripted::default()));
    let mut answers: Vec<_> = (0..=EARLY_REQUESTS).map(|_| source.answer()).collect();
    let prefetch = pack.prefetch(source.clone(), at_once);
    tokio::pin!(prefetch);
    assert!(prefetch.as_mut().now_or_never().is_none());
    tokio::task::yield_now().await;
    assert_eq!(source.asked().len(), EARLY_REQUESTS);
    drop(answers.remove(1));
    tokio::task::yield_now().await;
    assert!(prefetch.as_mut().now_or_never().is_none());
    tokio::task::yield_now().await;
    assert_eq!(source.asked().len(), EARLY_REQUESTS + 1);
}

#[tokio::test]
async fn other_blobs_and_what_was_never_begun_are_asked_for() {
    let (pack, source) = (Arc::new(EarlyPack::new(blob())), Arc::new(Scripted::default()));
    let through = pack.before(source.clone());
    source.answers(5..9);
    assert_eq!(read(&*through, 5..9).await.unwrap(), content(5..9));
    source.answers(0..3);
    let other = Blob { digest: Digest::of(b"layer"), size: 10 };
    assert!(through.read(other, 0..3).await.is_ok());
    assert_eq!(source.asked(), [5..9, 0..3]);
}

#[tokio::test]
async fn a_reader_takes_what_is_on_its_way_as_it_comes() {
    let (pack, source) = (Arc::new(EarlyPack::new(blob())), Arc::new(Scripted::default()));
    let coming = source.answer();
    let prefetch = pack.begin(0..REPLAY_FIRST_BYTES).fetch(blob(), source.clone());
    tokio::pin!(prefetch);
    assert!(prefetch.as_mut().now_or_never().is_none());
    let through = pack.clone().before(source.clone());
    let mut pieces = through.read(blob(), 0..200).await.unwrap();
    assert!(pieces.next().now_or_never().is_none(), "it waits");
    coming.send(Ok(content(0..150).into())).unwrap();
    assert!(prefetch.as_mut().now_or_never().is_none());
    assert_eq!(pieces.next().now_or_never().unwrap().unwrap().unwrap(), content(0..150));
    coming.send(Ok(content(150..REPLAY_FIRST_BYTES).into())).unwrap();
    drop(coming);
    prefetch.await;
    assert_eq!(pieces.next().await.unwrap().unwrap(), content(150..200));
    assert!(pieces.next().await.is_none());
}

#[tokio::test]
async fn what_broke_off_is_asked_for_from_there() {
    let (pack, source) = (Arc::new(EarlyPack::new(blob())), Arc::new(Scripted::default()));
    let broken = source.answer();
    broken.send(Ok(content(0..40).into())).unwrap();
    broken.send(Err(SourceError::new(Fault::Unavailable, "reset"))).unwrap();
    drop(broken);
    pack.stop();
    pack.begin(0..REPLAY_FIRST_BYTES).fetch(blob(), source.clone()).await;
    source.answers(40..100);
    let through = pack.before(source.clone());
    assert_eq!(read(&*through, 0..100).await.unwrap(), content(0..100));
    assert_eq!(source.asked(), [0..REPLAY_FIRST_BYTES, 40..100]);
    assert!(read(&*through, 0..100).await.unwrap_err().contains("nobody is there"), "errors are handed on");
}

#[tokio::test]
async fn nothing_is_begun_while_there_is_something_better_to_do_or_after_the_end() {
    let (pack, source) = (EarlyPack::new(blob()), Arc::new(Scripted::default()));
    let prefetch = pack.prefetch(source.clone(), std::future::pending::<()>);
    tokio::pin!(prefetch);
    assert!(prefetch.as_mut().now_or_never().is_none());
    pack.stop();
    assert!(prefetch.as_mut().now_or_never().is_some() && source.asked().is_empty());
}

#[tokio::test(start_paused = true)]
async fn bytes_that_were_not_requested_are_released() {
    let (pack, source) = (Arc::new(EarlyPack::new(blob())), Arc::new(Scripted::default()));
    source.answers(0..REPLAY_FIRST_BYTES);
    source.answers(REPLAY_FIRST_BYTES..SIZE);
    pack.prefetch(source.clone(), at_once).await;
    let user = Arc::new(());
    pack.forget_later(user.clone()).await;
    assert_eq!(Arc::strong_count(&user), 1);
    source.answers(0..10);
    let through = pack.before(source.clone());
    assert_eq!(read(&*through, 0..10).await.unwrap(), content(0..10));
    assert_eq!(source.asked().len(), 3, "it is asked for as if it had never come");
}

#[tokio::test]
async fn bytes_that_were_wrong_are_asked_for_again_and_not_taken_from_memory() {
    let (pack, source) = (Arc::new(EarlyPack::new(blob())), Arc::new(Scripted::default()));
    let wrong = vec![0xff; usize::try_from(SIZE).unwrap()];
    source.answer().send(Ok(wrong.clone().into())).unwrap();
    pack.begin(0..SIZE).fetch(blob(), source.clone()).await;
    let through = pack.before(source.clone());
    let mut begun = through.read(blob(), 0..SIZE).await.unwrap();
    assert!(!through.distrust(&Digest::of(b"layer")));
    assert_eq!(read(&*through, 0..SIZE).await.unwrap(), wrong, "another blob was wrong");
    assert!(through.distrust(&blob().digest), "another attempt makes sense");
    for _ in 0..2 {
        source.answers(0..SIZE);
    }
    assert_eq!(read(&*through, 0..SIZE).await.unwrap(), content(0..SIZE));
    assert_eq!(begun.next().await.unwrap().unwrap(), content(0..SIZE), "also by a response that was not read yet");
    assert_eq!(source.asked().len(), 3);
    assert!(!through.distrust(&blob().digest), "now the source is wrong, which has no mirror");
}
