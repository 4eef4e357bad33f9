//! The whole service, called over a socket as containerd calls it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use proptest::prelude::*;
use prost::Message;
use tarpon_engine::service::Socket;
use tarpon_oci::{Digest, Reference};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::images::{ChainIds, Images, Outcome};
use crate::labels::{LAZY, PulledLayer, REF, UNPACKED};
use crate::messages::*;
use crate::record::LazyLayers;
use crate::rpc::Rpc;
use crate::services::Services;
use crate::snapshots::Snapshots;

/// Images with known chain IDs and nothing else. Records its mounts.
#[derive(Default)]
struct KnownImages {
    images: HashMap<Digest, Vec<Digest>>,
    mounted: Mutex<BTreeMap<PathBuf, usize>>,
    broken: Mutex<bool>,
    /// Digests of configs.
    configs: Mutex<HashMap<Reference, Digest>>,
    renewed: Mutex<Vec<(Reference, PathBuf)>>,
    forgotten: Mutex<Vec<String>>,
}

impl Images for KnownImages {
    fn prepare(&self, layer: PulledLayer) -> BoxFuture<'static, ChainIds> {
        let chain = self.images.get(&layer.manifest).cloned();
        async move {
            assert!(layer.manifest != Digest::of(BROKEN), "on purpose");
            chain.map(Arc::from).ok_or_else(|| "the registry is not there".to_owned())
        }
        .boxed()
    }

    fn may_unpack(&self, image: &str) -> BoxFuture<'static, Outcome<()>> {
        let is_refused = image.starts_with(REFUSED);
        async move { if is_refused { Err("the policy refuses it".to_owned()) } else { Ok(()) } }.boxed()
    }

    fn mount(&self, layers: LazyLayers, place: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        let mounted = if *self.broken.lock() {
            Err("the disk is full".to_owned())
        } else {
            assert!(place.is_dir());
            self.mounted.lock().insert(place, layers.count);
            Ok(())
        };
        async move { mounted }.boxed()
    }

    fn unmount(&self, place: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        self.mounted.lock().remove(&place);
        async { Ok(()) }.boxed()
    }

    fn config(&self, image: &Reference) -> BoxFuture<'static, Option<Digest>> {
        let config = self.configs.lock().get(image).copied();
        async move { config }.boxed()
    }

    fn renew(&self, image: &Reference, place: PathBuf) -> BoxFuture<'static, Outcome<()>> {
        self.renewed.lock().push((image.clone(), place));
        async { Ok(()) }.boxed()
    }

    fn forget(&self, image: &str) {
        self.forgotten.lock().push(image.to_owned());
    }
}

type Answer<T> = Result<T, Code>;

/// A running snapshotter and its client.
struct Fixture {
    runtime: Runtime,
    root: tempfile::TempDir,
    images: Arc<KnownImages>,
    running: Option<(Channel, oneshot::Sender<()>, tokio::task::JoinHandle<()>)>,
}

