//! [`Rules`]: which indexes of one image are accepted, by the user's choice and the policy of the host.
//!
//! | the user's choice | the image's repository | an index repository | the tier |
//! |---|---|---|---|
//! | nothing | signed by a key of the policy for the image | listed, unless the policy demands otherwise there | listed |
//! | `signed` | the same | signed by a key of the policy for the image or for that repository | none |
//! | `registry` | listed | listed, unless the policy demands otherwise there | listed |
//! | a digest | that one | that one, unless the policy demands otherwise there | none |
//! | `none` | none | none | none |
//!
//! Where the policy demands signatures in an index repository, only signed indexes of it are accepted, and none where it refuses it. A lock
//! file is the choice of a digest for the images in it, and no choice for others.

use tarpon_oci::Digest;
use tarpon_policy::{Demands, PublicKey};

use super::places::IndexPlace;
use crate::image::IndexChoice;

/// Reason for using an index: the user named it.
const PINNED: &str = "as it was pinned";
/// Reason for using an index: the user's lock names it.
const LOCKED: &str = "as the lock file pins it";

/// What is accepted as an index of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The index that the user vouches for, and why it is used. No listed one is used then.
    pub(super) pinned: Option<(Digest, &'static str)>,
    /// Of those that the image's repository lists.
    pub(super) own: Accepted,
    /// Of those that each index repository lists.
    pub(super) places: Vec<Accepted>,
    /// Whether the user trusts the lists of the image's repository.
    pub(super) trusts_own_list: bool,
    /// Whether the user trusts what hosts put into the tier, which has no signatures.
    trusts_tier: bool,
}

/// Which listed indexes are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Accepted {
    /// None; no list is requested.
    Nothing,
    /// None, because the policy refuses the repository, for this reason.
    Refused(String),
    /// All.
    Listed,
    /// Those that one of the keys signed.
    SignedBy(Vec<PublicKey>),
}

impl Rules {
    /// The rules for the image with this manifest, of which the policy demands `demands`.
    pub(crate) fn of(choice: &IndexChoice, manifest: &Digest, demands: &Demands, places: &[IndexPlace]) -> Self {
        let keys = demands.keys();
        let signed = || Accepted::signed_by(keys.clone());
        let all = |accepted: &dyn Fn(&IndexPlace) -> Accepted| places.iter().map(accepted).collect();
        let by_list = |place: &IndexPlace| Accepted::at(place, &keys, false);
        let by_key = |place: &IndexPlace| Accepted::at(place, &keys, true);
        match choice {
            IndexChoice::None => Self::nothing(),
            IndexChoice::Pinned(digest) => Self::only(*digest, PINNED, all(&by_list)),
            IndexChoice::Locked(lock) => match lock.index_of(manifest) {
                Some(digest) => Self::only(*digest, LOCKED, all(&by_list)),
                None => Self { own: signed(), places: all(&by_list), trusts_tier: true, ..Self::nothing() },
            },
            IndexChoice::Unset => Self { own: signed(), places: all(&by_list), trusts_tier: true, ..Self::nothing() },
            IndexChoice::Signed => Self { own: signed(), places: all(&by_key), ..Self::nothing() },
            IndexChoice::Registry => {
                let (own, places) = (Accepted::Listed, all(&by_list));
                Self { own, places, trusts_own_list: true, trusts_tier: true, ..Self::nothing() }
            }
        }
    }

    /// The index with this digest, in the image's repository or in one of these places.
    pub fn pinned(digest: Digest, places: &[IndexPlace]) -> Self {
        Self::only(digest, PINNED, places.iter().map(|place| Accepted::at(place, &[], false)).collect())
    }

    fn only(digest: Digest, why: &'static str, places: Vec<Accepted>) -> Self {
        Self { pinned: Some((digest, why)), places, ..Self::nothing() }
    }

    fn nothing() -> Self {
        let (own, places) = (Accepted::Nothing, Vec::new());
        Self { pinned: None, own, places, trusts_own_list: false, trusts_tier: false }
    }

    /// Whether indexes of layers in the tier are accepted.
    pub(crate) fn trust_tier(&self) -> bool {
        self.trusts_tier
    }

    /// Whether any index is accepted.
    pub(super) fn accept_any(&self) -> bool {
        self.pinned.is_some() || self.places.iter().chain([&self.own]).any(|accepted| *accepted != Accepted::Nothing)
    }
}

impl Accepted {
    fn signed_by(keys: Vec<PublicKey>) -> Self {
        // Without keys no signature verifies.
        if keys.is_empty() { Self::Nothing } else { Self::SignedBy(keys) }
    }

    /// What is accepted in an index repository. `of_image`: the keys that sign for the image itself, which may sign its indexes anywhere.
    fn at(place: &IndexPlace, of_image: &[PublicKey], only_signed: bool) -> Self {
        if let Err(refusal) = place.demands.check_before() {
            return Self::Refused(refusal.to_string());
        }
        if only_signed || place.demands.need_signatures() {
            return Self::signed_by(place.demands.keys().into_iter().chain(of_image.iter().cloned()).collect());
        }
        Self::Listed
    }
}
