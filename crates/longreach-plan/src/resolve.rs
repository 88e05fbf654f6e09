//! From a mask to bands.

use crate::band::{Band, Edge};
use crate::bands::Bands;
use crate::documents::Documents;
use crate::error::{Error, check_len};
use crate::mask::{Kind, Mask};
use crate::overlap;
use std::ops::Range;

/// Documents of the queries and of the keys, for every batch row at once or for each.
pub(crate) type Pairs = Vec<(Vec<Range<u64>>, Vec<Range<u64>>)>;

impl Mask {
    /// The bands of this mask for `batch` rows of `q_len` queries and `kv_len` keys: disjoint, each on rows
    /// that see a key, with every edge inside the right document.
    ///
    /// Fails where documents or bands do not fit the lengths or each other.
    pub fn resolve(&self, batch: usize, q_len: usize, kv_len: usize) -> Result<Bands, Error> {
        Ok(self.resolve_with_documents(batch, q_len, kv_len)?.0)
    }

    /// As [`Mask::resolve`], with the documents beside: none where the mask has none.
    pub(crate) fn resolve_with_documents(
        &self,
        batch: usize,
        q_len: usize,
        kv_len: usize,
    ) -> Result<(Bands, Pairs), Error> {
        check_len("q_len", q_len as u64)?;
        check_len("kv_len", kv_len as u64)?;
        self.check_combination()?;
        let pairs = self.pairs(batch, q_len, kv_len)?;
        let rows = match &self.kind {
            Kind::Bands(bands) => vec![user_bands(bands, q_len, kv_len)?],
            _ if pairs.is_empty() => vec![self.document(0..q_len as i64, 0..kv_len as i64)],
            _ => pairs.iter().map(|(q, kv)| self.row(q, kv)).collect(),
        };
        Ok((Bands { q_len, kv_len, rows: collapse(rows) }, collapse(pairs)))
    }

    fn check_combination(&self) -> Result<(), Error> {
        let (mask, instead) = match self.kind {
            Kind::Bands(_) => ("bands", "bands are the whole mask, cut them instead"),
            Kind::SinkWindow { .. } => ("sink_window", "its window is its second argument"),
            _ => return Ok(()),
        };
        let bands = mask == "bands";
        let other = match () {
            () if self.window.is_some() => "window",
            () if bands && !self.documents.is_empty() => "documents",
            () if bands && !self.kv_documents.is_empty() => "kv_documents",
            () => return Ok(()),
        };
        Err(Error::Combination { mask, other, instead })
    }

    fn pairs(&self, batch: usize, q_len: usize, kv_len: usize) -> Result<Pairs, Error> {
        if self.documents.is_empty() {
            return match self.kv_documents.is_empty() {
                true => Ok(Vec::new()),
                false => Err(Error::DocumentsMissing),
            };
        }
        let kv = match self.kv_documents.as_slice() {
            [] if q_len != kv_len => return Err(Error::KvDocumentsMissing { q_len, kv_len }),
            [] => &self.documents,
            given => given,
        };
        let resolve = |what, documents: &[Documents], len: usize| {
            if documents.len() != 1 && documents.len() != batch {
                return Err(Error::DocumentRows { what, given: documents.len(), batch });
            }
            let rows = documents.iter().map(|row| row.resolve(what, len as u64));
            rows.collect::<Result<Vec<_>, _>>()
        };
        let q = resolve("documents", &self.documents, q_len)?;
        let kv = resolve("kv_documents", kv, kv_len)?;
        (0..q.len().max(kv.len()))
            .map(|batch_row| {
                let q = q.get(batch_row).unwrap_or(&q[0]);
                let kv = kv.get(batch_row).unwrap_or(&kv[0]);
                if q.len() != kv.len() {
                    let (q, kv) = (q.len(), kv.len());
                    return Err(Error::DocumentPairs { batch_row, q, kv });
                }
                Ok((q.clone(), kv.clone()))
            })
            .collect()
    }

    fn row(&self, q: &[Range<u64>], kv: &[Range<u64>]) -> Vec<Band> {
        let signed = |range: &Range<u64>| range.start as i64..range.end as i64;
        q.iter().zip(kv).flat_map(|(q, kv)| self.document(signed(q), signed(kv))).collect()
    }

    /// The bands of one document, in order of their first row and key.
    fn document(&self, q: Range<i64>, kv: Range<i64>) -> Vec<Band> {
        // The diagonal key of query i is i + shift.
        let shift = kv.end - q.end;
        let band = |q: Range<i64>, lo, hi| Band { q, lo, hi };
        let (first, after) = (Edge::Fixed(kv.start), Edge::Diagonal(shift + 1));
        let span = |n: u64| n.min(crate::MAX_LEN) as i64;
        let shape = match self.kind {
            Kind::Causal => vec![band(q.clone(), first, after)],
            Kind::Full | Kind::Bands(_) => vec![band(q.clone(), first, Edge::Fixed(kv.end))],
            Kind::PrefixLm(prefix) => {
                let end = kv.start + span(prefix);
                let turn = (end - shift).clamp(q.start, q.end.max(q.start));
                vec![band(q.start..turn, first, Edge::Fixed(end)), band(turn..q.end, first, after)]
            }
            Kind::SinkWindow { sink, left } => {
                let (end, from) = (kv.start + span(sink), shift - span(left));
                // Up to here the window reaches back into the sink, and the two are one interval.
                let turn = (end - from + 1).clamp(q.start, q.end.max(q.start));
                vec![
                    band(q.start..turn, first, after),
                    band(turn..q.end, first, Edge::Fixed(end)),
                    band(turn..q.end, Edge::Diagonal(from), after),
                ]
            }
        };
        let (left, right) = self.window.unwrap_or((None, None));
        let window = band(
            q.clone(),
            left.map_or(first, |left| Edge::Diagonal(shift - span(left))),
            right.map_or(Edge::Fixed(kv.end), |right| Edge::Diagonal(shift + 1 + span(right))),
        );
        let inside = band(q, first, Edge::Fixed(kv.end));
        let mut bands: Vec<Band> = shape
            .iter()
            .flat_map(|band| band.intersect(&window))
            .flat_map(|band| band.intersect(&inside))
            .collect();
        sort(&mut bands);
        bands
    }
}

fn sort(bands: &mut [Band]) {
    bands.sort_by_key(|band| (band.q.start, band.lo.at(band.q.start)));
}

/// One entry where all are equal.
fn collapse<T: PartialEq>(mut rows: Vec<T>) -> Vec<T> {
    if rows.windows(2).all(|pair| pair[0] == pair[1]) {
        rows.truncate(1);
    }
    rows
}

fn user_bands(bands: &[Band], q_len: usize, kv_len: usize) -> Result<Vec<Band>, Error> {
    let mut numbered = Vec::with_capacity(bands.len());
    for (number, band) in bands.iter().enumerate() {
        let Range { start, end } = band.q;
        if start < 0 || start > end || end > q_len as i64 {
            return Err(Error::BandRows { band: number, start, end, q_len });
        }
        let keys = Band { q: start..end, lo: Edge::Fixed(0), hi: Edge::Fixed(kv_len as i64) };
        numbered.extend(band.intersect(&keys).into_iter().map(|band| (number, band)));
    }
    numbered.sort_by_key(|(_, band)| (band.q.start, band.lo.at(band.q.start)));
    overlap::check(&numbered)?;
    Ok(numbered.into_iter().map(|(_, band)| band).collect())
}