impl Fixture {
    fn new(images: KnownImages) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let root = tempfile::tempdir().unwrap();
        let mut fixture = Self { runtime, root, images: Arc::new(images), running: None };
        fixture.start();
        fixture
    }

    fn start(&mut self) {
        let snapshots = Arc::new(Snapshots::open(self.root.path(), self.images.clone()).unwrap());
        let address = self.root.path().join("socket");
        let (stop, stopped) = oneshot::channel::<()>();
        let channel = Endpoint::from_shared(format!("unix:{}", address.display())).unwrap();
        let running = self.runtime.block_on(async {
            let socket = Socket::make(&address).unwrap();
            let listener = socket.listener().unwrap();
            snapshots.clean_up().await.unwrap();
            snapshots.restore().await;
            let stopped = stopped.map(drop);
            let task = tokio::spawn(async {
                crate::answer(listener, Services { snapshots: Rpc(snapshots), images: None }, stopped).await.unwrap();
                drop(socket);
            });
            (channel.connect().await.unwrap(), stop, task)
        });
        self.running = Some(running);
    }

    /// Restarts the snapshotter, with state from the disk only.
    fn restart(&mut self) {
        let (channel, stop, task) = self.running.take().unwrap();
        drop((channel, stop));
        self.runtime.block_on(task).unwrap();
        self.start();
    }

    fn call<M: Message + 'static, R: Message + Default + 'static>(&self, method: &str, message: M) -> Answer<R> {
        let channel = self.running.as_ref().unwrap().0.clone();
        self.runtime.block_on(async {
            let mut client = Grpc::new(channel);
            client.ready().await.unwrap();
            let path = format!("{SERVICE}{method}").parse().unwrap();
            let codec: ProstCodec<M, R> = ProstCodec::default();
            let answer = client.unary(Request::new(message), path, codec).await;
            answer.map(tonic::Response::into_inner).map_err(|status| status.code())
        })
    }

    fn list(&self, filters: &[&str]) -> Answer<Vec<Info>> {
        let channel = self.running.as_ref().unwrap().0.clone();
        let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
        self.runtime.block_on(async {
            let mut client = Grpc::new(channel);
            client.ready().await.unwrap();
            let path = format!("{SERVICE}List").parse().unwrap();
            let codec: ProstCodec<ListRequest, ListResponse> = ProstCodec::default();
            let request = ListRequest { filters, ..ListRequest::default() };
            let answer = client.server_streaming(Request::new(request), path, codec).await;
            let mut stream = answer.map_err(|status| status.code())?.into_inner();
            let mut all = Vec::new();
            while let Some(piece) = stream.message().await.unwrap() {
                all.extend(piece.info);
            }
            Ok(all)
        })
    }

    fn create(&self, method: &str, key: &str, parent: &str, labels: &[(&str, &str)]) -> Answer<Vec<Mount>> {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request =
            CreateRequest { key: key.to_owned(), parent: parent.to_owned(), labels, ..CreateRequest::default() };
        self.call(method, request).map(|answer: MountsResponse| answer.mounts)
    }

    fn prepare(&self, key: &str, parent: &str) -> Answer<Vec<Mount>> {
        self.create("Prepare", key, parent, &[])
    }

    fn key<R: Message + Default + 'static>(&self, method: &str, key: &str) -> Answer<R> {
        self.call(method, KeyRequest { key: key.to_owned(), ..KeyRequest::default() })
    }

    fn remove(&self, key: &str) -> Answer<()> {
        self.key("Remove", key).map(|_: Empty| ())
    }

    fn stat(&self, key: &str) -> Answer<Info> {
        self.key("Stat", key).map(|answer: InfoResponse| answer.info.unwrap())
    }

    fn commit(&self, name: &str, key: &str) -> Answer<()> {
        let request = CommitRequest { name: name.to_owned(), key: key.to_owned(), ..CommitRequest::default() };
        self.call("Commit", request).map(|_: Empty| ())
    }

    /// Sends the request that containerd sends for a layer that it is about to pull.
    fn pull(&self, key: &str, parent: &str, manifest: Digest, chain_id: Digest) -> Answer<Vec<Mount>> {
        self.pull_as("localhost:5000/app:v1", key, parent, manifest, chain_id)
    }

    /// The same for an image of this name.
    fn pull_as(&self, image: &str, key: &str, parent: &str, manifest: Digest, chain_id: Digest) -> Answer<Vec<Mount>> {
        let (manifest, chain_id) = (manifest.to_string(), chain_id.to_string());
        let labels = [
            (REF, chain_id.as_str()),
            ("containerd.io/snapshot/cri.image-ref", image),
            ("containerd.io/snapshot/cri.manifest-digest", &manifest),
            ("containerd.io/snapshot/cri.layer-digest", &chain_id),
        ];
        self.create("Prepare", key, parent, &labels)
    }

    fn folders(&self) -> usize {
        std::fs::read_dir(self.root.path().join("snapshots")).unwrap().count()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.running = None;
    }
}

