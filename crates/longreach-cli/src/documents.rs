//! `--documents` and `--kv-documents`: where packed documents lie, with `;` between batch rows.

use crate::error::Error;
use longreach_plan::{self as plan, Documents};

/// The documents of LIST for sequences of `len` tokens: once for all of the `batch` rows, or for each.
///
/// Fails when LIST is neither cu_seqlens nor ranges, leaves the sequence, or has another number of rows.
pub fn parse(argument: &str, list: &str, len: usize, batch: usize) -> Result<Vec<Documents>, Error> {
    let bad = |why: String| Error::bad(argument, list, why);
    let given = list.split(';').count();
    let row = |(number, row): (usize, &str)| {
        let documents = Documents::parse(row)
            .and_then(|documents| documents.resolve("documents", len as u64).map(|_| documents));
        documents.map_err(|error| {
            let place = if given > 1 { format!("batch row {number}: ") } else { String::new() };
            bad(format!("{place}{}", reason(error, row, len)))
        })
    };
    let rows = list.split(';').enumerate().map(row).collect::<Result<Vec<_>, _>>()?;
    if rows.len() != 1 && rows.len() != batch {
        return Err(bad(format!(
            "has {} rows between `;`, expected 1 or {batch}, one a batch row",
            rows.len()
        )));
    }
    Ok(rows)
}

/// What is wrong with documents, without the documents themselves.
fn reason(error: plan::Error, row: &str, len: usize) -> String {
    match error {
        plan::Error::Parse { expected, .. } => {
            format!("expected {expected}, with numbers up to {len}, the length")
        }
        plan::Error::Documents { why, .. } => why.strip_prefix(row).unwrap_or(&why).trim_start().to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_between_semicolons() {
        let counts = |list: &str, len, batch| -> Vec<usize> {
            parse("--documents", list, len, batch).unwrap().iter().map(Documents::count).collect()
        };
        assert_eq!(counts("0,3,3,8", 8, 1), [3]);
        assert_eq!(counts("0..3, 4..8;1..2", 8, 2), [2, 1]);
        assert_eq!(counts("0,8", 8, 5), [1]);
        assert_eq!(counts("0", 0, 1), [0]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (list, part) in [
            ("", "--documents '': expected cu_seqlens"),
            ("0,5", "--documents 0,5: ends at 5, expected 8"),
            ("0,-1,8", "--documents 0,-1,8: expected cu_seqlens"),
            ("0,99999999999999999999", "with numbers up to 8, the length"),
            ("0..9", "ends beyond the 8 tokens"),
            ("0,8;0,8;0,8", "has 3 rows between `;`, expected 1 or 2"),
            ("0,8;", "batch row 1: expected cu_seqlens"),
            ("0,8;0,7", "batch row 1: ends at 7, expected 8"),
        ] {
            let error = parse("--documents", list, 8, 2).unwrap_err().to_string();
            assert!(error.contains(part), "{list}: {error}");
            assert!(error.starts_with("--documents "), "{error}");
        }
    }
}
