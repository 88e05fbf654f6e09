//! `--check`: errors against float64 beside those of one device.

use crate::results::Results;
use longreach::reference::{self, Errors};

/// The errors of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The tensor's name.
    pub name: &'static str,
    /// Errors of the run that was asked for.
    pub errors: Errors,
    /// Relative error of the same engine on one PE.
    pub one_device: f64,
}

impl Row {
    /// Whether the accuracy rule is met.
    pub fn passed(&self) -> bool {
        reference::passes(self.errors, self.one_device)
    }
}

/// Compares results, and those of one device, with the reference.
///
/// Fails when the results have another shape than the reference.
pub fn compare(
    results: &Results,
    one_device: &Results,
    forward: &reference::Forward,
    backward: Option<&reference::Backward>,
) -> Result<Vec<Row>, reference::Mismatch> {
    let row = |name, of: &dyn Fn(&Results) -> Result<Errors, reference::Mismatch>| {
        Ok(Row { name, errors: of(results)?, one_device: of(one_device)?.relative })
    };
    let mut rows = vec![
        row("out", &|results| forward.out_errors(&results.out))?,
        row("lse", &|results| forward.lse_errors(&results.lse))?,
    ];
    if let Some(exact) = backward {
        rows.push(row("dq", &|results| forward.dq_errors(&results.dq, exact))?);
        rows.push(row("dk", &|results| exact.dk_errors(&results.dk))?);
        rows.push(row("dv", &|results| exact.dv_errors(&results.dv))?);
    }
    Ok(rows)
}
