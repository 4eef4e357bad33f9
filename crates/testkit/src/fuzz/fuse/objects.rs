//! The file system of objects.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rustix::io::Errno;
use tarpon_fs::{ObjectFs, Objects};
use tarpon_oci::Digest;

use super::Input;
use super::kernel::{FLUSH, Kernel, OPEN, OPENDIR, READLINK, ROOT};

/// Requests of one input.
const REQUESTS: usize = 100;
/// Bits of a digest in the id of its object.
const ID_BITS: u32 = 62;
/// Most references that a kernel forgets at once: fewer than a successor assumes.
const FORGOTTEN: u64 = 1 << 32;
/// References that are never all returned, as to a successor.
const ENDLESS: u64 = u64::MAX / 2;
const SIZE: u64 = 5_000;

pub(in super::super) fn run(mut input: Input<'_>, options: u8) {
    let objects = Arc::new(Held::default());
    let is_inherited = options & 1 != 0;
    let files = if is_inherited { ObjectFs::inherited(objects.clone()) } else { ObjectFs::new(objects.clone()) };
    let files = Arc::new(files);
    let kernel = Kernel::new(files.clone(), objects.clone(), options & 2 != 0);
    let mut mounted = Mounted { kernel, files, is_inherited, held: BTreeMap::new() };
    for _ in 0..REQUESTS {
        let Some(request) = input.byte() else { break };
        mounted.request(request, &mut input);
        assert_eq!(objects.held(), mounted.objects_held(), "the source of bytes knows which inodes are held");
    }
    mounted.kernel.end();
    drop(mounted.files);
    assert_eq!(objects.held(), [], "the connection has ended");
}

/// The objects: two pairs have the same first 62 bits.
fn digests() -> [Digest; 6] {
    let digest = |start: [u8; 8], end: u8| {
        let mut bytes = [end; 32];
        bytes[..8].copy_from_slice(&start);
        Digest::from_bytes(bytes)
    };
    let [one, other] = [[7; 8], [0xff; 8]];
    [
        digest(one, 1),
        digest(one, 2),
        digest([7, 7, 7, 7, 7, 7, 7, 8], 1),
        digest(other, 1),
        digest([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc], 1),
        digest([0; 8], 0),
    ]
}

/// The id of an object whose 62 bits no other has.
fn own_id(object: &Digest) -> u64 {
    1 << 63 | first_bits(object) >> (u64::BITS - ID_BITS)
}

fn first_bits(object: &Digest) -> u64 {
    u64::from_be_bytes(object.as_bytes()[..8].try_into().expect("eight bytes"))
}

fn content(object: &Digest) -> Vec<u8> {
    object.as_bytes().iter().copied().cycle().take(usize::try_from(SIZE).expect("small")).collect()
}

struct Mounted {
    kernel: Kernel,
    files: Arc<ObjectFs>,
    is_inherited: bool,
    /// The inodes that the kernel holds, with the number of references.
    held: BTreeMap<u64, (Digest, u64)>,
}

impl Mounted {
    fn objects_held(&self) -> Vec<Digest> {
        let mut objects: Vec<Digest> = self.held.values().map(|(object, _)| *object).collect();
        objects.sort();
        objects
    }

    fn request(&mut self, request: u8, input: &mut Input<'_>) {
        match request % 8 {
            0 | 1 => self.look_up(&input.pick(&digests())),
            2 => {
                let (node, count) = (self.node(input), input.number() % FORGOTTEN);
                self.kernel.forget(node, count, request & 8 != 0);
                // Orders it before the check of what is held.
                self.kernel.attributes(ROOT).expect("the root is always there");
                if let Some((_, references)) = self.held.get_mut(&node) {
                    *references = references.saturating_sub(count);
                    self.held.retain(|_, (_, references)| *references > 0);
                }
            }
            3 => {
                let node = self.node(input);
                let found = self.kernel.attributes(node);
                let expected = self.object(node).map(|_| (node, SIZE, 0o100_444));
                assert_eq!(found.map(|found| (found.inode, found.size, found.mode)), expected);
            }
            4 => {
                let (node, offset, size) = (self.node(input), input.number() % (1 << 40), input.number());
                let (offset, size) = (offset.min(SIZE), u32::try_from(size.min(2 * SIZE)).expect("small"));
                let read = self.kernel.read(node, offset, size);
                let expected = self.object(node).map(|object| {
                    let start = usize::try_from(offset).expect("small");
                    content(&object).into_iter().skip(start).take(usize::try_from(size).expect("small")).collect()
                });
                assert_eq!(read, expected);
            }
            5 => self.check_names(input),
            6 => self.check_others(input),
            _ => {
                // No READ, LOOKUP or FORGET of what is held, which the model would miss.
                let node = if request & 8 == 0 { ROOT } else { u64::MAX };
                self.kernel.send_arbitrary(input, node);
            }
        }
    }

    /// An id of an object: one that is held, that of an object, or any.
    fn node(&self, input: &mut Input<'_>) -> u64 {
        let held: Vec<u64> = self.held.keys().copied().collect();
        match input.byte().unwrap_or(0) {
            0 => 1 << 63 | input.number(),
            choice @ 1..=128 if !held.is_empty() => held[usize::from(choice) % held.len()],
            _ => own_id(&input.pick(&digests())),
        }
    }

