//! Searches in slow index repositories.

use tarpon_layer::LayerIndex;
use tarpon_oci::{Compression, Manifest, NewDescriptor, media_type};
use tarpon_policy::Demands;
use tarpon_registry::serve::Contents;
use tarpon_testkit::layers::{Image, Layer};
use tarpon_testkit::registry::{Auth, FakeRegistry, Referrers};

use super::super::places::IndexPlace;
use super::*;
use crate::image::IndexChoice;
use crate::slow::Slow;

const ANONYMOUS: Auth = Auth::Bearer { anonymous: true, expires_in: Some(600) };

fn image() -> Image {
    Image::of([Layer::plain(b"a tar", Compression::None)])
}

/// The blob of an index of the image.
fn index() -> Bytes {
    let blob = image().layers[0].descriptor();
    artifact::blob(&[Indexed { blob, compression: Compression::None, index: LayerIndex::default() }]).unwrap()
}

/// A registry that has the image, and lists artifacts about it with these blobs, the most recent last.
async fn registry(auth: Auth, blobs: &[Bytes]) -> FakeRegistry {
    let image = image();
    let mut contents = Contents::new();
    image.add_to(&mut contents, "app", "v1");
    for blob in blobs {
        contents.add_blob(blob.clone());
    }
    let registry = FakeRegistry::new(contents, auth, None);
    registry.set_referrers(Referrers::Kept { page: 10, filters: true });
    for (number, blob) in (0..).zip(blobs) {
        let subject = Blob { digest: image.digest(), size: image.manifest.len() as u64 };
        let subject = NewDescriptor::new(media_type::OCI_MANIFEST, subject);
        let manifest = artifact::manifest(blob, [], subject, Some(number)).unwrap();
        registry.add_manifest(None, media_type::OCI_MANIFEST, manifest.into_inner()).await;
    }
    registry
}

/// The result of a search in these index repositories, and in the image's own, which has no index.
async fn search(repositories: Vec<Repository>) -> SearchResult {
    let place = |number| IndexPlace { source: format!("place.test/{number}"), demands: Demands::nothing() };
    let list: Vec<_> = (0..repositories.len()).map(place).collect();
    let repositories = parking_lot::Mutex::new(repositories.into_iter().map(Some).collect::<Vec<_>>());
    let places = IndexPlaces::opened_by(list, |number, _| Ok(repositories.lock()[number].take().unwrap()));
    let image = image();
    let manifest = Manifest::parse(Verified::seal(image.manifest.clone().into())).unwrap();
    let resolved = ResolvedImage { manifest, index_digest: None, name: "registry.test/app:v1".to_owned() };
    let rules = Rules::of(&IndexChoice::Registry, &image.digest(), &Demands::nothing(), places.list());
    let own = Slow::repository(registry(Auth::Anonymous, &[]).await, |_| Duration::ZERO);
    let layers = [image.layers[0].descriptor()];
    let wanted = Wanted { layers: &layers, pack: None, allowance: &Allowance::default() };
    find(Choice { rules: &rules, places: &places }, &own, &resolved, wanted).await
}

/// Lists come at once, and all else almost in the time of one attempt.
fn all_but_lists(path: &str) -> Duration {
    if path.contains("/referrers/") { Duration::ZERO } else { Duration::from_secs(4) }
}

#[tokio::test(start_paused = true)]
async fn the_list_of_a_repository_arrives_while_the_indexes_of_another_are_read() {
    let broken = registry(Auth::Anonymous, &[const { Bytes::from_static(b"broken") }; CANDIDATES]).await;
    let sound = registry(ANONYMOUS, &[index()]).await;
    let began = Instant::now();
    // A token and a list take three requests.
    let repositories =
        vec![Slow::repository(broken, all_but_lists), Slow::repository(sound, |_| Duration::from_secs(1))];
    let found = search(repositories).await;
    assert!(began.elapsed() > LIST_TIMEOUT, "{:?}", began.elapsed());
    assert_eq!(found.layers.len(), 1, "{:?}", found.notes);
    assert!(found.notes[0].contains("of place.test/1 is used"), "{:?}", found.notes);
    assert_eq!(found.notes.len(), 1 + CANDIDATES, "{:?}", found.notes);
}

#[tokio::test(start_paused = true)]
async fn all_indexes_of_a_repository_share_the_time_for_one() {
    let blobs: Vec<Bytes> = (0..4).map(|number| vec![number; 36_000].into()).collect();
    let broken = registry(Auth::Anonymous, &blobs).await;
    // Three of them take longer than all may.
    let pieces = (12_000, Duration::from_secs(8));
    let began = Instant::now();
    let found = search(vec![Slow::repository_in_pieces(broken, |_| Duration::ZERO, pieces)]).await;
    let passed = began.elapsed();
    assert!(passed >= READ_TIMEOUT && passed < READ_TIMEOUT + Duration::from_secs(1), "{passed:?}");
    assert!(found.layers.is_empty());
    let late = found.notes.iter().filter(|note| note.contains("not received within 60 s")).count();
    assert_eq!((late, found.notes.len()), (1, 4), "{:?}", found.notes);
}
