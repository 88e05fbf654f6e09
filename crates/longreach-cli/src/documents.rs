//! `--documents` and `--kv-documents`: where packed documents lie.

use crate::error::Error;
use std::ops::Range;

/// For each batch row (or once, for all of them) the documents in order; gaps are padding.
pub type Documents = Vec<Vec<Range<usize>>>;

/// The documents of LIST for sequences of `len` tokens and `batch` rows.
///
/// Fails when LIST is neither cu_seqlens nor ranges, leaves the sequence, or has another number of rows.
pub fn parse(argument: &str, list: &str, len: usize, batch: usize) -> Result<Documents, Error> {
    let bad = |why: String| Error::bad(argument, list, why);
    let rows: Documents = list
        .split(';')
        .map(|row| parse_row(row, len))
        .collect::<Result<_, _>>()
        .map_err(bad)?;
    if rows.len() != 1 && rows.len() != batch {
        return Err(bad(format!(
            "has {} rows between `;`, expected 1 or {batch}, one a batch row",
            rows.len()
        )));
    }
    Ok(rows)
}

fn parse_row(row: &str, len: usize) -> Result<Vec<Range<usize>>, String> {
    let number = |text: &str| {
        text.trim().parse::<usize>().map_err(|_| {
            format!(
                "'{}' is not a position; expected cu_seqlens like 0,300,{len} or ranges like 0..300,304..{len}",
                text.trim()
            )
        })
    };
    if row.contains("..") {
        let mut end = 0;
        return row
            .split(',')
            .map(|range| {
                let (start, stop) = range.split_once("..").unwrap_or((range, ""));
                let (start, stop) = (number(start)?, number(stop)?);
                if start < end || stop < start {
                    return Err(format!(
                        "range {start}..{stop} begins before {end} or ends before it begins"
                    ));
                }
                if stop > len {
                    return Err(format!(
                        "range {start}..{stop} ends beyond the {len} tokens"
                    ));
                }
                end = stop;
                Ok(start..stop)
            })
            .collect();
    }
    let bounds = row.split(',').map(number).collect::<Result<Vec<_>, _>>()?;
    let (first, last) = (bounds[0], bounds[bounds.len() - 1]);
    if first != 0 {
        return Err(format!("cu_seqlens start at {first}, expected 0"));
    }
    if let Some(pair) = bounds.windows(2).find(|pair| pair[1] < pair[0]) {
        return Err(format!(
            "cu_seqlens decrease from {} to {}",
            pair[0], pair[1]
        ));
    }
    if last != len {
        return Err(format!(
            "cu_seqlens end at {last}, expected {len}, the length (ranges like 0..{last} leave the rest as padding)"
        ));
    }
    Ok(bounds.windows(2).map(|pair| pair[0]..pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cu_seqlens_and_ranges() {
        let rows = |list: &str, len, batch| -> Vec<Vec<(usize, usize)>> {
            let rows = parse("--documents", list, len, batch).unwrap();
            let bounds = |row: &Vec<Range<usize>>| row.iter().map(|r| (r.start, r.end)).collect();
            rows.iter().map(bounds).collect()
        };
        assert_eq!(rows("0,3,3,8", 8, 1), [vec![(0, 3), (3, 3), (3, 8)]]);
        assert_eq!(
            rows("0..3, 4..8;1..2", 8, 2),
            [vec![(0, 3), (4, 8)], vec![(1, 2)]]
        );
        assert_eq!(rows("0,8", 8, 5), [vec![(0, 8)]]);
        assert_eq!(rows("0", 0, 1), [vec![]]);
        assert_eq!(rows("0,0,0", 0, 1), [vec![(0, 0), (0, 0)]]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (list, part) in [
            ("", "'' is not a position"),
            ("1,8", "start at 1, expected 0"),
            ("0,5,3,8", "decrease from 5 to 3"),
            ("0,5", "end at 5, expected 8"),
            ("0,9", "end at 9, expected 8"),
            ("0,-1,8", "'-1' is not a position"),
            ("0,x,8", "'x' is not a position"),
            ("0,,8", "'' is not a position"),
            ("0,99999999999999999999999", "is not a position"),
            ("0..3,2..8", "begins before 3"),
            ("3..2", "ends before it begins"),
            ("0..9", "ends beyond the 8 tokens"),
            ("0..3,5", "'' is not a position"),
            ("0..3..5", "'3..5' is not a position"),
            ("0,8;0,8;0,8", "has 3 rows between `;`, expected 1 or 2"),
            ("0,8;", "'' is not a position"),
        ] {
            let error = parse("--documents", list, 8, 2).unwrap_err().line();
            assert!(error.contains(part), "{list}: {error}");
            assert!(error.starts_with("error: --documents "), "{error}");
        }
    }
}
