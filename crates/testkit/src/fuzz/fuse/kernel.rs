//! [`Kernel`]: the kernel's side of a FUSE connection, with the layouts of `<linux/fuse.h>`.

use std::sync::Arc;

use rustix::io::Errno;
use tarpon_fs::{Objects, Operations};
use tarpon_mount::fuzz::Served;

use super::Input;

pub(super) const LOOKUP: u32 = 1;
pub(super) const FORGET: u32 = 2;
pub(super) const GETATTR: u32 = 3;
pub(super) const READLINK: u32 = 5;
pub(super) const OPEN: u32 = 14;
pub(super) const READ: u32 = 15;
pub(super) const STATFS: u32 = 17;
pub(super) const RELEASE: u32 = 18;
pub(super) const GETXATTR: u32 = 22;
pub(super) const LISTXATTR: u32 = 23;
pub(super) const FLUSH: u32 = 25;
pub(super) const OPENDIR: u32 = 27;
pub(super) const READDIR: u32 = 28;
const INTERRUPT: u32 = 36;
const DESTROY: u32 = 38;
const NOTIFY_REPLY: u32 = 41;
pub(super) const BATCH_FORGET: u32 = 42;
pub(super) const READDIRPLUS: u32 = 44;
/// What a kernel sends in one way only: DESTROY ends the session, and the library panics for WRITE, SETXATTR and IOCTL
/// whose lengths are not those that a kernel sends.
const NEVER: [u32; 4] = [DESTROY, 16, 21, 39];
/// The opcodes of the kernel, and one more.
const OPCODES: usize = 54;

pub(super) const ROOT: u64 = 1;
/// Longest listing that is asked for: an answer is one packet of the socket.
const LISTING_BYTES: u32 = 64 << 10;
const HEADER: usize = 40;
const ANSWER_HEADER: usize = 16;
const ATTRIBUTES: usize = 88;

/// The body of an answer, or an error.
pub(super) type Answer = Result<Vec<u8>, Errno>;

/// The kernel's side of a connection.
pub(super) struct Kernel {
    served: Served,
    unique: u64,
}

/// `struct fuse_attr`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Attributes {
    pub(super) inode: u64,
    pub(super) size: u64,
    pub(super) blocks: u64,
    pub(super) mtime: (u64, u32),
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) owner: (u32, u32),
    pub(super) device: u32,
}

/// A listed name.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: Vec<u8>,
    pub(super) inode: u64,
    /// The type, as bits of a mode.
    pub(super) kind: u32,
    pub(super) next: u64,
    /// Of READDIRPLUS.
    pub(super) attributes: Option<Attributes>,
}

impl Kernel {
    pub(super) fn new(files: Arc<dyn Operations>, objects: Arc<dyn Objects>, sees_opens: bool) -> Self {
        Self { served: Served::new(files, objects, sees_opens).expect("a session"), unique: 1 }
    }

    /// Sends a request, and returns its answer.
    pub(super) fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> Answer {
        let unique = self.send(opcode, node, body);
        let (answered, answer) = self.receive();
        assert_eq!(answered, unique, "another request was answered");
        answer
    }

    /// Sends a request that has no answer.
    pub(super) fn tell(&mut self, opcode: u32, node: u64, body: &[u8]) {
        self.send(opcode, node, body);
    }

