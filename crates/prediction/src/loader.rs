//! Follows the sources of a program to the files that they load.

use std::collections::HashSet;

use super::files::File;
use crate::error::Result;

/// Files of one program. Large ones load two to three thousand.
const FILES: usize = 4096;
/// Requests that are resolved or are in vain: sixteen for each file.
const REQUESTS: usize = 1 << 16;
/// Requests that wait for others: those of a hundred files, of which each has hundreds.
const WAITING: usize = 1 << 16;

/// The files that a program reads, each once, in their order.
#[derive(Default)]
pub(crate) struct FileList {
    files: Vec<File>,
    paths: HashSet<Vec<u8>>,
}

impl FileList {
    /// This file is known, and none of what is found.
    fn omit(&mut self, file: &File) {
        self.paths.insert(file.path.clone());
    }

    pub(crate) fn add(&mut self, file: &File) {
        if self.files.len() < FILES && self.paths.insert(file.path.clone()) {
            self.files.push(file.clone());
        }
    }

    pub(crate) fn into_files(self) -> Vec<File> {
        self.files
    }
}

/// The loader of modules of a language.
pub(crate) trait Loader {
    /// What a source loads, as the source names it.
    type Request;

    fn found(&mut self) -> &mut FileList;

    /// The files that a request leads to.
    ///
    /// # Errors
    /// The content of a file cannot be fetched.
    fn resolve(&mut self, request: &Self::Request) -> Result<Vec<File>>;

    /// What a file loads, in its order.
    ///
    /// # Errors
    /// As [`Loader::resolve`].
    fn requests(&mut self, file: &File) -> Result<Vec<Self::Request>>;
}

/// Loads what a script requests, which is none of what is found.
///
/// # Errors
/// As [`Loader::resolve`].
pub(crate) fn load_script<L: Loader>(loader: &mut L, script: &File) -> Result<()> {
    loader.found().omit(script);
    let requests = loader.requests(script)?;
    load(loader, requests)
}

/// Loads what is requested, each with what it requests itself before the next one.
///
/// # Errors
/// As [`Loader::resolve`].
pub(crate) fn load<L: Loader>(loader: &mut L, requests: Vec<L::Request>) -> Result<()> {
    let mut left: Vec<L::Request> = requests.into_iter().rev().collect();
    let mut resolved = 0;
    while let Some(request) = left.pop() {
        resolved += 1;
        if resolved > REQUESTS || loader.found().files.len() >= FILES {
            break;
        }
        for file in loader.resolve(&request)? {
            if loader.found().paths.contains(&file.path) {
                continue;
            }
            let requested = loader.requests(&file)?;
            loader.found().add(&file);
            let room = WAITING.saturating_sub(left.len());
            left.extend(requested.into_iter().take(room).rev());
        }
    }
    Ok(())
}