/// The path in an option of a mount.
fn option<'a>(mounts: &'a [Mount], name: &str) -> Option<&'a str> {
    mounts[0].options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
}

const MANIFEST: &[u8] = b"manifest";
/// A manifest with which the preparation panics.
const BROKEN: &[u8] = b"broken";
/// A repository that the policy refuses.
const REFUSED: &str = "localhost:5000/refused";

fn chain() -> Vec<Digest> {
    [b"1", b"2", b"3"].map(|text| Digest::of(text)).to_vec()
}

/// A fixture with an image of three layers.
fn fixture() -> Fixture {
    Fixture::new(KnownImages { images: HashMap::from([(Digest::of(MANIFEST), chain())]), ..KnownImages::default() })
}

fn pull_all(fixture: &Fixture) -> Vec<String> {
    let mut parent = String::new();
    for (number, id) in chain().into_iter().enumerate() {
        let key = format!("k8s.io/{number}/extract-1 {id}");
        assert_eq!(fixture.pull(&key, &parent, Digest::of(MANIFEST), id), Err(Code::AlreadyExists));
        parent = id.to_string();
    }
    chain().iter().map(Digest::to_string).collect()
}

#[test]
fn layers_of_a_pulled_image_are_committed_without_being_unpacked_and_found_as_containerd_looks() {
    let fixture = fixture();
    let names = pull_all(&fixture);
    for (number, name) in names.iter().enumerate() {
        let parent = if number == 0 { "" } else { &names[number - 1] };
        let found = fixture.list(&[&format!("labels.\"{REF}\"=={name},parent==\"{parent}\"")]).unwrap();
        assert_eq!((found.len(), &found[0].name, found[0].kind()), (1, name, Kind::Committed));
        assert!(found[0].labels[LAZY].starts_with(&format!("layers 1 to {} of 3", number + 1)));
    }
    assert!(fixture.images.mounted.lock().is_empty(), "nothing is mounted before it is used");
    assert_eq!(fixture.key::<UsageResponse>("Usage", &names[2]).unwrap(), UsageResponse::default());
    assert_eq!(
        fixture.pull("again", &names[1], Digest::of(MANIFEST), chain()[2]),
        Err(Code::AlreadyExists),
        "it is there"
    );
}

