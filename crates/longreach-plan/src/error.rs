//! What this crate refuses.

/// Why a mask, a layout or a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Text that is not what it should be.
    #[error("'{given}' is not {what}: expected {expected}")]
    Parse {
        /// What the text should have been.
        what: &'static str,
        /// The text.
        given: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// Documents that do not fit the sequence.
    #[error("{what} {given}: {why}")]
    Documents {
        /// `documents` or `kv_documents`.
        what: &'static str,
        /// The documents, shortened.
        given: String,
        /// What is wrong, and what is accepted.
        why: String,
    },
    /// Documents for another number of batch rows.
    #[error("{what} has {given} rows for {batch} batch rows: give 1, for all of them, or one a batch row")]
    DocumentRows {
        /// `documents` or `kv_documents`.
        what: &'static str,
        /// Rows given.
        given: usize,
        /// Batch rows.
        batch: usize,
    },
    /// Query documents and key documents that do not pair up.
    #[error(
        "batch row {batch_row} has {q} query documents and {kv} key documents: \
         they pair up in order, give as many of one as of the other (empty ones are fine)"
    )]
    DocumentPairs {
        /// The batch row.
        batch_row: usize,
        /// Query documents.
        q: usize,
        /// Key documents.
        kv: usize,
    },
    /// Documents of the queries alone, where the keys have another length.
    #[error(
        "documents of {q_len} queries do not say where the documents lie in {kv_len} keys: \
         give kv_documents too"
    )]
    KvDocumentsMissing {
        /// Queries.
        q_len: usize,
        /// Keys.
        kv_len: usize,
    },
    /// Documents of the keys alone.
    #[error("kv_documents without documents: give the documents of the queries too")]
    DocumentsMissing,
    /// Two parts of a mask that exclude each other.
    #[error("mask {mask} cannot be combined with {other}: {instead}")]
    Combination {
        /// The mask's main shape.
        mask: &'static str,
        /// What was added.
        other: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// A band that speaks of queries that there are not.
    #[error("band {band} speaks of queries {start}..{end}, expected a part of 0..{q_len}")]
    BandRows {
        /// Index of the band.
        band: usize,
        /// First query.
        start: i64,
        /// One past the last query.
        end: i64,
        /// Queries that there are.
        q_len: usize,
    },
    /// Two bands that both show one key to one query.
    #[error(
        "bands {first} and {second} both show key {key} to query {query}: \
         a pair may be in one band only, cut one of the two"
    )]
    BandOverlap {
        /// Index of one band.
        first: usize,
        /// Index of the other.
        second: usize,
        /// A query in both.
        query: i64,
        /// A key that both show to it.
        key: i64,
    },
    /// A count outside its range.
    #[error("{what} is {given}, expected {expected}")]
    Count {
        /// Which count.
        what: &'static str,
        /// Its value.
        given: u64,
        /// What is accepted.
        expected: &'static str,
    },
    /// Explicit ranges that do not share out the sequence.
    #[error("layout ranges: {why}")]
    Ranges {
        /// What is wrong, and what is accepted.
        why: String,
    },
    /// A size that does not fit into 64 bits.
    #[error("{what} does not fit into 64 bits: use fewer or shorter sequences")]
    Overflow {
        /// Which size.
        what: &'static str,
    },
    /// The memory bound is too small for the plan, or for every plan.
    #[error(
        "at least {smallest} bytes a processing element are needed, at {stages} fetched stages, and the bound \
         is {bound}: raise the bound, allow more stages or use more processing elements"
    )]
    Memory {
        /// Bytes of the smallest need.
        smallest: u64,
        /// Stages at which it is reached.
        stages: usize,
        /// The bound.
        bound: u64,
    },
}

/// Largest sequence length: positions and sums of two positions fit into 64 bits with a sign.
pub const MAX_LEN: u64 = 1 << 60;

pub(crate) fn check_len(what: &'static str, len: u64) -> Result<(), Error> {
    if len <= MAX_LEN {
        return Ok(());
    }
    Err(Error::Count { what, given: len, expected: "at most 2^60" })
}
