//! A mask against given lengths.

use crate::band::Band;
use std::ops::Range;

/// What every query sees, as disjoint bands in global positions.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Bands {
    /// Queries.
    pub q_len: usize,
    /// Keys.
    pub kv_len: usize,
    /// The bands of each batch row, or once those of all of them.
    pub rows: Vec<Vec<Band>>,
}

impl Bands {
    /// The bands of batch row `batch_row`.
    pub fn row(&self, batch_row: usize) -> &[Band] {
        if self.rows.len() == 1 { &self.rows[0] } else { &self.rows[batch_row] }
    }

    /// The visible (query, key) pairs of `batch` batch rows.
    pub fn visible_pairs(&self, batch: usize) -> u128 {
        let pairs =
            |bands: &Vec<Band>| -> u128 { bands.iter().map(|band| band.pairs(self.kv_len as i64)).sum() };
        match self.rows.as_slice() {
            [all] => pairs(all) * batch as u128,
            rows => rows.iter().map(pairs).sum(),
        }
    }

    /// The keys that query `query` of batch row `batch_row` sees: ascending, disjoint, none empty.
    pub fn visible(&self, batch_row: usize, query: usize) -> Vec<Range<usize>> {
        let position = query as i64;
        let mut keys: Vec<Range<usize>> = self
            .row(batch_row)
            .iter()
            .filter(|band| band.q.contains(&position))
            .map(|band| band.visible(position, self.kv_len as i64))
            .filter(|keys| !keys.is_empty())
            .map(|keys| keys.start as usize..keys.end as usize)
            .collect();
        keys.sort_by_key(|keys| keys.start);
        keys
    }

    /// The batch rows of `0..batch` that have the same bands, as (one of them, all of them as ranges),
    /// in order of their first.
    pub(crate) fn classes(&self, batch: usize) -> Vec<(usize, Vec<Range<usize>>)> {
        if batch == 0 {
            return Vec::new();
        }
        if self.rows.len() == 1 {
            return vec![(0, std::iter::once(0..batch).collect())];
        }
        let mut classes: Vec<(usize, Vec<Range<usize>>)> = Vec::new();
        for row in 0..batch {
            match classes.iter_mut().find(|(first, _)| self.rows[*first] == self.rows[row]) {
                Some((_, ranges)) => match ranges.last_mut() {
                    Some(last) if last.end == row => last.end = row + 1,
                    _ => ranges.push(row..row + 1),
                },
                None => classes.push((row, std::iter::once(row..row + 1).collect())),
            }
        }
        classes
    }
}
