//! What a worker sends to its user, to which it is hostile.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tarpon_images::index::pack::PackListener;
use tarpon_images::{Access, Error, LayerPlan, Progress, RegistriesChoice, access};
use tarpon_layer::Codec;
use tarpon_oci::{Blob, Digest, limits};
use tarpon_registry::{Address, Endpoint, EndpointCredentials};

use super::requests::check_message;
use super::{BODY, Pieces, block_on, check_frames, frames_of};
use crate::blob_channel::{BlobChannel, Reply};
use crate::chunk_call::Call;
use crate::event;
use crate::frames::Reader;
use crate::image_state::ImageState;
use crate::layer_call::Decoded;
use crate::message::{Answer, Event, Failure, ImageName, Question, StepDone, Totals, decode, encode, one_line};
use crate::policy::Policy;
use crate::response;
use crate::slot::Slot;
use crate::supervise::{self, Credentials, Images};

/// Longest line of a worker that is shown.
const LINE_BYTES: usize = 2 << 10;
/// Bytes of a part of a layer are read in pieces of this size.
const READ_BYTES: usize = 1_000;
/// The image whose credentials the worker may have.
const IMAGE: u64 = 3;

/// Has the user of a worker read the bytes after the first, which chooses the channel.
pub fn responses(data: &[u8]) {
    let Some((channel, rest)) = data.split_first() else { return };
    match channel % 7 {
        0 => check_frames(rest),
        1 => check_messages(rest),
        2 => check_blob(rest),
        3 => check_chunk(rest),
        4 => check_layer(rest),
        5 => check_events(rest),
        _ => check_questions(rest),
    }
}

fn check_line(line: &str) {
    assert!(line.len() <= LINE_BYTES && !line.contains(char::is_control), "{} bytes in a line", line.len());
}

fn check_error(error: &Error) {
    check_line(&error.step);
    check_line(&error.cause().to_string());
    if let Some(hint) = &error.hint {
        check_line(hint);
    }
}

fn check_messages(data: &[u8]) {
    check_message::<Totals>(data);
    check_message::<Failure>(data);
    check_message::<Event>(data);
    check_message::<StepDone>(data);
    check_message::<Question>(data);
    if let Ok(failure) = decode::<Failure>(data) {
        check_line(&failure.into_error().to_string());
    }
    check_error(&event::error_of(data));
    check_line(&one_line(&String::from_utf8_lossy(data)));
}

/// Of a response for a range no more than the range is accepted, and its end only behind the last byte.
fn check_blob(data: &[u8]) {
    let from = Pieces::of(data);
    let [low, high, rest @ ..] = from.bytes else { return };
    let wanted = u64::from(u16::from_le_bytes([*low, *high]));
    let served: Vec<u8> =
        frames_of(rest).into_iter().filter(|(tag, _)| *tag == BODY).flat_map(|(_, bytes)| bytes.to_vec()).collect();
    let name = mirrored();
    let image = ImageState::new(Arc::new(Slot::new([].into(), Policy::default())), name);
    let mut channel = BlobChannel::new(Pieces { bytes: rest, ..from });
    block_on(async {
        let (mut left, mut received) = (wanted, Vec::new());
        match channel.receive().await {
            Ok(Reply::Head(totals)) => image.count(0, totals),
            _ => return,
        }
        while let Ok(part) = channel.receive().await {
            match response::Progress::of(part, left) {
                Ok(response::Progress::Bytes(bytes)) => {
                    left -= bytes.len() as u64;
                    image.received(bytes.len());
                    received.extend_from_slice(&bytes);
                }
                Ok(response::Progress::Totals(totals)) => image.count(1, totals),
                Ok(response::Progress::End(totals)) => {
                    assert_eq!(received.len() as u64, wanted);
                    image.count(1, totals);
                    break;
                }
                Ok(response::Progress::Failed(failure)) => {
                    image.count(1, failure.totals.clone());
                    check_line(&failure.into_error().to_string());
                    break;
                }
                Err(_) => break,
            }
        }
        assert!(received.len() as u64 <= wanted && served.starts_with(&received));
        assert!(image.stats().bytes >= received.len() as u64);
    });
    let accounts = image.accounts();
    assert_eq!(accounts.len(), 2, "the endpoints are those of the image");
    accounts.iter().filter_map(|account| account.last_failure.as_ref()).for_each(|failure| check_line(failure));
}

/// An image with two endpoints.
fn mirrored() -> ImageName {
    let endpoint = |name: &str| Endpoint::of(name.parse().expect("a reference"), false);
    let hosts = vec![endpoint("mirror.test/app:1"), endpoint("registry.test/app:1")];
    let access = Access { registries: RegistriesChoice::Settled(hosts), ..Access::default() };
    let settled = access::settle("registry.test/app:1", &access).expect("valid options");
    ImageName::of(0, "registry.test/app:1", &settled, &access)
}

/// A chunk has the size that was asked for.
fn check_chunk(data: &[u8]) {
    let mut from = Pieces::of(data);
    let [low, high, rest @ ..] = from.bytes else { return };
    from.bytes = rest;
    let size = usize::from(u16::from_le_bytes([*low, *high]));
    let call = Call { codec: Codec::Gzip, used_bits: 0, window: &[], encoded: &[], skip: 0, size: size as u64 };
    let (mut out, until) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    match call.receive(&mut from, until, &mut out) {
        Ok(Ok(())) => assert!(rest[0] == 0 && out == rest[5..5 + size], "other bytes"),
        Ok(Err(error)) => check_line(&error.to_string()),
        Err(_) => assert!(out.len() <= size),
    }
}

