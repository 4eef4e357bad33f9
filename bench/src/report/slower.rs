//! Comparisons that tarpon does not win, cell by cell.

use std::fmt::Write;

use super::section::Part;
use crate::runs::{Runs, figures};
use crate::stats::{median, spread};

/// A comparison: the field of a figure, among lines that agree in all these fields but the last, which is the system.
pub(crate) struct Contest<const N: usize> {
    pub(crate) fields: [&'static str; N],
    pub(crate) figure: &'static str,
    /// Whether the second system competes with the first, which is tarpon.
    pub(crate) competes: fn(&str, &str) -> bool,
}

impl<const N: usize> Contest<N> {
    /// The number of cells in which tarpon was slower, and a table of them.
    pub(crate) fn parts(&self, runs: &Runs) -> Vec<Part> {
        let (all, rows) = self.rows(runs);
        if all == 0 {
            return Vec::new();
        }
        let slower = rows.lines().count();
        if slower == 0 {
            let words = format!("In none of {all} comparisons another system was faster than tarpon.");
            return vec![Part::Text(words)];
        }
        let fields = self.fields[..N - 1].join(" | ");
        let mut table =
            format!("| {fields} | tarpon | s | min to max | faster is | s | min to max | times as fast |\n");
        table.push_str(&"|---".repeat(N));
        table.push_str("|--:|--:|---|--:|--:|--:|\n");
        let words = format!("Where tarpon is not the fastest: in {slower} of {all} comparisons.");
        vec![Part::Text(words), Part::Table(table + &rows)]
    }

    /// The number of comparisons, and a row for each that tarpon does not win.
    fn rows(&self, runs: &Runs) -> (usize, String) {
        let cells = runs.cells(self.fields);
        let (mut all, mut rows) = (0, String::new());
        for (key, lines) in &cells {
            let (place, ours) = (&key[..N - 1], &key[N - 1]);
            for (_, others) in
                cells.iter().filter(|(other, _)| other[..N - 1] == *place && (self.competes)(ours, &other[N - 1]))
            {
                let [its, theirs] = [lines, others].map(|lines| figures(lines, self.figure));
                let (Some(its_median), Some(their_median)) = (median(&its), median(&theirs)) else { continue };
                all += 1;
                if their_median < its_median {
                    let other = others[0][self.fields[N - 1]].as_str().unwrap_or_default();
                    // Writing to a string cannot fail.
                    let _ = writeln!(
                        rows,
                        "| {} | {ours} | {its_median:.3} | {} | {other} | {their_median:.3} | {} | {:.2} |",
                        place.join(" | "),
                        range(&its),
                        range(&theirs),
                        its_median / their_median
                    );
                }
            }
        }
        (all, rows)
    }
}

fn range(values: &[f64]) -> String {
    spread(values).map_or_else(String::new, |(least, most)| format!("{least:.3} to {most:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEST: Contest<2> = Contest {
        fields: ["workload", "system"],
        figure: "ready",
        competes: |ours, theirs| ours == "tarpon" && theirs != "tarpon",
    };

    fn parts(lines: &str) -> Vec<String> {
        let parts = CONTEST.parts(&Runs::parse(lines).unwrap());
        let text = |part| match part {
            Part::Text(text) | Part::Table(text) => text,
            _ => String::new(),
        };
        parts.into_iter().map(text).collect()
    }

    #[test]
    fn a_cell_that_is_lost_is_a_row() {
        let found = parts(
            "{\"workload\":\"w\",\"system\":\"tarpon\",\"ready\":3.0}\n{\"workload\":\"w\",\"system\":\"a\",\"ready\":2.0}\n\
             {\"workload\":\"w\",\"system\":\"b\",\"ready\":4.0}\n{\"workload\":\"w\",\"system\":\"c\",\"error\":\"no\"}\n",
        );
        assert_eq!(found[0], "Where tarpon is not the fastest: in 1 of 2 comparisons.");
        assert!(found[1].contains("| w | tarpon | 3.000 | 3.000 to 3.000 | a | 2.000 | 2.000 to 2.000 | 1.50 |"));
    }

    #[test]
    fn without_a_lost_cell_a_sentence_is_shown_and_without_a_rival_nothing() {
        let ours = "{\"workload\":\"w\",\"system\":\"tarpon\",\"ready\":3.0}\n";
        assert!(parts(ours).is_empty());
        let found = parts(&format!("{ours}{{\"workload\":\"w\",\"system\":\"a\",\"ready\":5.0}}\n"));
        assert_eq!(found, ["In none of 1 comparisons another system was faster than tarpon."]);
    }
}
