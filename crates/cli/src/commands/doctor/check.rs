//! One check of `tarpon doctor`.

use serde::Serialize;

use crate::output::escape;

#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) name: String,
    pub(super) needed_for: String,
    pub(super) works: bool,
    /// The result, or why it does not work.
    pub(super) found: String,
    /// The command that fixes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

/// A check with this result; a check that failed may have a remedy.
pub(super) fn check(name: &str, needed_for: &str, found: Result<String, String>, mend: Option<String>) -> Check {
    let works = found.is_ok();
    let (Ok(found) | Err(found)) = found;
    Check {
        name: name.to_owned(),
        needed_for: needed_for.to_owned(),
        works,
        found: escape(found.as_bytes()),
        mend: mend.filter(|_| !works),
    }
}
