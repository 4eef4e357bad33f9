//! Makes external bytes safe to print: a file name must not move the cursor or fake a line.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_act_on_a_terminal_is_escaped() {
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
}
