//! Predicts what the start of an image's command reads, without running it.
//!
//! ```text
//! bounded        files of which only so much is looked up and read
//! program        a command: programs, scripts, files that arguments name
//! shell          the commands in scripts and in arguments
//! libraries      the libraries of a program, found as the dynamic linker finds them
//! elf            headers of an ELF file, and the parts of it that a start reads
//! configuration  the files of a server below /etc, and the modules that they name
//! locale         the files of a locale
//! java           the virtual machine and the jars of a Java program
//! languages      interpreters, and the modules that their programs load: python, node, perl, ruby, php
//! loader         follows sources to the files that they load
//! directories    where an interpreter has its modules
//! options        the options of an interpreter
//! environment    variables
//! listings       a cache of directory listings
//! sources        texts that are searched for imports, and how much of them
//! files          the image's files, by path
//! ```
//!
//! A prediction decides what a boot pack has, and so only order and speed. What it has needlessly costs bandwidth, what it lacks is fetched
//! when it is read. All reading is bounded: files are as hostile as their image.

mod bounded;
mod command;
mod configuration;
mod directories;
mod elf;
mod environment;
mod error;
mod files;
mod java;
mod languages;
mod libraries;
mod listings;
mod loader;
mod locale;
mod node;
mod options;
mod perl;
mod php;
mod program;
mod python;
mod ruby;
mod shell;
mod sources;

use tarpon_layer::LayerIndex;
use tarpon_oci::RunConfig;

use self::bounded::Bounded;
use self::files::TreeFiles;
use self::program::Prediction;

pub use self::error::{Error, Result};
pub use self::files::{File, Files, Piece, ReadObject};

/// The version of the predictions. To be raised with a change that makes starts faster, so that `tarpon index sync` publishes new packs of images
/// that have one.
pub const VERSION: u32 = 2;

/// The contents that the start of the image's command reads, in the order in which it reads them. `read` reads a range of an object, which is
/// inside of it.
///
/// # Errors
/// The layers cannot be merged, or `read` fails.
pub fn predict(layers: &[LayerIndex], config: &RunConfig, read: &ReadObject<'_>) -> Result<Vec<Piece>> {
    let tree = tarpon_tree::merge(layers)?;
    predict_in(&TreeFiles::new(&tree, read), config)
}

/// As [`predict`], with any source of files.
///
/// # Errors
/// As [`Files::read`].
pub fn predict_in(files: &dyn Files, config: &RunConfig) -> Result<Vec<Piece>> {
    let command: Vec<String> = config.entrypoint.iter().chain(&config.cmd).cloned().collect();
    let bounded = Bounded::new(files);
    let mut prediction = Prediction::new(&bounded, config)?;
    match prediction.follow(&command) {
        Err(error) if !bounded.is_exhausted() => Err(error),
        // What was found until then is the beginning of the start.
        Ok(()) | Err(_) => Ok(prediction.pieces()),
    }
}
