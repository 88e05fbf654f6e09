//! Columns of text, and numbers as people read them.

/// Lines of cells, aligned: the first column to the left, the others to the right.
#[derive(Debug, Default)]
pub struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// Adds a line.
    pub fn line<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.lines.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines, each with a line break.
    pub fn text(&self) -> String {
        let columns = self.lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.lines.iter().filter_map(|cells| cells.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for cells in &self.lines {
            for (column, (cell, &width)) in cells.iter().zip(&widths).enumerate() {
                match column {
                    0 => text.push_str(&format!("{cell:<width$}")),
                    _ => text.push_str(&format!("  {cell:>width$}")),
                }
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        }
        text
    }
}

/// Bytes with a binary unit.
pub fn bytes(n: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut scaled = n as f64;
    let mut unit = "B";
    for next in units {
        if scaled < 1024.0 {
            break;
        }
        scaled /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{n} B") } else { format!("{scaled:.1} {unit}") }
}

/// Seconds as milliseconds.
pub fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::default();
        table.line(["PE", "tokens"]);
        table.line(["0", "5"]);
        table.line(["sum", ""]);
        assert_eq!(table.text(), "PE   tokens\n0         5\nsum\n");
    }

    #[test]
    fn byte_counts() {
        for (n, text) in [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }
}
