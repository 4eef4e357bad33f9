//! Blocks of code in the documents, which tasks use as users do.

/// The block of a Markdown document in this language that has this text.
pub(crate) fn block<'a>(document: &'a str, language: &str, with: &str) -> Option<&'a str> {
    let start = format!("```{language}\n");
    let blocks = document.split(&start).skip(1).filter_map(|rest| rest.split("```").next());
    blocks.into_iter().find(|block| block.contains(with))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_found_by_its_language_and_a_part_of_it() {
        let document = "text\n```toml\nversion = 3\n```\nmore\n```toml\nversion = 2\n```\n```ini\nversion = 2\n```\n";
        assert_eq!(block(document, "toml", "version = 2"), Some("version = 2\n"));
        assert_eq!(block(document, "toml", "version = 4"), None);
    }
}
