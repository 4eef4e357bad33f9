//! Aligned columns. Numbers are right-aligned, words left-aligned, and the last column is never padded.

/// Rows of text in columns.
#[derive(Debug)]
pub(crate) struct Table {
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headers. A header that starts with `>` right-aligns its column; a table with only empty headers
    /// prints none.
    pub(crate) fn new(headers: &[&str]) -> Self {
        let right = headers.iter().map(|header| header.starts_with('>')).collect();
        let names: Vec<String> = headers.iter().map(|header| header.trim_start_matches('>').to_owned()).collect();
        let rows = if names.iter().all(String::is_empty) { vec![] } else { vec![names] };
        Self { right, rows }
    }

    /// Adds a row, with as many cells as there are headers.
    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.right.len(), "a row must fit the headers");
        self.rows.push(cells.into());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.right.len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let padding = " ".repeat(widths[column] - cell.chars().count());
                let (before, after) = if self.right[column] { (padding.as_str(), "") } else { ("", padding.as_str()) };
                let gap = if column == 0 { "" } else { "  " };
                line.extend([gap, before, cell, after]);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["IMAGE", ">SIZE", "MODE"]);
        table.row(["alpine:3".into(), "3.1 MiB".into(), "native".into()]);
        table.row(["gr\u{fc}n".into(), "12 B".into(), "fuse".into()]);
        assert_eq!(
            table.to_string(),
            "IMAGE        SIZE  MODE\n\
             alpine:3  3.1 MiB  native\n\
             gr\u{fc}n         12 B  fuse\n"
        );
    }

    #[test]
    fn a_table_without_headers_prints_rows_only() {
        let mut table = Table::new(&["", ">"]);
        table.row(["a".into(), "1".into()]);
        assert_eq!(table.to_string(), "a  1\n");
    }
}
