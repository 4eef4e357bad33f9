//! The governor: detects that an image is read in a way that lazy fetching does not suit, and fetches the rest of it whole.
//!
//! A program that touches thousands of small files in any order (`tar /usr`, a JVM, `npm`) pays a round trip for each, where a pull pays
//! hardly any. Per image the governor measures what requests cost ([`link`]), how long readers have waited recently ([`burst`]) and what is
//! missing ([`missing`]). [`decide`] is the rule, [`control`] applies it where the policy ([`crate::prefetch`]) lets it, and [`whole`]
//! does the work.
//!
//! ```text
//! a read had to wait ─► burst ─► decide ─┬─► lazy     nothing
//!                                        ├─► count    the missing bytes are not known
//!                                        ├─► measure  one request ahead: the link is not known
//!                                        └─► whole    layer by layer, until all is local, readers are quiet or there is no room
//! ```

mod burst;
mod control;
mod decide;
pub(crate) mod link;
mod missing;
pub(crate) mod state;
mod whole;
