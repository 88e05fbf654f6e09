//! Layouts: which processing element holds which tokens.

use crate::documents::segments;
use crate::error::{Error, check_len};
use std::fmt;
use std::ops::Range;

/// Who holds what. Any length goes with any number of PEs; shards may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Layout {
    /// Each document is cut into 2P chunks whose sizes differ by one token at most; PE r holds the chunks r and
    /// 2P-1-r. Balances causal masks. Where batch rows have different documents, the sequence counts as one.
    Zigzag,
    /// PE r holds the r-th of P stretches, whose sizes differ by one token at most, longer ones first.
    Contiguous,
    /// Blocks of `block` tokens are dealt out in turn.
    Striped {
        /// Tokens of a block.
        block: usize,
    },
    /// The global positions that each PE holds, as ranges, in the PE's own order.
    Ranges(Vec<Vec<Range<u64>>>),
}

impl std::str::FromStr for Layout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = || Error::Parse {
            what: "a layout",
            given: text.to_owned(),
            expected: "zigzag, contiguous, striped or striped:BLOCK with BLOCK at least 1",
        };
        match text.split_once(':') {
            None if text == "zigzag" => Ok(Layout::Zigzag),
            None if text == "contiguous" => Ok(Layout::Contiguous),
            None if text == "striped" => Ok(Layout::Striped { block: 1 }),
            Some(("striped", block)) => match block.parse() {
                Ok(block) if block > 0 => Ok(Layout::Striped { block }),
                _ => Err(bad()),
            },
            _ => Err(bad()),
        }
    }
}

/// The form that is parsed; explicit ranges as they are.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Zigzag => f.write_str("zigzag"),
            Layout::Contiguous => f.write_str("contiguous"),
            Layout::Striped { block: 1 } => f.write_str("striped"),
            Layout::Striped { block } => write!(f, "striped:{block}"),
            Layout::Ranges(ranges) => write!(f, "ranges:{ranges:?}"),
        }
    }
}

/// Positions `start`, `start + step`, ... of which there are `len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Run {
    /// First position.
    pub start: usize,
    /// Number of positions.
    pub len: usize,
    /// From one position to the next, at least 1.
    pub step: usize,
}

impl Run {
    /// The positions.
    pub fn positions(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let Run { start, len, step } = *self;
        (0..len).map(move |i| start + i * step)
    }

    /// The part `rows` of the run, counted from its beginning.
    pub(crate) fn part(&self, rows: Range<usize>) -> Self {
        Run { start: self.start + rows.start * self.step, len: rows.len(), step: self.step }
    }
}

/// A sequence shared out: each token belongs to exactly one PE.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shards {
    len: usize,
    /// Runs of each PE in its own order, none empty.
    runs: Vec<Vec<Run>>,
}

impl Layout {
    /// Shares `len` tokens out over `pes` PEs; `documents` (ascending, disjoint) may be empty for one document.
    pub fn shard(&self, len: usize, pes: usize, documents: &[Range<u64>]) -> Result<Shards, Error> {
        check_len("length", len as u64)?;
        if pes == 0 {
            return Err(Error::Count { what: "PEs", given: 0, expected: "at least 1" });
        }
        let mut runs = vec![Vec::new(); pes];
        match self {
            Layout::Zigzag => zigzag(&mut runs, &segments(documents, len as u64)),
            Layout::Contiguous => {
                let (size, longer) = (len / pes, len % pes);
                let mut start = 0;
                for (pe, runs) in runs.iter_mut().enumerate() {
                    let size = size + usize::from(pe < longer);
                    push(runs, Run { start, len: size, step: 1 });
                    start += size;
                }
            }
            Layout::Striped { block: 0 } => {
                return Err(Error::Count { what: "the stripe's block", given: 0, expected: "at least 1" });
            }
            Layout::Striped { block: 1 } => {
                for (pe, runs) in runs.iter_mut().enumerate() {
                    let run = Run { start: pe, len: len.saturating_sub(pe).div_ceil(pes), step: pes };
                    push(runs, if run.len == 1 { Run { step: 1, ..run } } else { run });
                }
            }
            Layout::Striped { block } => {
                for (i, start) in (0..len).step_by(*block).enumerate() {
                    push(&mut runs[i % pes], Run { start, len: (*block).min(len - start), step: 1 });
                }
            }
            Layout::Ranges(ranges) => explicit(&mut runs, ranges, len)?,
        }
        Ok(Shards { len, runs })
    }
}

