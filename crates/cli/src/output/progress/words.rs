//! The words of progress displays.

/// The words for one operation on layers.
pub(super) struct Words {
    /// On a terminal: the operation and its reason.
    pub(super) title: &'static str,
    /// As in "streaming 3 of 5 layers".
    pub(super) doing: &'static str,
    /// After "layers" ...
    pub(super) how: &'static str,
    /// ... and after their size.
    pub(super) why: &'static str,
    /// For a layer that has arrived completely.
    pub(super) arrived: &'static str,
    /// As in "layer 3 indexed".
    pub(super) done: &'static str,
}

pub(super) const PREPARING: Words = Words {
    title: "no table of contents: streaming once",
    doing: "streaming",
    how: " once",
    why: ": they have no table of contents",
    arrived: "indexing",
    done: "indexed",
};
pub(super) const PULLING: Words =
    Words { title: "fetching", doing: "fetching", how: "", why: "", arrived: "verifying", done: "is here" };
pub(super) const CONVERTING: Words =
    Words { title: "converting", doing: "converting", how: "", why: "", arrived: "uploading", done: "is there" };
pub(super) const PUSHING: Words =
    Words { title: "pushing", doing: "pushing", how: "", why: "", arrived: "finishing", done: "is there" };