    /// The object of an id. A successor finds it by the id, and holds it from then on.
    fn object(&mut self, node: u64) -> Result<Digest, Errno> {
        if let Some((object, _)) = self.held.get(&node) {
            return Ok(*object);
        }
        let of_id: Vec<Digest> = digests().into_iter().filter(|object| own_id(object) == node).collect();
        match of_id[..] {
            [object] if self.is_inherited => {
                self.held.insert(node, (object, ENDLESS));
                Ok(object)
            }
            _ => Err(Errno::STALE),
        }
    }

    fn look_up(&mut self, object: &Digest) {
        let hex = object.hex();
        let folder = self.kernel.look_up(ROOT, &hex.as_bytes()[..2]).expect("a directory").expect("all 256 exist");
        assert_eq!((folder.inode, folder.mode), (2 + u64::from(object.as_bytes()[0]), 0o040_555));
        let found = self.kernel.look_up(folder.inode, &hex.as_bytes()[2..]).expect("a directory");
        let found = found.expect("the object exists");
        assert_eq!((found.size, found.mode), (SIZE, 0o100_444));
        let before = self.held.iter().find(|(_, (known, _))| known == object).map(|(node, _)| *node);
        assert_eq!(before.unwrap_or(found.inode), found.inode, "a held object keeps its id");
        let references = if self.is_inherited { ENDLESS } else { 0 };
        let (known, references) = self.held.entry(found.inode).or_insert((*object, references));
        assert_eq!(known, object, "the id belongs to a held object");
        *references = references.saturating_add(1);
        assert_eq!(self.files.held(), self.held.len());
    }

    /// Names that are none of an object.
    fn check_names(&mut self, input: &mut Input<'_>) {
        let length = input.choice(70);
        let name: Vec<u8> = input.bytes(length).iter().map(|byte| byte.max(&1)).copied().collect();
        let is_folder = name.len() == 2 && name.iter().all(|digit| b"0123456789abcdef".contains(digit));
        assert_eq!(self.kernel.look_up(ROOT, &name).map(|found| found.is_some()), Ok(is_folder));
        let object = digests().map(|object| object.hex().as_bytes()[2..].to_vec()).contains(&name);
        if !object {
            assert_eq!(self.kernel.look_up(2 + 7, &name), Ok(None));
        }
        for (plus, node) in [(false, ROOT), (true, 2 + 255)] {
            let listed = self.kernel.list_all(node, 512, plus).expect("a directory");
            assert!(listed.iter().map(|entry| &entry.name[..]).eq([&b"."[..], b".."]), "objects are not listed");
        }
    }

    fn check_others(&mut self, input: &mut Input<'_>) {
        assert_eq!(self.kernel.look_up(u64::MAX, b"00"), Err(Errno::NOTDIR));
        assert_eq!(self.kernel.list(1 << 63, 0, 4_096, false).err(), Some(Errno::NOTDIR));
        assert_eq!(self.kernel.ask(READLINK, ROOT, &[]), Err(Errno::INVAL));
        assert_eq!(self.kernel.read(2, 0, 1), Err(Errno::ISDIR));
        assert_eq!(self.kernel.xattr(ROOT, Some(b"user.a")), Err(Errno::NOSYS));
        assert_eq!(self.kernel.xattr(ROOT, None), Ok(Vec::new()));
        for opcode in [OPENDIR, FLUSH] {
            assert_eq!(self.kernel.ask(opcode, ROOT, &[0; 24]), Err(Errno::NOSYS));
        }
        let opened = self.kernel.ask(OPEN, ROOT, &[0; 8]);
        assert!(matches!(opened, Err(Errno::NOSYS | Errno::ISDIR)), "{opened:?}");
        assert_eq!(self.kernel.inodes(), 0);
        let node = self.node(input);
        if self.object(node).is_ok() {
            assert!(matches!(self.kernel.ask(OPEN, node, &[0; 8]), Ok(_) | Err(Errno::NOSYS)));
            self.kernel.attributes(node).expect("a held inode");
        }
    }
}

/// The objects, and how often each is held.
#[derive(Default)]
struct Held(Mutex<Vec<Digest>>);

impl Held {
    fn held(&self) -> Vec<Digest> {
        let mut held = self.0.lock().clone();
        held.sort();
        held
    }
}

impl Objects for Held {
    fn size(&self, object: &Digest) -> Option<u64> {
        digests().contains(object).then_some(SIZE)
    }

    fn hold(&self, object: &Digest) -> Option<u64> {
        let size = self.size(object)?;
        self.0.lock().push(*object);
        Some(size)
    }

    fn release(&self, object: &Digest) {
        let mut held = self.0.lock();
        let at = held.iter().position(|held| held == object).expect("it is held");
        held.swap_remove(at);
    }

    fn starting_with(&self, start: u64, bits: u32) -> Vec<Digest> {
        let is_like = |object: &Digest| (first_bits(object) ^ start) >> (u64::BITS - bits) == 0;
        digests().into_iter().filter(is_like).take(2).collect()
    }

    fn read_local(&self, object: &Digest, offset: u64, length: usize) -> Result<Option<Bytes>, tarpon_fs::Errno> {
        let start = usize::try_from(offset).map_err(|_| tarpon_fs::Errno::Invalid)?;
        let is_local = object.as_bytes()[31] & 1 == 0;
        Ok(is_local.then(|| content(object)[start..start + length].to_vec().into()))
    }

    fn read(&self, object: Digest, offset: u64, length: usize) -> BoxFuture<'static, Result<Bytes, tarpon_fs::Errno>> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        async move { Ok(content(&object)[start..start + length].to_vec().into()) }.boxed()
    }

    fn open_local(&self, _: &Digest) -> Option<Arc<File>> {
        None
    }
}
