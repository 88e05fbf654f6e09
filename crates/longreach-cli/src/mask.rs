//! Who sees what, from all the arguments that speak of it.

use crate::args::{MaskArgs, MaskKind};
use crate::bands_file;
use crate::documents;
use crate::error::Error;
use longreach_plan::{Bands, Documents, Mask};
use std::path::Path;

/// The lengths that a mask is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Batch rows.
    pub batch: usize,
    /// Queries.
    pub q_len: usize,
    /// Keys.
    pub kv_len: usize,
}

/// The arguments that make a mask.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// `--mask`, `--window`, `--documents`.
    pub shape: &'a MaskArgs,
    /// `--kv-documents`.
    pub kv_documents: Option<&'a str>,
    /// `--bands`.
    pub bands: Option<&'a Path>,
}

impl Asked<'_> {
    /// The mask, as the engine takes it and as bands in global positions; `default` is what the file asks for.
    ///
    /// Fails, naming the argument, when arguments contradict each other or do not fit the lengths.
    pub fn mask(
        &self,
        default: impl FnOnce() -> Result<Option<MaskKind>, Error>,
        lengths: Lengths,
    ) -> Result<(Mask, Bands), Error> {
        let mask = match self.bands {
            Some(path) => self.whole(path, lengths)?,
            None => self.shaped(default, lengths)?,
        };
        match mask.resolve(lengths.batch, lengths.q_len, lengths.kv_len) {
            Ok(bands) => Ok((mask, bands)),
            Err(error) => {
                let (argument, value) = match (self.bands, &self.shape.documents, self.shape.window) {
                    (Some(path), _, _) => ("--bands", path.display().to_string()),
                    (None, Some(documents), _) => ("--documents", documents.clone()),
                    (None, None, Some(window)) => ("--window", window.to_string()),
                    (None, None, None) => ("--mask", mask.to_string()),
                };
                Err(Error::bad(argument, value, error.to_string()))
            }
        }
    }

    fn whole(&self, path: &Path, lengths: Lengths) -> Result<Mask, Error> {
        let others = [
            ("--mask", self.shape.mask.is_some()),
            ("--window", self.shape.window.is_some()),
            ("--documents", self.shape.documents.is_some()),
            ("--kv-documents", self.kv_documents.is_some()),
        ];
        if let Some((other, _)) = others.iter().find(|(_, given)| *given) {
            let why = format!("is the whole mask and cannot be combined with {other}: leave one of them out");
            return Err(Error::bad("--bands", path.display().to_string(), why));
        }
        Ok(Mask::bands(bands_file::bands(path, lengths.q_len)?))
    }

    fn shaped(
        &self,
        default: impl FnOnce() -> Result<Option<MaskKind>, Error>,
        lengths: Lengths,
    ) -> Result<Mask, Error> {
        let kind = match self.shape.mask {
            Some(kind) => kind,
            None => default()?.unwrap_or(MaskKind::Causal),
        };
        let mut mask = match kind {
            MaskKind::Causal => Mask::causal(),
            MaskKind::Full => Mask::full(),
        };
        if let Some(window) = self.shape.window {
            mask = mask.window(window.left, window.right);
        }
        if let Some((q, kv)) = both_documents(self.shape.documents.as_deref(), self.kv_documents, lengths)? {
            mask = mask.documents(q).kv_documents(kv);
        }
        Ok(mask)
    }
}

/// Documents of the queries and of the keys.
type Both = (Vec<Documents>, Vec<Documents>);

/// The documents of the queries, and of the keys where they lie otherwise.
fn both_documents(
    q_list: Option<&str>,
    kv_list: Option<&str>,
    lengths: Lengths,
) -> Result<Option<Both>, Error> {
    let (list, kv_list) = match (q_list, kv_list) {
        (None, None) => return Ok(None),
        (None, Some(kv_list)) => {
            let why = "speaks of the keys only, the documents of the queries are needed too: add --documents";
            return Err(Error::bad("--kv-documents", kv_list, why));
        }
        (Some(list), None) if lengths.q_len != lengths.kv_len => {
            let why = format!(
                "does not say where the documents lie in the {} keys beside {} queries: add --kv-documents",
                lengths.kv_len, lengths.q_len
            );
            return Err(Error::bad("--documents", list, why));
        }
        (Some(list), kv_list) => (list, kv_list),
    };
    let q = documents::parse("--documents", list, lengths.q_len, lengths.batch)?;
    let Some(kv_list) = kv_list else {
        return Ok(Some((q, Vec::new())));
    };
    let kv = documents::parse("--kv-documents", kv_list, lengths.kv_len, lengths.batch)?;
    for row in 0..q.len().max(kv.len()) {
        // A list of one row stands for every batch row.
        let (q, kv) = (q.get(row).unwrap_or(&q[0]).count(), kv.get(row).unwrap_or(&kv[0]).count());
        if q != kv {
            let why = format!("has {kv} documents in batch row {row}, expected {q} as --documents has");
            return Err(Error::bad("--kv-documents", kv_list, why));
        }
    }
    Ok(Some((q, kv)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(
        q_len: usize,
        documents: Option<&str>,
        kv_documents: Option<&str>,
    ) -> Result<(Mask, Bands), Error> {
        let shape = MaskArgs { mask: None, window: None, documents: documents.map(str::to_owned) };
        let asked = Asked { shape: &shape, kv_documents, bands: None };
        asked.mask(|| Ok(Some(MaskKind::Full)), Lengths { batch: 2, q_len, kv_len: 8 })
    }

    #[test]
    fn the_keys_lie_as_the_queries_unless_said_otherwise() {
        let one = |range| vec![range];
        let (text, bands) = mask(8, Some("0,3,8"), None).unwrap();
        assert_eq!(text.to_string(), "full documents=2");
        assert_eq!([bands.visible(1, 2), bands.visible(1, 3)], [one(0..3), one(3..8)]);
        let (_, bands) = mask(8, Some("0,3,8"), Some("0..1,6..8;0..2,2..4")).unwrap();
        assert_eq!([bands.visible(0, 2), bands.visible(0, 3)], [one(0..1), one(6..8)]);
        assert_eq!([bands.visible(1, 2), bands.visible(1, 3)], [one(0..2), one(2..4)]);
    }

    #[test]
    fn documents_that_do_not_fit_each_other_are_refused() {
        for (q_len, documents, kv_documents, part) in [
            (8, None, Some("0,8"), "--kv-documents 0,8: speaks of the keys only"),
            (5, Some("0,5"), None, "--documents 0,5: does not say where"),
            (8, Some("0,3,8"), Some("0,8"), "--kv-documents 0,8: has 1 documents in batch row 0, expected 2"),
            (8, Some("0,8"), Some("0,8;0,1,8"), "has 2 documents in batch row 1, expected 1"),
        ] {
            let error = mask(q_len, documents, kv_documents).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
