//! Configurations that the project ships, edited as their users edit them.

use anyhow::{Result, ensure};

/// The configuration with these texts replaced, each of which is in it.
pub(crate) fn edited(conf: &str, edits: &[(&str, &str)]) -> Result<String> {
    edits.iter().try_fold(conf.to_owned(), |conf, (from, to)| {
        ensure!(conf.contains(from), "the configuration does not have {from}");
        Ok(conf.replace(from, to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_of_a_text_that_is_no_longer_there_is_an_error() {
        assert_eq!(edited("listen 1; listen 1;", &[("1", "2")]).unwrap(), "listen 2; listen 2;");
        assert!(edited("listen 1;", &[("3", "2")]).unwrap_err().to_string().contains("does not have 3"));
    }
}
