//! Packed documents: which stretches of a sequence belong together.

use crate::error::Error;
use std::fmt;
use std::ops::Range;

const EXPECTED: &str = "cu_seqlens like 0,300,300,1024 or ranges like 0..300,304..900";

/// The documents of one sequence, in order. They may be empty; what lies between them is padding.
///
/// Whether they fit a sequence is checked when a mask is resolved against its lengths.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Documents(Form);

#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    CuSeqlens(Vec<u64>),
    Ranges(Vec<Range<u64>>),
}

impl Documents {
    /// Documents by their bounds: they start at 0, never decrease, and end at the length.
    pub fn cu_seqlens(bounds: impl Into<Vec<u64>>) -> Self {
        Self(Form::CuSeqlens(bounds.into()))
    }

    /// Documents as ranges: ascending, disjoint, inside the length; gaps are padding.
    pub fn ranges(ranges: impl Into<Vec<Range<u64>>>) -> Self {
        Self(Form::Ranges(ranges.into()))
    }

    /// Reads `0,300,300,1024` or `0..300,304..900`.
    ///
    /// Fails where the text is neither.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = || Error::Parse { what: "documents", given: text.to_owned(), expected: EXPECTED };
        let number = |part: &str| part.trim().parse::<u64>().map_err(|_| bad());
        if text.contains("..") {
            let range = |part: &str| {
                let (start, end) = part.split_once("..").ok_or_else(bad)?;
                Ok(number(start)?..number(end)?)
            };
            return Ok(Self::ranges(text.split(',').map(range).collect::<Result<Vec<_>, Error>>()?));
        }
        Ok(Self::cu_seqlens(text.split(',').map(number).collect::<Result<Vec<_>, _>>()?))
    }

    /// Number of documents, empty ones included.
    pub fn count(&self) -> usize {
        match &self.0 {
            Form::CuSeqlens(bounds) => bounds.len().saturating_sub(1),
            Form::Ranges(ranges) => ranges.len(),
        }
    }

    /// The documents of a sequence of `len` tokens; `what` names them in errors.
    ///
    /// Fails where they do not fit it.
    pub fn resolve(&self, what: &'static str, len: u64) -> Result<Vec<Range<u64>>, Error> {
        let bad = |why| Err(Error::Documents { what, given: self.short(), why });
        match &self.0 {
            Form::CuSeqlens(bounds) => {
                let (Some(&first), Some(&last)) = (bounds.first(), bounds.last()) else {
                    return bad("has no bounds, expected at least a 0".to_owned());
                };
                if first != 0 {
                    return bad(format!("starts at {first}, expected 0"));
                }
                if let Some(pair) = bounds.windows(2).find(|pair| pair[1] < pair[0]) {
                    let (from, to) = (pair[0], pair[1]);
                    return bad(format!("decreases from {from} to {to}, bounds never decrease"));
                }
                if last != len {
                    return bad(format!(
                        "ends at {last}, expected {len}, the length \
                         (ranges like 0..{last} leave the rest as padding)"
                    ));
                }
                Ok(bounds.windows(2).map(|pair| pair[0]..pair[1]).collect())
            }
            Form::Ranges(ranges) => {
                let mut end = 0;
                for range in ranges {
                    if range.end < range.start {
                        return bad(format!("{}..{} ends before it begins", range.start, range.end));
                    }
                    if range.start < end {
                        return bad(format!(
                            "{}..{} begins before {end}, where the one before it ends: \
                             ranges are ascending and disjoint",
                            range.start, range.end
                        ));
                    }
                    if range.end > len {
                        let (start, end) = (range.start, range.end);
                        return bad(format!("{start}..{end} ends beyond the {len} tokens"));
                    }
                    end = range.end;
                }
                Ok(ranges.clone())
            }
        }
    }

    /// The documents as text, shortened for a message.
    fn short(&self) -> String {
        const LONGEST: usize = 80;
        let mut text = self.to_string();
        if text.len() > LONGEST {
            text.truncate(LONGEST);
            text.push_str("...");
        }
        text
    }
}

impl std::str::FromStr for Documents {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl From<Vec<Range<usize>>> for Documents {
    fn from(ranges: Vec<Range<usize>>) -> Self {
        let wide = |range: Range<usize>| range.start as u64..range.end as u64;
        Self::ranges(ranges.into_iter().map(wide).collect::<Vec<_>>())
    }
}

/// The form that [`Documents::parse`] reads.
impl fmt::Display for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let comma = |i: usize| if i == 0 { "" } else { "," };
        match &self.0 {
            Form::CuSeqlens(bounds) => {
                bounds.iter().enumerate().try_for_each(|(i, n)| write!(f, "{}{n}", comma(i)))
            }
            Form::Ranges(ranges) => ranges
                .iter()
                .enumerate()
                .try_for_each(|(i, r)| write!(f, "{}{}..{}", comma(i), r.start, r.end)),
        }
    }
}

/// The documents and the padding between them, in order, none empty; they cover `0..len`.
pub(crate) fn segments(documents: &[Range<u64>], len: u64) -> Vec<Range<u64>> {
    let mut segments = Vec::with_capacity(documents.len() + 1);
    let mut end = 0;
    for range in documents.iter().filter(|range| !range.is_empty()) {
        if end < range.start {
            segments.push(end..range.start);
        }
        segments.push(range.clone());
        end = range.end;
    }
    if end < len {
        segments.push(end..len);
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str, len: u64) -> Result<Vec<Range<u64>>, Error> {
        Documents::parse(text)?.resolve("documents", len)
    }

    #[test]
    fn both_forms() {
        assert_eq!(resolve("0,3,3,8", 8).unwrap(), [0..3, 3..3, 3..8]);
        assert_eq!(resolve("0..3, 4..8", 9).unwrap(), [0..3, 4..8]);
        assert_eq!(resolve("0", 0).unwrap(), []);
        assert_eq!(Documents::parse("0..3, 4..8").unwrap().to_string(), "0..3,4..8");
        assert_eq!(segments(&[2..3, 3..3, 5..6], 8), [0..2, 2..3, 3..5, 5..6, 6..8]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (text, part) in [
            ("", "'' is not documents"),
            ("1,8", "starts at 1, expected 0"),
            ("0,5,3,8", "decreases from 5 to 3"),
            ("0,5", "ends at 5, expected 8"),
            ("0,9", "ends at 9, expected 8"),
            ("0,-1,8", "is not documents"),
            ("0,x,8", "is not documents"),
            ("0..3,2..8", "begins before 3"),
            ("3..2", "ends before it begins"),
            ("0..9", "ends beyond the 8 tokens"),
            ("0..3,5", "is not documents"),
        ] {
            let error = resolve(text, 8).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
