//! Masks as a user writes them, without lengths.

use crate::band::Band;
use crate::documents::Documents;
use std::fmt;

/// Which keys a query may see.
///
/// Everything diagonal is aligned bottom-right within a document: where a document has the queries
/// `[a, b)` and the keys `[c, d)`, the *diagonal key* of query `i` is `i + (d - b)`. With as many keys
/// as queries that is the query's own token; with more, the queries are the last ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Mask {
    pub(crate) kind: Kind,
    pub(crate) window: Option<(Option<u64>, Option<u64>)>,
    pub(crate) documents: Vec<Documents>,
    pub(crate) kv_documents: Vec<Documents>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cuts: Option<(Documents, Documents)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Causal,
    Full,
    PrefixLm(u64),
    SinkWindow { sink: u64, left: u64 },
    Bands(Vec<Band>),
}

impl Mask {
    /// Keys up to the diagonal one.
    pub fn causal() -> Self {
        Self::of(Kind::Causal)
    }

    /// All keys of the document.
    pub fn full() -> Self {
        Self::of(Kind::Full)
    }

    /// Causal, and the first `prefix` keys of each document for all its queries.
    pub fn prefix_lm(prefix: u64) -> Self {
        Self::of(Kind::PrefixLm(prefix))
    }

    /// Causal, within the diagonal key and `left` keys before it, and the first `sink` keys of the
    /// document (those at or before the diagonal).
    pub fn sink_window(sink: u64, left: u64) -> Self {
        Self::of(Kind::SinkWindow { sink, left })
    }

    /// Exactly these bands in global positions, for every batch row. No two may share a pair.
    pub fn bands(bands: Vec<Band>) -> Self {
        Self::of(Kind::Bands(bands))
    }

    fn of(kind: Kind) -> Self {
        Self { kind, window: None, documents: Vec::new(), kv_documents: Vec::new(), cuts: None }
    }

    /// Only keys from `left` before to `right` after the diagonal one; none is no bound.
    ///
    /// Causal has no keys after the diagonal one, whatever `right` says.
    pub fn window(mut self, left: Option<u64>, right: Option<u64>) -> Self {
        self.window = (left.is_some() || right.is_some()).then_some((left, right));
        self
    }

    /// Queries see keys of their own document only: one entry for every batch row, or one for each.
    pub fn documents(mut self, documents: Vec<Documents>) -> Self {
        self.documents = documents;
        self
    }

    /// Where the documents lie in the keys, where not as in the queries. They pair up in order.
    pub fn kv_documents(mut self, documents: Vec<Documents>) -> Self {
        self.kv_documents = documents;
        self
    }

    /// By what the queries and the keys are cut into shards under [`Layout::Zigzag`](crate::Layout::Zigzag), where that
    /// is not the documents: some systems cut documents together with the padding behind each. It hides and shows
    /// nothing.
    pub fn cut(mut self, queries: Documents, keys: Documents) -> Self {
        self.cuts = Some((queries, keys));
        self
    }

    /// The whole mask as text, equal where and only where the masks are equal: what processing elements
    /// compare before they work together.
    pub fn canonical(&self) -> String {
        // No map with keys that are not strings and no number that JSON lacks is in there.
        serde_json::to_string(self).expect("a mask is plain data")
    }
}

/// A short description such as `causal window=100,0 documents=3`.
impl fmt::Display for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Causal => f.write_str("causal")?,
            Kind::Full => f.write_str("full")?,
            Kind::PrefixLm(prefix) => write!(f, "prefix_lm={prefix}")?,
            Kind::SinkWindow { sink, left } => write!(f, "sink_window={sink},{left}")?,
            Kind::Bands(bands) => write!(f, "bands={}", bands.len())?,
        }
        if let Some((left, right)) = self.window {
            let right = if self.kind == Kind::Causal { Some(0) } else { right };
            let bound = |side: Option<u64>| side.map_or("none".to_owned(), |n| n.to_string());
            write!(f, " window={},{}", bound(left), bound(right))?;
        }
        for (name, rows) in [("documents", &self.documents), ("kv_documents", &self.kv_documents)] {
            const SHOWN: usize = 4;
            for (row, documents) in rows.iter().take(SHOWN).enumerate() {
                match row {
                    0 => write!(f, " {name}={}", documents.count())?,
                    _ => write!(f, ";{}", documents.count())?,
                }
            }
            if rows.len() > SHOWN {
                f.write_str(";...")?;
            }
        }
        if let Some((queries, _)) = &self.cuts {
            write!(f, " cut={}", queries.count())?;
        }
        Ok(())
    }
}
