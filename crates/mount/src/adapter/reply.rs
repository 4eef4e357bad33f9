//! The common part of all replies: they can return an error.

/// A reply that can be an error.
pub(super) trait Refuse: Send + 'static {
    fn refuse(self, errno: fuser::Errno);
}

macro_rules! refuse {
    ($($reply:ident),+ $(,)?) => {$(
        impl Refuse for fuser::$reply {
            fn refuse(self, errno: fuser::Errno) {
                self.error(errno);
            }
        }
    )+};
}

refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr,
);
