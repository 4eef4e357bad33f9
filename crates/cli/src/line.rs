//! Makes external text fit for one line of a terminal: a file name must not move the cursor or fake a line, and a registry
//! error often repeats the digest that the step before it named.

use std::fmt::Write;

/// UTF-8 text unchanged; control characters, bytes that are not UTF-8 and the backslash as escapes.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                '\r' => out.push_str("\\r"),
                '\\' => out.push_str("\\\\"),
                c if c.is_ascii_control() => hex(&mut out, c as u8),
                // The C1 controls, and the marks that change the direction of text.
                c if c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') => {
                    out.extend(c.escape_unicode());
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            hex(&mut out, *byte);
        }
    }
    out
}

fn hex(out: &mut String, byte: u8) {
    write!(out, "\\x{byte:02x}").expect("writing to a String cannot fail");
}

/// Length from which a name is long: a digest without its algorithm.
const LONG: usize = 64;
/// Characters that a repeated name keeps.
const KEPT: usize = 19;

/// `line` with each long name, digest or path in full once; repetitions end after [`KEPT`] characters in `…`.
pub(crate) fn shorten(line: &str) -> String {
    let mut seen: Vec<&str> = Vec::new();
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(is_part) {
        let (between, from_name) = rest.split_at(start);
        let end = from_name.find(|c| !is_part(c)).unwrap_or(from_name.len());
        // A trailing colon is no part of the name.
        let word = from_name[..end].trim_end_matches([':', '.']);
        let (word, behind) = from_name.split_at(word.len().max(1).min(end));
        out.push_str(between);
        let digest = digest_in(word);
        if word.len() >= LONG && seen.contains(&word) {
            out.push_str(&kept(word));
        } else if let Some((before, digest, after)) = digest.filter(|(_, digest, _)| seen.contains(digest)) {
            out.extend([before, &kept(digest), after]);
        } else {
            out.push_str(word);
        }
        seen.extend(Some(word).filter(|word| word.len() >= LONG));
        seen.extend(digest.map(|(_, digest, _)| digest));
        rest = behind;
    }
    out.push_str(rest);
    out
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || "/:@._+-~%".contains(c)
}

fn kept(name: &str) -> String {
    name.chars().take(KEPT).chain(['…']).collect()
}

/// The first digest in the word, with the text before and after it.
fn digest_in(word: &str) -> Option<(&str, &str, &str)> {
    const ALGORITHM: &str = "sha256:";
    let start = word.find(ALGORITHM)?;
    let hex = &word.as_bytes()[start + ALGORITHM.len()..];
    let digits = hex.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let end = start + ALGORITHM.len() + LONG;
    (digits == LONG).then(|| (&word[..start], &word[start..end], &word[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_invalid_bytes_are_escaped() {
        let table: [(&[u8], &str); 7] = [
            (b"/usr/bin", "/usr/bin"),
            ("gr\u{fc}n \u{9c7c}".as_bytes(), "gr\u{fc}n \u{9c7c}"),
            (b"a\nb\tc\rd", "a\\nb\\tc\\rd"),
            (b"\x1b[31m\x07\x7f", "\\x1b[31m\\x07\\x7f"),
            (b"latin\xe9", "latin\\xe9"),
            (b"back\\slash", "back\\\\slash"),
            ("\u{9b}31m\u{202e}txt".as_bytes(), "\\u{9b}31m\\u{202e}txt"),
        ];
        for (bytes, text) in table {
            assert_eq!(escape(bytes), text);
        }
    }

    #[test]
    fn a_repeated_long_name_is_shortened() {
        let digest = format!("sha256:{}", "0123456789abcdef".repeat(4));
        let line = format!("cannot read layer 1 ({digest}): GET app/blobs/{digest}: 404 Not Found");
        let short = format!("cannot read layer 1 ({digest}): GET app/blobs/sha256:0123456789ab…: 404 Not Found");
        assert_eq!(shorten(&line), short);
        let path = format!("/srv/{}", "grün/".repeat(20));
        assert_eq!(
            shorten(&format!("on {path}: {path} is a file")),
            format!("on {path}: /srv/grün/grün/grün… is a file")
        );
    }

    #[test]
    fn short_names_and_other_digests_stay() {
        let two = format!("sha256:{} is not sha256:{}", "a".repeat(64), "b".repeat(64));
        for line in ["cannot mount a on /mnt: /mnt is not a directory", "sha256:12 sha256:12", "", "…", two.as_str()]
        {
            assert_eq!(shorten(line), line);
        }
    }
}
