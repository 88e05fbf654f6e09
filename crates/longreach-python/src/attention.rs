//! What a call computes, as Python says it.

use crate::error::refused;
use longreach::{Band, Documents, Edge, Layout, Mask};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ops::Range;

/// `(first query, one past the last, lower edge, upper edge)`, an edge being `("fixed" or "diagonal", n)`.
type GivenBand = (i64, i64, (String, i64), (String, i64));
/// Documents of a batch row.
type Row = Vec<(u64, u64)>;
/// Documents of each batch row, or once those of all.
type Rows = Vec<Row>;

/// Mask, lengths and scale of a call, the same on all ranks.
#[pyclass(frozen, module = "longreach._longreach")]
pub struct Attention {
    pub inner: longreach::Attention,
    documents: Rows,
}

#[pymethods]
impl Attention {
    #[new]
    #[pyo3(signature = (q_len, kv_len, *, causal, window=None, documents=None, kv_documents=None, bands=None, cuts=None, scale=None))]
    #[allow(clippy::too_many_arguments)] // a call's description, by keyword
    fn new(
        q_len: usize,
        kv_len: usize,
        causal: bool,
        window: Option<(Option<u64>, Option<u64>)>,
        documents: Option<Rows>,
        kv_documents: Option<Rows>,
        bands: Option<Vec<GivenBand>>,
        cuts: Option<(Row, Row)>,
        scale: Option<f32>,
    ) -> PyResult<Self> {
        let mut mask = match bands {
            Some(bands) => Mask::bands(bands.into_iter().map(band).collect::<PyResult<_>>()?),
            None if causal => Mask::causal(),
            None => Mask::full(),
        };
        if let Some((left, right)) = window {
            mask = mask.window(left, right);
        }
        mask = mask.documents(rows(documents.as_deref().unwrap_or_default()));
        mask = mask.kv_documents(rows(kv_documents.as_deref().unwrap_or_default()));
        if let Some((queries, keys)) = cuts {
            mask = mask.cut(Documents::ranges(ranges(&queries)), Documents::ranges(ranges(&keys)));
        }
        let attention = longreach::Attention::cross(mask, q_len, kv_len);
        let inner = match scale {
            Some(scale) => attention.scale(scale),
            None => attention,
        };
        Ok(Self { inner, documents: documents.unwrap_or_default() })
    }

    /// The global position of each query that rank `pe` of `pes` holds, as bytes of int64.
    fn indices<'py>(
        &self,
        py: Python<'py>,
        pe: usize,
        pes: usize,
        batch: usize,
        layout: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let shards = self.shards(pes, batch, layout)?;
        let indices: Vec<i64> = shards.positions(pe).map(|position| position as i64).collect();
        Ok(PyBytes::new(py, bytemuck::cast_slice(&indices)))
    }

    /// The position of each of them within its document, for each batch row, as bytes of int64.
    fn positions<'py>(
        &self,
        py: Python<'py>,
        pe: usize,
        pes: usize,
        batch: usize,
        layout: &str,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let shards = self.shards(pes, batch, layout)?;
        let mut positions: Vec<i64> = Vec::new();
        for row in 0..batch {
            let documents: Vec<Range<u64>> = match &self.documents[..] {
                [] => Vec::new(),
                [all] => ranges(all),
                rows => ranges(&rows[row]),
            };
            let within = shards.positions_in_documents(pe, &documents);
            positions.extend(within.map(|position| position as i64));
        }
        Ok(PyBytes::new(py, bytemuck::cast_slice(&positions)))
    }

    /// How many queries each of `pes` ranks holds.
    fn lengths(&self, pes: usize, batch: usize, layout: &str) -> PyResult<Vec<usize>> {
        let shards = self.shards(pes, batch, layout)?;
        Ok((0..pes).map(|pe| shards.len(pe)).collect())
    }

    /// The scale of scores for queries of `head_dim` elements.
    fn scale(&self, head_dim: usize) -> f32 {
        self.inner.scale_for(head_dim)
    }

    /// The whole mask as bands, of each batch row.
    fn bands(&self, batch: usize) -> PyResult<Vec<Vec<GivenBand>>> {
        let (q_len, kv_len) = (self.inner.q_len(), self.inner.kv_len());
        let bands = self.inner.mask().resolve(batch, q_len, kv_len);
        let bands = bands.map_err(|error| refused(error.to_string()))?;
        let told = |band: &Band| (band.q.start, band.q.end, told(band.lo), told(band.hi));
        Ok((0..batch).map(|row| bands.row(row).iter().map(told).collect()).collect())
    }

    fn __repr__(&self) -> String {
        let (q_len, kv_len) = (self.inner.q_len(), self.inner.kv_len());
        format!("{} of {q_len} queries over {kv_len} keys", self.inner.mask())
    }
}

impl Attention {
    fn shards(&self, pes: usize, batch: usize, layout: &str) -> PyResult<longreach::Shards> {
        let options = longreach::Options { layout: parse(layout)?, ..Default::default() };
        let shards = longreach::shards(pes, batch, &self.inner, &options);
        Ok(shards.map_err(|error| refused(error.to_string()))?.0)
    }
}

/// `zigzag`, `contiguous`, `striped` or `striped:BLOCK`.
pub fn parse(layout: &str) -> PyResult<Layout> {
    layout.parse().map_err(|error: <Layout as std::str::FromStr>::Err| refused(error.to_string()))
}

fn ranges(documents: &[(u64, u64)]) -> Vec<Range<u64>> {
    documents.iter().map(|&(start, end)| start..end).collect()
}

fn rows(rows: &[Row]) -> Vec<Documents> {
    rows.iter().map(|row| Documents::ranges(ranges(row))).collect()
}

fn band((start, end, lo, hi): GivenBand) -> PyResult<Band> {
    Ok(Band { q: start..end, lo: edge(lo)?, hi: edge(hi)? })
}

fn told(edge: Edge) -> (String, i64) {
    match edge {
        Edge::Fixed(n) => ("fixed".to_owned(), n),
        Edge::Diagonal(n) => ("diagonal".to_owned(), n),
    }
}

fn edge((kind, n): (String, i64)) -> PyResult<Edge> {
    match kind.as_str() {
        "fixed" => Ok(Edge::Fixed(n)),
        "diagonal" => Ok(Edge::Diagonal(n)),
        _ => Err(refused(format!("an edge is (`{kind}`, {n}): it is (\"fixed\", n) or (\"diagonal\", n)"))),
    }
}
