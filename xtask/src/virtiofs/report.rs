//! What was found, a line each.

use serde_json::{Value, json};

/// The findings until now.
#[derive(Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    remarks: Vec<String>,
}

struct Finding {
    sentence: String,
    is_true: bool,
    detail: String,
    /// Figures that belong to it.
    figures: Value,
}

impl Report {
    /// Adds and prints a sentence that must be true.
    pub(super) fn check(&mut self, sentence: String, is_true: bool, detail: String, figures: Value) {
        println!("{}: {sentence}: {detail}", if is_true { "yes" } else { "NO" });
        self.findings.push(Finding { sentence, is_true, detail, figures });
    }

    /// Adds and prints what may be so or otherwise.
    pub(super) fn remark(&mut self, remark: String) {
        println!("{remark}");
        self.remarks.push(remark);
    }

    pub(super) fn failures(&self) -> usize {
        self.findings.iter().filter(|finding| !finding.is_true).count()
    }

    /// All sentences with `facts`, which hold for all of them.
    pub(super) fn to_json(&self, facts: Value) -> Value {
        let findings = self.findings.iter().map(|finding| {
            json!({
                "sentence": finding.sentence,
                "is_true": finding.is_true,
                "detail": finding.detail,
                "figures": finding.figures,
            })
        });
        json!({ "facts": facts, "remarks": self.remarks, "findings": findings.collect::<Vec<_>>() })
    }

    /// The number of sentences, for the last line.
    pub(super) fn sum(&self) -> String {
        format!("{} of {} sentences are true", self.findings.len() - self.failures(), self.findings.len())
    }
}

/// Bytes as MiB.
pub(super) fn mib(bytes: u64) -> String {
    format!("{}.{:02} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 100) >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_that_is_not_true_is_counted() {
        let mut report = Report::default();
        report.check("it boots".into(), true, "30 s".into(), json!({ "seconds": 30 }));
        report.check("it is equal".into(), false, "/usr differs".into(), Value::Null);
        assert_eq!((report.failures(), report.sum()), (1, "1 of 2 sentences are true".to_owned()));
        assert_eq!(report.to_json(Value::Null)["findings"][0]["figures"]["seconds"], 30);
    }

    #[test]
    fn bytes_are_shown_with_hundredths() {
        assert_eq!(
            (mib(0), mib(3 << 19), mib((1 << 20) - 1)),
            ("0.00 MiB".into(), "1.50 MiB".into(), "0.99 MiB".into())
        );
    }
}