    /// Sends a request with an arbitrary body. What it is answered is of no concern, but it is answered once.
    pub(super) fn send_arbitrary(&mut self, input: &mut Input<'_>, node: u64) {
        let opcode = u32::try_from(input.choice(OPCODES)).expect("small");
        let length = input.choice(120);
        let mut body = input.bytes(length).to_vec();
        if NEVER.contains(&opcode) {
            return;
        }
        if let Some(size) = body.get_mut(16..20).filter(|_| [READ, READDIR, READDIRPLUS].contains(&opcode)) {
            size.copy_from_slice(&LISTING_BYTES.to_le_bytes());
        }
        if opcode == BATCH_FORGET {
            // No id of an object, of which the model would miss references.
            body.iter_mut().for_each(|byte| *byte &= 0x7f);
        }
        let unique = self.send(opcode, node, &body);
        let needs_none = [FORGET, BATCH_FORGET, INTERRUPT, NOTIFY_REPLY].contains(&opcode);
        let next = self.send(GETATTR, ROOT, &[0; 16]);
        let mut answered = vec![self.receive().0];
        if answered[0] == unique || !needs_none {
            answered.push(self.receive().0);
        }
        answered.sort_unstable();
        let both = answered == [unique, next];
        assert!(both || needs_none && answered == [next], "opcode {opcode}: answered {answered:?}");
    }

    /// Ends the session.
    pub(super) fn end(mut self) {
        assert_eq!(self.ask(DESTROY, ROOT, &[]), Ok(Vec::new()));
        assert_eq!(self.served.panics(), 0, "an operation panicked");
        self.served.join().expect("the session ends in order");
    }

    fn send(&mut self, opcode: u32, node: u64, body: &[u8]) -> u64 {
        self.unique += 2;
        let length = u32::try_from(HEADER + body.len()).expect("short");
        let mut request = Vec::with_capacity(HEADER + body.len());
        request.extend_from_slice(&length.to_ne_bytes());
        request.extend_from_slice(&opcode.to_ne_bytes());
        request.extend_from_slice(&self.unique.to_ne_bytes());
        request.extend_from_slice(&node.to_ne_bytes());
        request.resize(HEADER, 0);
        request.extend_from_slice(body);
        self.served.send(&request).expect("the session has not ended");
        self.unique
    }

    fn receive(&mut self) -> (u64, Answer) {
        let answer = self.served.receive().expect("an answer");
        assert!(answer.len() >= ANSWER_HEADER && number(answer, 0) == answer.len(), "an answer of the wrong length");
        let error = i32::from_ne_bytes(answer[4..8].try_into().expect("four bytes"));
        let body = answer[ANSWER_HEADER..].to_vec();
        assert!(error == 0 || (-4095..0).contains(&error) && body.is_empty(), "error {error}, {} bytes", body.len());
        let outcome = if error == 0 { Ok(body) } else { Err(Errno::from_raw_os_error(-error)) };
        (long(answer, 8), outcome)
    }

    /// Looks a name up. `None`: there is none.
    pub(super) fn look_up(&mut self, parent: u64, name: &[u8]) -> Result<Option<Attributes>, Errno> {
        let entry = self.ask(LOOKUP, parent, &terminated(name))?;
        assert_eq!(entry.len(), 40 + ATTRIBUTES);
        let (node, attributes) = (long(&entry, 0), Attributes::read(&entry[40..]));
        assert_eq!((attributes.inode, long(&entry, 8)), (node, 0), "inode numbers are not those of the nodes");
        Ok((node != 0).then_some(attributes))
    }

    pub(super) fn attributes(&mut self, node: u64) -> Result<Attributes, Errno> {
        let answer = self.ask(GETATTR, node, &[0; 16])?;
        assert_eq!(answer.len(), 16 + ATTRIBUTES);
        Ok(Attributes::read(&answer[16..]))
    }

    pub(super) fn read(&mut self, node: u64, offset: u64, size: u32) -> Answer {
        self.ask(READ, node, &reading(offset, size))
    }

