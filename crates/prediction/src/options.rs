//! The options of an interpreter, before the arguments of its program.

/// Options that are letters, in words that begin with a dash.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options<'a> {
    /// Each letter with its value, which is empty if it has none.
    pub(crate) letters: Vec<(u8, &'a [u8])>,
    /// The words after the options.
    pub(crate) rest: &'a [Vec<u8>],
}

impl<'a> Options<'a> {
    /// `with_value`: letters whose value is the rest of their word or, if that is empty, the next word. `with_rest`: those whose value is
    /// only the rest of their word.
    pub(crate) fn of(arguments: &'a [Vec<u8>], with_value: &[u8], with_rest: &[u8]) -> Self {
        let mut letters = Vec::new();
        let mut left = arguments;
        while let Some((word, after)) = left.split_first()
            && let Some(mut word) = word.strip_prefix(b"-").filter(|word| !word.is_empty())
        {
            left = after;
            if word == b"-" {
                break;
            }
            if word.starts_with(b"-") {
                continue;
            }
            while let Some((letter, rest)) = word.split_first() {
                let is_complete = !rest.is_empty() || with_rest.contains(letter);
                word = rest;
                if !with_value.contains(letter) && !with_rest.contains(letter) {
                    letters.push((*letter, &[][..]));
                    continue;
                }
                let value = match left.split_first().filter(|_| !is_complete) {
                    Some((value, after)) => {
                        left = after;
                        value
                    }
                    None => rest,
                };
                letters.push((*letter, value));
                break;
            }
        }
        Self { letters, rest: left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn options_have_their_values_in_the_same_word_or_the_next_one() {
        let words = owned(&["-wne", "code", "-I/a", "-i", "-I", "/b", "--long", "-", "-x"]);
        let options = Options::of(&words, b"eI", b"i");
        let expected: [(u8, &[u8]); 6] =
            [(b'w', b""), (b'n', b""), (b'e', b"code"), (b'I', b"/a"), (b'i', b""), (b'I', b"/b")];
        assert_eq!(options.letters, expected);
        assert_eq!(options.rest, owned(&["-", "-x"]));
    }

    #[test]
    fn two_dashes_end_options_and_a_missing_value_is_empty() {
        let words = owned(&["-a", "--", "-b"]);
        assert_eq!(Options::of(&words, b"a", b"").letters, [(b'a', b"--".as_slice()), (b'b', b"")]);
        let words = owned(&["--", "-b"]);
        assert_eq!(Options::of(&words, b"b", b""), Options { letters: vec![], rest: &words[1..] });
        let words = owned(&["-b"]);
        assert_eq!(Options::of(&words, b"b", b"").letters, [(b'b', b"".as_slice())]);
    }
}