fn push(runs: &mut Vec<Run>, run: Run) {
    if run.len == 0 {
        return;
    }
    match runs.last_mut() {
        Some(last) if last.step == 1 && run.step == 1 && last.start + last.len == run.start => {
            last.len += run.len
        }
        _ => runs.push(run),
    }
}

fn zigzag(runs: &mut [Vec<Run>], segments: &[Range<u64>]) {
    let pes = runs.len();
    let chunks = 2 * pes;
    // Odd tokens are handed out in turns of one a PE, to the earlier and the later chunk of neighbours alternately: so
    // shards stay even, and so do their halves. The turn goes on from document to document, for many short ones.
    let mut turn = 0;
    for segment in segments {
        let len = (segment.end - segment.start) as usize;
        let (size, odd) = (len / chunks, len % chunks);
        let mut start = segment.start as usize;
        for chunk in 0..chunks {
            let pe = chunk.min(chunks - 1 - chunk);
            // In the first turn the earlier chunks of even PEs and the later ones of odd PEs.
            let place = if (chunk < pes) == pe.is_multiple_of(2) { pe } else { pes + pe };
            let size = size + usize::from((place + chunks - turn) % chunks < odd);
            push(&mut runs[pe], Run { start, len: size, step: 1 });
            start += size;
        }
        turn = (turn + odd) % chunks;
    }
}

fn explicit(runs: &mut [Vec<Run>], ranges: &[Vec<Range<u64>>], len: usize) -> Result<(), Error> {
    let bad = |why| Err(Error::Ranges { why });
    if ranges.len() != runs.len() {
        return bad(format!("{} lists for {} PEs, expected one a PE", ranges.len(), runs.len()));
    }
    let mut all: Vec<(Range<u64>, usize)> = Vec::new();
    for (pe, list) in ranges.iter().enumerate() {
        all.extend(list.iter().map(|range| (range.clone(), pe)));
    }
    if let Some((range, pe)) = all.iter().find(|(range, _)| range.end < range.start) {
        return bad(format!("{}..{} of PE {pe} ends before it begins", range.start, range.end));
    }
    all.retain(|(range, _)| !range.is_empty());
    all.sort_by_key(|(range, _)| range.start);
    let mut end = 0;
    for (range, pe) in &all {
        if range.start != end {
            let what = if range.start < end { "held twice" } else { "held by nobody" };
            let token = range.start.min(end);
            return bad(format!("token {token} is {what} (see {}..{} of PE {pe})", range.start, range.end));
        }
        end = range.end;
    }
    if end != len as u64 {
        return bad(format!("they end at {end}, expected {len}, the length"));
    }
    for (runs, list) in runs.iter_mut().zip(ranges) {
        for range in list {
            push(runs, Run { start: range.start as usize, len: (range.end - range.start) as usize, step: 1 });
        }
    }
    Ok(())
}

impl Shards {
    /// Tokens of all PEs.
    pub fn total(&self) -> usize {
        self.len
    }

    /// Number of PEs.
    pub fn pes(&self) -> usize {
        self.runs.len()
    }

    /// Tokens of PE `pe`.
    pub fn len(&self, pe: usize) -> usize {
        self.runs[pe].iter().map(|run| run.len).sum()
    }

    /// The runs of positions that PE `pe` holds, in its own order.
    pub fn runs(&self, pe: usize) -> &[Run] {
        &self.runs[pe]
    }

    /// The global position of each token of PE `pe`, in its own order.
    pub fn positions(&self, pe: usize) -> impl Iterator<Item = usize> + Clone + '_ {
        self.runs[pe].iter().flat_map(Run::positions)
    }

    /// The position *within its document* of each token of PE `pe`, in its own order: what rotary embeddings take.
    /// Tokens outside the documents count from the end of the one before.
    pub fn positions_in_documents<'a>(
        &'a self,
        pe: usize,
        documents: &'a [Range<u64>],
    ) -> impl Iterator<Item = usize> + 'a {
        let segments = segments(documents, self.len as u64);
        self.positions(pe).map(move |position| {
            let next = segments.partition_point(|segment| segment.start <= position as u64);
            position - next.checked_sub(1).map_or(0, |i| segments[i].start as usize)
        })
    }

    /// The PE that holds `token`, and the token's place there.
    pub fn owner(&self, token: usize) -> Option<(usize, usize)> {
        (0..self.pes()).find_map(|pe| {
            let mut place = 0;
            for run in &self.runs[pe] {
                if let Some(offset) = token.checked_sub(run.start)
                    && offset.is_multiple_of(run.step)
                    && offset / run.step < run.len
                {
                    return Some((pe, place + offset / run.step));
                }
                place += run.len;
            }
            None
        })
    }
}
