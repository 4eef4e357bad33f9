//! Lists of images in files: one image on each line.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The text of the list in this file, `-` for standard input, of at most `most` bytes.
pub(super) fn read(list: &Path, most: u64) -> io::Result<String> {
    let input: Box<dyn Read> =
        if list == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(File::open(list)?) };
    let mut text = String::new();
    input.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(text)
}

/// The entries of a list: its lines without comments, which begin with #, and without empty ones.
pub(super) fn entries(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().map(|line| line.split_once('#').map_or(line, |(entry, _)| entry).trim());
    lines.filter(|entry| !entry.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_comments_and_empty_lines() {
        let text = "# of tomorrow\n\nalpine:3.20\n  registry.example/app:v2   # the web server\r\n#\n";
        assert_eq!(entries(text).collect::<Vec<_>>(), ["alpine:3.20", "registry.example/app:v2"]);
    }
}