/// Of a layer arrives what the parts have, and its end only behind its last part.
fn check_layer(data: &[u8]) {
    let from = Pieces::of(data);
    let (mut parts, mut served, mut has_end) = (from.bytes, Vec::new(), false);
    while let Some((length, rest)) = parts.split_first_chunk::<4>().filter(|_| !has_end) {
        let length = u32::from_le_bytes(*length);
        if length == u32::MAX {
            break;
        }
        has_end = length == 0;
        let (part, behind) = rest.split_at((length as usize).min(rest.len()));
        served.extend_from_slice(part);
        parts = behind;
    }
    let mut decoded = Decoded::new(from, Arc::new(Mutex::new(None)));
    let (mut received, mut out) = (Vec::new(), [0; READ_BYTES]);
    let is_complete = loop {
        match decoded.read(&mut out) {
            Ok(0) => break true,
            Ok(length) => received.extend_from_slice(&out[..length]),
            Err(error) => {
                check_line(&error.to_string());
                break false;
            }
        }
    };
    assert_eq!((received, is_complete), (served, has_end));
}

/// Events are reported as far as an image can cause them, in lines that can be shown.
fn check_events(data: &[u8]) {
    let mut from = Pieces::of(data);
    let (seen, most) = (Seen::default(), from.bytes.len());
    block_on(async {
        let report = |event| event::report(event, Some(&seen), &seen);
        if let Ok(Some(Event::Failed(error))) = event::listen(&mut from, report).await {
            check_error(&event::error_of(&error));
        }
    });
    assert!(seen.events.load(Ordering::Relaxed) <= most, "more events than bytes");
}

/// Checks what is reported.
#[derive(Debug, Default)]
struct Seen {
    events: AtomicUsize,
}

impl Seen {
    fn count(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }
}

impl Progress for Seen {
    fn resolved(&self, _: &Digest, layers: &[LayerPlan]) {
        self.count();
        assert!(layers.len() <= limits::LAYERS);
        assert!(layers.iter().all(|layer| layer.number < limits::LAYERS));
        let total = layers.iter().try_fold(0_u64, |total, layer| total.checked_add(layer.size));
        assert!(total.is_some(), "sizes that cannot be added up");
    }

    fn received(&self, layer: usize, _: u64) {
        self.count();
        assert!(layer < limits::LAYERS);
    }

    fn layer_done(&self, layer: usize) {
        self.received(layer, 0);
    }

    fn note(&self, line: &str) {
        self.count();
        check_line(line);
    }
}

impl PackListener for Seen {
    fn found(&self, pack: Blob, place: Option<usize>) {
        self.count();
        assert!(place.is_none_or(|place| place < limits::INDEX_REPOS));
        assert!(pack.size <= limits::BLOB_BYTES);
    }
}

/// A worker gets the credentials of its images, for their registry, and nothing else.
fn check_questions(data: &[u8]) {
    let mut from = Pieces::of(data);
    let endpoint = |name: &str| Endpoint::of(name.parse().expect("a reference"), false);
    let stands_for_registry =
        Address { credentials: EndpointCredentials::Registry, ..Address::at("https://cache.test/v2".into()) };
    let access = Access {
        creds: Some("user:password".into()),
        registries: RegistriesChoice::Settled(vec![
            endpoint("mirror.test/app:1"),
            Endpoint { address: Some(stands_for_registry), ..endpoint("cache.test/app:1") },
            endpoint("registry.test/app:1"),
        ]),
        ..Access::default()
    };
    let settled = access::settle("registry.test/app:1", &access).expect("valid options");
    let images = Images::of(IMAGE, Credentials::of(&settled));
    block_on(async {
        let mut reader = Reader::default();
        while let Ok(Some(question)) = reader.message::<Question>(&mut from).await {
            let answer = supervise::answer_to(&images, question.clone()).await;
            let encoded = answer.as_ref().map(|answer| encode(answer).expect("an answer is short"));
            assert!(encoded.is_none_or(|encoded| decode::<Answer>(&encoded).is_ok()));
            match (question, answer) {
                (Question::Confined { how, .. }, None) => check_line(&one_line(&how)),
                (Question::Alive, None) => {}
                (Question::Credentials { id, image, endpoint }, Some(Answer::Credentials { id: answered, pair })) => {
                    // Given credentials are for the registry of the image's name and what stands for it, and for no other mirror.
                    let is_its = image == IMAGE && [1, 2].contains(&endpoint);
                    assert_eq!((id, is_its), (answered, pair.is_some()));
                }
                (Question::MayHave { id, image, endpoint, host }, Some(Answer::MayHave { id: answered, may })) => {
                    let names: &[&str] = match endpoint {
                        0 => &["mirror.test"],
                        1 => &["cache.test", "registry.test"],
                        2 => &["registry.test"],
                        _ => &[],
                    };
                    let is_its = image == IMAGE && names.iter().any(|name| host.eq_ignore_ascii_case(name));
                    assert_eq!((id, is_its), (answered, may));
                }
                (question, _) => panic!("another answer than one to {question:?}"),
            }
        }
    });
}