    /// One part of a listing.
    pub(super) fn list(&mut self, node: u64, offset: u64, size: u32, plus: bool) -> Result<Vec<Listed>, Errno> {
        let size = size.min(LISTING_BYTES);
        let answer = self.ask(if plus { READDIRPLUS } else { READDIR }, node, &reading(offset, size))?;
        assert!(answer.len() <= usize::try_from(size).expect("small"), "more than there is room for");
        let (mut rest, mut listed) = (&answer[..], Vec::new());
        while !rest.is_empty() {
            let attributes = plus.then(|| {
                let attributes = Attributes::read(&rest[40..]);
                assert_eq!(attributes.inode, long(rest, 0));
                rest = &rest[40 + ATTRIBUTES..];
                attributes
            });
            let (length, kind) = (number(rest, 16), u32::try_from(number(rest, 20)).expect("32 bits"));
            let name = rest[24..24 + length].to_vec();
            listed.push(Listed { name, inode: long(rest, 0), kind: kind << 12, next: long(rest, 8), attributes });
            rest = &rest[(24 + length).next_multiple_of(8)..];
        }
        Ok(listed)
    }

    /// A whole listing, in parts of at most `size` bytes.
    pub(super) fn list_all(&mut self, node: u64, size: u32, plus: bool) -> Result<Vec<Listed>, Errno> {
        let mut all = Vec::new();
        loop {
            let part = self.list(node, all.last().map_or(0, |last: &Listed| last.next), size, plus)?;
            if part.is_empty() {
                return Ok(all);
            }
            all.extend(part);
        }
    }

    /// An extended attribute, or the list of their names if `name` is `None`, asked for in two steps.
    pub(super) fn xattr(&mut self, node: u64, name: Option<&[u8]>) -> Answer {
        let (opcode, name) = match name {
            Some(name) => (GETXATTR, terminated(name)),
            None => (LISTXATTR, Vec::new()),
        };
        let body = |size: usize| [&u32::try_from(size).expect("short").to_ne_bytes()[..], &[0; 4], &name].concat();
        let answer = self.ask(opcode, node, &body(0))?;
        assert_eq!(answer.len(), 8);
        let length = number(&answer, 0);
        let value = self.ask(opcode, node, &body(length.max(1)))?;
        assert_eq!(value.len(), length, "the length that was announced");
        if length > 1 {
            assert_eq!(self.ask(opcode, node, &body(length - 1)), Err(Errno::RANGE));
        }
        Ok(value)
    }

    /// Number of inodes.
    pub(super) fn inodes(&mut self) -> u64 {
        let answer = self.ask(STATFS, ROOT, &[]).expect("STATFS cannot fail");
        assert_eq!(answer.len(), 80);
        long(&answer, 24)
    }

    /// Forgets so many references, in one of two ways.
    pub(super) fn forget(&mut self, node: u64, count: u64, in_batch: bool) {
        if in_batch {
            let body = [&2_u32.to_ne_bytes()[..], &[0; 4], &node.to_ne_bytes(), &count.to_ne_bytes()].concat();
            // And one that no file system has issued.
            self.tell(BATCH_FORGET, 0, &[&body[..], &u64::MAX.to_ne_bytes(), &1_u64.to_ne_bytes()].concat());
        } else {
            self.tell(FORGET, node, &count.to_ne_bytes());
        }
    }
}

impl Attributes {
    fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::try_from(number(bytes, at)).expect("32 bits");
        let times = [24, 32, 40].map(|at| long(bytes, at));
        assert_eq!((times, [word(48), word(56)]), ([times[0]; 3], [word(52); 2]), "images have one time");
        Self {
            inode: long(bytes, 0),
            size: long(bytes, 8),
            blocks: long(bytes, 16),
            mtime: (times[1], word(52)),
            mode: word(60),
            links: word(64),
            owner: (word(68), word(72)),
            device: word(76),
        }
    }
}

fn terminated(name: &[u8]) -> Vec<u8> {
    [name, &[0]].concat()
}

/// `struct fuse_read_in`.
fn reading(offset: u64, size: u32) -> Vec<u8> {
    [&[0; 8][..], &offset.to_ne_bytes(), &size.to_ne_bytes(), &[0; 20]].concat()
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn number(bytes: &[u8], at: usize) -> usize {
    let number = u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    usize::try_from(number).expect("a usize has 32 bits")
}
