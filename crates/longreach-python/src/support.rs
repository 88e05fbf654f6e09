//! What is supported, from the engine's table.

use pyo3::prelude::*;

/// What of `feature` works and what to use instead of the rest; none where the table does not speak of it.
#[pyfunction]
pub fn supports(feature: &str) -> Option<(bool, &'static str, &'static str)> {
    longreach::supports(feature).map(|row| (row.supported(), row.works, row.instead))
}

/// The support table as Markdown.
#[pyfunction]
pub fn support_table() -> String {
    longreach::support_table()
}

/// This module's version.
#[pyfunction]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
