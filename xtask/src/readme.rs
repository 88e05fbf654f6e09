//! README.md holds an example and a table that have their source elsewhere; here they are kept the same.

use std::fs;

const README: &str = "README.md";
const EXAMPLE: &str = "crates/longreach/examples/attend.rs";

/// Fails when the README's example or support table differ from their source.
pub fn check() -> Result<(), String> {
    let readme = read(README)?;
    if refreshed(&readme)? == readme {
        return Ok(());
    }
    Err(format!(
        "{README} is not up to date with {EXAMPLE} and the support table: run `cargo xtask readme --write`"
    ))
}

/// Brings the README up to date.
pub fn write() -> Result<(), String> {
    let fresh = refreshed(&read(README)?)?;
    fs::write(README, fresh).map_err(|error| format!("{README}: {error}"))
}

fn refreshed(readme: &str) -> Result<String, String> {
    let example = read(EXAMPLE)?;
    let readme = replace(readme, "```rust\n", "```\n", &example)?;
    replace(&readme, "## What is supported\n\n", "\nThe program prints", &longreach::support_table())
}

/// `text` with what stands between `before` and the next `after` replaced by `by`.
fn replace(text: &str, before: &str, after: &str, by: &str) -> Result<String, String> {
    let missing = |what: &str| format!("{README} has no {what:?}");
    let start = text.find(before).ok_or_else(|| missing(before))? + before.len();
    let end = start + text[start..].find(after).ok_or_else(|| missing(after))?;
    Ok(format!("{}{by}{}", &text[..start], &text[end..]))
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}; run this in the repository's root"))
}
