//! `--documents` and `--kv-documents`: where packed documents lie, with `;` between batch rows.

use crate::error::Error;
use longreach_plan::Documents;

/// The documents of LIST for sequences of `len` tokens: once for all of the `batch` rows, or for each.
///
/// Fails when LIST is neither cu_seqlens nor ranges, leaves the sequence, or has another number of rows.
pub fn parse(argument: &str, list: &str, len: usize, batch: usize) -> Result<Vec<Documents>, Error> {
    let bad = |why: String| Error::bad(argument, list, why);
    let row = |row: &str| {
        let documents = Documents::parse(row)?;
        documents.resolve("documents", len as u64)?;
        Ok(documents)
    };
    let rows = list.split(';').map(row).collect::<Result<Vec<_>, longreach_plan::Error>>();
    let rows = rows.map_err(|error| bad(error.to_string()))?;
    if rows.len() != 1 && rows.len() != batch {
        return Err(bad(format!(
            "has {} rows between `;`, expected 1 or {batch}, one a batch row",
            rows.len()
        )));
    }
    Ok(rows)
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
            ("", "--documents '': "),
            ("0,5", "ends at 5, expected 8"),
            ("0,-1,8", "'0,-1,8' is not documents"),
            ("0..9", "ends beyond the 8 tokens"),
            ("0,8;0,8;0,8", "has 3 rows between `;`, expected 1 or 2"),
            ("0,8;", "'' is not documents"),
        ] {
            let error = parse("--documents", list, 8, 2).unwrap_err().to_string();
            assert!(error.contains(part), "{list}: {error}");
            assert!(error.starts_with("--documents "), "{error}");
        }
    }
}
