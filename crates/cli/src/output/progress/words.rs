//! The words of progress displays.

/// The words for one operation on layers.
pub(super) struct Words {
    /// On a terminal: the operation and its reason.
    pub(super) title: &'static str,
    /// As in "streaming 3 of 5 layers".
    pub(super) doing: &'static str,
    /// After the size of the layers.
    pub(super) why: &'static str,
    /// For a layer that has arrived completely.
    pub(super) arrived: &'static str,
    /// As in "layer 3 indexed".
    pub(super) done: &'static str,
    /// What bytes are of that belong to no layer of an image, as in "streaming what a start needs".
    pub(super) bytes_of: &'static str,
}

const START: &str = "what a start needs";

pub(super) const PREPARING: Words = Words {
    title: "streaming (no table of contents)",
    doing: "streaming",
    why: " (no table of contents)",
    arrived: "indexing",
    done: "indexed",
    bytes_of: START,
};
pub(super) const PULLING: Words =
    Words { title: "fetching", doing: "fetching", why: "", arrived: "verifying", done: "verified", bytes_of: START };
/// For an image that is prepared or pulled, and for what its start needs.
pub(super) const PREFETCHING: Words =
    Words { title: "fetching", doing: "fetching", why: "", arrived: "storing", done: "stored", bytes_of: START };
pub(super) const CONVERTING: Words = Words {
    title: "converting",
    doing: "converting",
    why: "",
    arrived: "uploading",
    done: "converted",
    bytes_of: START,
};
pub(super) const PUSHING: Words =
    Words { title: "pushing", doing: "pushing", why: "", arrived: "finishing", done: "pushed", bytes_of: START };
pub(super) const VERIFYING: Words = Words {
    title: "verifying",
    doing: "verifying",
    why: "",
    arrived: "finishing",
    done: "verified",
    bytes_of: "the tier",
};