#[test]
fn a_container_lies_on_the_mounted_layers_of_its_image_only() {
    let fixture = fixture();
    let names = pull_all(&fixture);
    let mounts = fixture.prepare("container", &names[2]).unwrap();
    let lower = option(&mounts, "lowerdir").unwrap().to_owned();
    assert_eq!(*fixture.images.mounted.lock(), BTreeMap::from([(PathBuf::from(&lower), 3)]), "all layers in one mount");
    let upper = option(&mounts, "upperdir").unwrap();
    assert_eq!(Path::new(upper).parent(), Path::new(option(&mounts, "workdir").unwrap()).parent());
    assert_eq!(fixture.key::<MountsResponse>("Mounts", "container").unwrap().mounts, mounts);
    let view = fixture.create("View", "view", &names[1], &[]).unwrap();
    assert_eq!((view[0].r#type.as_str(), &view[0].options[..]), ("bind", &["ro".to_owned(), "rbind".to_owned()][..]));
    assert_eq!(fixture.images.mounted.lock()[Path::new(&view[0].source)], 2, "the lowest two layers alone");
    fixture.commit("built", "container").unwrap();
    let mounts = fixture.prepare("next", "built").unwrap();
    assert_eq!(option(&mounts, "lowerdir").unwrap(), format!("{upper}:{lower}"));
    for (name, expected) in
        [(&*names[2], Err(Code::FailedPrecondition)), ("next", Ok(())), ("built", Ok(())), (&names[2], Ok(()))]
    {
        assert_eq!(fixture.remove(name), expected, "{name}");
    }
    assert_eq!(fixture.images.mounted.lock().len(), 1, "what the view lies on");
}

#[test]
fn a_layer_that_cannot_be_mounted_is_unpacked_and_its_label_gives_the_reason() {
    let fixture = fixture();
    let stranger = Digest::of(b"another manifest");
    let mounts = fixture.pull("extract", "", stranger, chain()[0]).unwrap();
    assert_eq!(mounts[0].r#type, "bind");
    assert_eq!(fixture.stat("extract").unwrap().labels[UNPACKED], "the registry is not there");
    fixture.commit("ns/1/unpacked", "extract").unwrap();
    assert!(fixture.stat("ns/1/unpacked").unwrap().labels.contains_key(UNPACKED), "it still says so");
    fixture.pull("wrong chain", "", Digest::of(MANIFEST), Digest::of(b"of another config")).unwrap();
    assert!(fixture.stat("wrong chain").unwrap().labels[UNPACKED].contains("its config is not the one"));
    fixture.pull("wrong place", "", Digest::of(MANIFEST), chain()[1]).unwrap();
    assert!(fixture.stat("wrong place").unwrap().labels[UNPACKED].contains("the layers of the image lie on"));
    fixture.pull("on unpacked", "ns/1/unpacked", Digest::of(MANIFEST), chain()[1]).unwrap();
    assert_eq!(fixture.stat("on unpacked").unwrap().labels[UNPACKED], "the layer below it was unpacked");
}

#[test]
fn a_layer_of_an_image_that_the_policy_refuses_is_not_unpacked_for_any_reason() {
    let fixture = fixture();
    fixture.prepare("extract base", "").unwrap();
    fixture.commit("base", "extract base").unwrap();
    let (known, other) = (Digest::of(MANIFEST), Digest::of(b"another manifest"));
    let (tag, unknown) = (format!("{REFUSED}:v1"), format!("{REFUSED}@sha512:{}", "0".repeat(128)));
    for (image, parent, manifest, why) in [
        (&tag, "", other, "its registry is not there"),
        (&tag, "base", known, "the layer below it was unpacked"),
        (&unknown, "", known, "its name is not understood"),
        (&tag, "", Digest::of(BROKEN), "its preparation panics"),
    ] {
        let refused = fixture.pull_as(image, "extract", parent, manifest, chain()[1]);
        assert_eq!(refused, Err(Code::FailedPrecondition), "{why}");
        assert_eq!(fixture.stat("extract"), Err(Code::NotFound), "{why}");
    }
    fixture.pull("extract", "base", known, chain()[1]).unwrap();
    fixture.pull("extract after a panic", "", Digest::of(BROKEN), chain()[0]).unwrap();
}

#[test]
fn a_layer_on_layers_that_are_mounted_can_be_unpacked() {
    let fixture = fixture();
    let names = pull_all(&fixture);
    let mounts = fixture.pull("extract", &names[0], Digest::of(b"stranger"), Digest::of(b"chain")).unwrap();
    let lower = option(&mounts, "lowerdir").unwrap();
    assert_eq!(fixture.images.mounted.lock()[Path::new(lower)], 1);
}

#[test]
fn what_cannot_be_mounted_leaves_no_snapshot() {
    let fixture = fixture();
    let names = pull_all(&fixture);
    let before = fixture.folders();
    *fixture.images.broken.lock() = true;
    assert_eq!(fixture.prepare("container", &names[2]), Err(Code::Unavailable));
    assert_eq!((fixture.stat("container"), fixture.folders()), (Err(Code::NotFound), before));
    *fixture.images.broken.lock() = false;
    fixture.prepare("container", &names[2]).unwrap();
}

#[test]
fn a_restart_finds_all_snapshots_mounts_used_ones_and_removes_leftovers() {
    let mut fixture = fixture();
    let names = pull_all(&fixture);
    let mounts = fixture.prepare("container", &names[2]).unwrap();
    let before = fixture.list(&[]).unwrap();
    fixture.images.mounted.lock().clear();
    std::fs::create_dir_all(fixture.root.path().join("snapshots/77/fs/rubbish")).unwrap();
    let folders = fixture.folders();
    fixture.restart();
    assert_eq!(fixture.list(&[]).unwrap(), before);
    assert_eq!(fixture.folders(), folders - 1);
    let lower = PathBuf::from(option(&mounts, "lowerdir").unwrap());
    assert_eq!(*fixture.images.mounted.lock(), BTreeMap::from([(lower, 3)]));
    fixture.prepare("another", &names[2]).unwrap();
    assert!(fixture.root.path().join("snapshots/78").is_dir(), "numbers are not used twice");
}

#[test]
fn a_restart_gives_no_snapshot_the_directory_of_one_that_was_removed() {
    let mut fixture = fixture();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..3 {
        let mounts = fixture.prepare("container", "").unwrap();
        assert!(seen.insert(mounts[0].source.clone()), "{seen:?}");
        fixture.remove("container").unwrap();
        fixture.restart();
    }
}

#[test]
fn usage_is_measured_and_labels_change_by_the_mask() {
    let fixture = fixture();
    let mounts = fixture.prepare("active", "").unwrap();
    std::fs::write(Path::new(&mounts[0].source).join("file"), vec![1; 50_000]).unwrap();
    let usage: UsageResponse = fixture.key("Usage", "active").unwrap();
    assert!(usage.inodes == 2 && usage.size >= 50_000, "{usage:?}");
    fixture.commit("done", "active").unwrap();
    assert_eq!(fixture.key::<UsageResponse>("Usage", "done").unwrap(), usage, "as it was when it was committed");
    let update = |labels: &[(&str, &str)], paths: Option<&[&str]>| {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let info = Info { name: "done".to_owned(), labels, ..Info::default() };
        let mask = paths.map(|paths| FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() });
        let request = UpdateRequest { info: Some(info), update_mask: mask, ..UpdateRequest::default() };
        fixture.call("Update", request).map(|answer: InfoResponse| answer.info.unwrap().labels)
    };
    let labels = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(update(&[("a.b/c", "1"), ("x", "2")], None), Ok(labels(&[("a.b/c", "1"), ("x", "2")])));
    assert_eq!(update(&[("a.b/c", "3")], Some(&["labels.a.b/c"])), Ok(labels(&[("a.b/c", "3"), ("x", "2")])));
    assert_eq!(update(&[], Some(&["labels.x"])), Ok(labels(&[("a.b/c", "3")])));
    assert_eq!(update(&[("z", "1")], Some(&["labels"])), Ok(labels(&[("z", "1")])));
    assert_eq!(update(&[], Some(&["parent"])), Err(Code::InvalidArgument));
    assert_eq!(fixture.list(&["name=done"]), Err(Code::InvalidArgument));
    let request =
        CommitRequest { name: "n".into(), key: "done".into(), parent: "p".into(), ..CommitRequest::default() };
    assert_eq!(fixture.call::<_, Empty>("Commit", request), Err(Code::InvalidArgument));
    assert_eq!(fixture.call::<_, Empty>("Unheard", Empty {}), Err(Code::Unimplemented));
    assert_eq!(fixture.call::<_, Empty>("Cleanup", CleanupRequest::default()), Ok(Empty {}));
}

#[test]
fn lists_longer_than_a_message_come_whole() {
    let fixture = fixture();
    for number in 0..250 {
        fixture.prepare(&format!("key {number}"), "").unwrap();
    }
    assert_eq!(fixture.list(&[]).unwrap().len(), 250);
    assert_eq!(fixture.list(&["name==\"key 7\"", "name~=\"^key 24.$\""]).unwrap().len(), 11);
}

/// Operations.
#[derive(Debug, Clone)]
enum Step {
    Prepare(u8, u8),
    View(u8, u8),
    Commit(u8, u8),
    Remove(u8),
    Mounts(u8),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let name = 0..6_u8;
    prop_oneof![
        4 => (name.clone(), name.clone()).prop_map(|(key, parent)| Step::Prepare(key, parent)),
        1 => (name.clone(), name.clone()).prop_map(|(key, parent)| Step::View(key, parent)),
        4 => (name.clone(), name.clone()).prop_map(|(name, key)| Step::Commit(name, key)),
        2 => name.clone().prop_map(Step::Remove),
        1 => name.prop_map(Step::Mounts),
        1 => Just(Step::Restart),
    ]
}

/// A minimal model of snapshots: names with kinds and parents.
type Model = BTreeMap<String, (Kind, String)>;

fn name(number: u8) -> String {
    if number == 0 { String::new() } else { format!("s{number}") }
}

fn expected(model: &mut Model, step: &Step) -> Answer<()> {
    match step {
        Step::Prepare(key, parent) | Step::View(key, parent) => {
            let kind = if matches!(step, Step::View(..)) { Kind::View } else { Kind::Active };
            let (key, parent) = (name(*key), name(*parent));
            if key.is_empty() {
                return Err(Code::InvalidArgument);
            }
            if model.contains_key(&key) {
                return Err(Code::AlreadyExists);
            }
            match model.get(&parent) {
                None if !parent.is_empty() => return Err(Code::NotFound),
                Some((kind, _)) if *kind != Kind::Committed => return Err(Code::InvalidArgument),
                _ => {}
            }
            model.insert(key, (kind, parent));
        }
        Step::Commit(name_of, key) => {
            let (name, key) = (name(*name_of), name(*key));
            let (kind, parent) = model.get(&key).cloned().ok_or(Code::NotFound)?;
            if kind != Kind::Active {
                return Err(Code::FailedPrecondition);
            }
            if name.is_empty() {
                return Err(Code::InvalidArgument);
            }
            if model.contains_key(&name) {
                return Err(Code::AlreadyExists);
            }
            model.remove(&key);
            model.insert(name, (Kind::Committed, parent));
        }
        Step::Remove(key) => {
            let key = name(*key);
            if !model.contains_key(&key) {
                return Err(Code::NotFound);
            }
            if model.values().any(|(_, parent)| *parent == key) {
                return Err(Code::FailedPrecondition);
            }
            model.remove(&key);
        }
        Step::Mounts(key) => {
            let (kind, _) = model.get(&name(*key)).ok_or(Code::NotFound)?;
            if *kind == Kind::Committed {
                return Err(Code::FailedPrecondition);
            }
        }
        Step::Restart => {}
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn snapshots_match_a_simple_model(steps in prop::collection::vec(step(), 1..60)) {
        let mut fixture = Fixture::new(KnownImages::default());
        let mut model = Model::new();
        for step in steps {
            let wanted = expected(&mut model, &step);
            let done = match &step {
                Step::Prepare(key, parent) => fixture.prepare(&name(*key), &name(*parent)).map(drop),
                Step::View(key, parent) => fixture.create("View", &name(*key), &name(*parent), &[]).map(drop),
                Step::Commit(name_of, key) => fixture.commit(&name(*name_of), &name(*key)),
                Step::Remove(key) => fixture.remove(&name(*key)),
                Step::Mounts(key) => fixture.key("Mounts", &name(*key)).map(|_: MountsResponse| ()),
                Step::Restart => {
                    fixture.restart();
                    Ok(())
                }
            };
            prop_assert_eq!(done, wanted, "{:?}", step);
            let listed: Model =
                fixture.list(&[]).unwrap().into_iter().map(|info| (info.name.clone(), (info.kind(), info.parent))).collect();
            prop_assert_eq!(&listed, &model);
            prop_assert_eq!(fixture.folders(), model.len());
        }
    }
}
