//! `--check`: errors against float64 beside those of one device.

use crate::results::Results;
use longreach::reference::accuracy::{Accuracy, Rule};
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
    /// What errors may be.
    pub rule: Rule,
}

impl Row {
    /// Whether the accuracy rule is met.
    pub fn passed(&self) -> bool {
        self.rule.passes(self.errors, self.one_device)
    }

    /// Whether the rule is not met although several PEs are as good as one device.
    fn lost_by_one_device(&self) -> bool {
        !self.passed() && self.one_device.is_finite() && self.rule.keeps_up(self.errors, self.one_device)
    }
}

/// What is to be said of rows that do not meet the accuracy rule; none where all do.
pub fn verdict(rows: &[Row]) -> Option<String> {
    let names = |of: &dyn Fn(&Row) -> bool| {
        let names: Vec<&str> = rows.iter().filter(|row| of(row)).map(|row| row.name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let worse = names(&|row| !row.passed() && !row.lost_by_one_device())
        .map(|names| format!("{names} not within the accuracy rule"));
    let lost = names(&Row::lost_by_one_device).map(|names| {
        format!(
            "{names} not within the accuracy rule, and one device is no better: float32 itself loses this much on \
             this input"
        )
    });
    worse.into_iter().chain(lost).reduce(|worse, lost| format!("{worse}; {lost}"))
}

/// Compares results, and those of one device, with the reference.
///
/// Fails when the results have another shape than the reference.
pub fn compare(
    results: &Results,
    one_device: &Results,
    forward: &reference::Forward,
    backward: Option<&reference::Backward>,
    accuracy: &Accuracy,
) -> Result<Vec<Row>, reference::Mismatch> {
    let row = |name, rule, of: &dyn Fn(&Results) -> Result<Errors, reference::Mismatch>| {
        Ok(Row { name, errors: of(results)?, one_device: of(one_device)?.relative, rule })
    };
    let Accuracy { forward: outputs, lse, gradients } = *accuracy;
    let mut rows = vec![
        row("out", outputs, &|results| forward.out_errors(&results.out))?,
        row("lse", lse, &|results| forward.lse_errors(&results.lse))?,
    ];
    if let Some(exact) = backward {
        rows.push(row("dq", gradients, &|results| forward.dq_errors(&results.dq, exact))?);
        rows.push(row("dk", gradients, &|results| exact.dk_errors(&results.dk))?);
        rows.push(row("dv", gradients, &|results| exact.dv_errors(&results.dv))?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &'static str, relative: f64, one_device: f64) -> Row {
        Row { name, errors: Errors { max_abs: relative, relative }, one_device, rule: Rule::CPU }
    }

    #[test]
    fn who_loses_the_accuracy_is_said() {
        let (good, worse) = (row("out", 1e-7, 1e-7), row("lse", 1e-3, 1e-7));
        let (lost, both) = (row("dq", 1.05e-4, 1e-4), row("dk", 2e-4, 1e-4));
        let nothing = row("dv", f64::INFINITY, f64::INFINITY);
        assert_eq!(verdict(&[good]), None);
        assert_eq!(verdict(&[good, worse]).unwrap(), "lse not within the accuracy rule");
        let of_lost = verdict(&[good, lost]).unwrap();
        assert!(of_lost.starts_with("dq not within the accuracy rule, and one device is no better: "));
        let all = verdict(&[good, worse, lost, both, nothing]).unwrap();
        assert!(all.starts_with("lse, dk, dv not within the accuracy rule; dq not within"), "{all}");
    }
}
