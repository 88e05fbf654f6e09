//! Who sees what, from all the arguments that speak of it.

use crate::args::{MaskArgs, MaskKind};
use crate::bands_file;
use crate::documents::{self, Documents};
use crate::error::Error;
use crate::values::Window;
use longreach::{Band, Bands, Mask};
use std::fmt;
use std::path::Path;

/// A mask as asked for, its parts checked one by one and against each other.
#[derive(Clone, Debug, PartialEq)]
pub enum MaskRequest {
    /// Causal or full, within a window, within documents.
    Shape {
        /// The main shape.
        kind: MaskKind,
        /// Bounds about the diagonal.
        window: Option<Window>,
        /// Documents of the queries and of the keys, as many in each batch row.
        documents: Option<(Documents, Documents)>,
    },
    /// Bands in global positions.
    Bands(Vec<Band>),
}

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

impl MaskRequest {
    /// The mask of the arguments; `default` is what the file asks for.
    ///
    /// Fails when arguments contradict each other or leave the lengths.
    pub fn new(
        args: &MaskArgs,
        kv_documents: Option<&str>,
        bands: Option<&Path>,
        default: impl FnOnce() -> Result<Option<MaskKind>, Error>,
        lengths: Lengths,
    ) -> Result<Self, Error> {
        if let Some(path) = bands {
            let others = [
                ("--mask", args.mask.is_some()),
                ("--window", args.window.is_some()),
                ("--documents", args.documents.is_some()),
                ("--kv-documents", kv_documents.is_some()),
            ];
            if let Some((other, _)) = others.iter().find(|(_, given)| *given) {
                let why = format!(
                    "is the whole mask and cannot be combined with {other}: leave one of them out"
                );
                return Err(Error::bad("--bands", path.display().to_string(), why));
            }
            return Ok(Self::Bands(bands_file::read(path, lengths.q_len)?));
        }
        let kind = match args.mask {
            Some(kind) => kind,
            None => default()?.unwrap_or(MaskKind::Causal),
        };
        let documents = both_documents(args.documents.as_deref(), kv_documents, lengths)?;
        Ok(Self::Shape {
            kind,
            window: args.window,
            documents,
        })
    }

    fn mask(&self) -> Mask {
        match self {
            Self::Bands(bands) => Mask::bands(bands.clone()),
            Self::Shape {
                kind,
                window,
                documents,
            } => {
                let mask = match kind {
                    MaskKind::Causal => Mask::causal(),
                    MaskKind::Full => Mask::full(),
                };
                let mask = match window {
                    Some(window) => mask.window(window.left, window.right),
                    None => mask,
                };
                match documents {
                    Some((q, kv)) => mask.documents(q.clone(), kv.clone()),
                    None => mask,
                }
            }
        }
    }

    /// The mask as the engine takes it and as bands in global positions.
    ///
    /// Fails, naming the argument that it came from, where it does not fit the lengths or contradicts itself.
    pub fn resolve(
        &self,
        args: &MaskArgs,
        bands: Option<&Path>,
        lengths: Lengths,
    ) -> Result<(Mask, Bands), Error> {
        let mask = self.mask();
        match mask.resolve(lengths.batch, lengths.q_len, lengths.kv_len) {
            Ok(bands) => Ok((mask, bands)),
            Err(error) => {
                let (argument, value) = match (bands, &args.documents, args.window) {
                    (Some(path), _, _) => ("--bands", path.display().to_string()),
                    (None, Some(documents), _) => ("--documents", documents.clone()),
                    (None, None, Some(window)) => ("--window", window.to_string()),
                    (None, None, None) => ("--mask", self.to_string()),
                };
                Err(Error::bad(argument, value, error.to_string()))
            }
        }
    }
}

fn both_documents(
    q_list: Option<&str>,
    kv_list: Option<&str>,
    lengths: Lengths,
) -> Result<Option<(Documents, Documents)>, Error> {
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
        return Ok(Some((q.clone(), q)));
    };
    let kv = documents::parse("--kv-documents", kv_list, lengths.kv_len, lengths.batch)?;
    for row in 0..q.len().max(kv.len()) {
        // A list of one row stands for every batch row.
        let (q, kv) = (
            q.get(row).unwrap_or(&q[0]).len(),
            kv.get(row).unwrap_or(&kv[0]).len(),
        );
        if q != kv {
            let why =
                format!("has {kv} documents in batch row {row}, expected {q} as --documents has");
            return Err(Error::bad("--kv-documents", kv_list, why));
        }
    }
    Ok(Some((q, kv)))
}

impl fmt::Display for MaskRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bands(_) => f.write_str("bands"),
            Self::Shape {
                kind,
                window,
                documents,
            } => {
                f.write_str(match kind {
                    MaskKind::Causal => "causal",
                    MaskKind::Full => "full",
                })?;
                if let Some(window) = window {
                    write!(f, ", window {window}")?;
                }
                if let Some((q, _)) = documents {
                    write!(f, ", {} documents", q.iter().map(Vec::len).sum::<usize>())?;
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(
        q_len: usize,
        documents: Option<&str>,
        kv_documents: Option<&str>,
    ) -> Result<MaskRequest, Error> {
        let args = MaskArgs {
            mask: None,
            window: None,
            documents: documents.map(str::to_owned),
        };
        let lengths = Lengths {
            batch: 2,
            q_len,
            kv_len: 8,
        };
        MaskRequest::new(
            &args,
            kv_documents,
            None,
            || Ok(Some(MaskKind::Full)),
            lengths,
        )
    }

    #[test]
    fn the_keys_lie_as_the_queries_unless_said_otherwise() {
        let text = mask(8, Some("0,3,8"), None).unwrap().to_string();
        assert_eq!(text, "full, 2 documents");
        let MaskRequest::Shape {
            documents: Some((q, kv)),
            ..
        } = mask(8, Some("0,3,8"), Some("0..1,6..8;0..2,2..4")).unwrap()
        else {
            panic!("no documents");
        };
        assert_eq!(
            (q, kv),
            (
                vec![vec![0..3, 3..8]],
                vec![vec![0..1, 6..8], vec![0..2, 2..4]]
            )
        );
    }

    #[test]
    fn documents_that_do_not_fit_each_other_are_refused() {
        for (q_len, documents, kv_documents, part) in [
            (
                8,
                None,
                Some("0,8"),
                "--kv-documents 0,8: speaks of the keys only",
            ),
            (5, Some("0,5"), None, "--documents 0,5: does not say where"),
            (
                8,
                Some("0,3,8"),
                Some("0,8"),
                "--kv-documents 0,8: has 1 documents in batch row 0, expected 2",
            ),
            (
                8,
                Some("0,8"),
                Some("0,8;0,1,8"),
                "has 2 documents in batch row 1, expected 1",
            ),
        ] {
            let error = mask(q_len, documents, kv_documents).unwrap_err().line();
            assert!(error.contains(part), "{error}");
        }
    }
}
