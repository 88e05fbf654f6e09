//! What `attend` tells, as tables or as one JSON object.

use crate::check::Row;
use crate::request::Problem;
use crate::stats::{Pass, PerPe};
use crate::table::{Table, bytes, milliseconds};
use longreach::Need;
use serde_json::{Map, Value, json};

/// All that is told of a run.
#[derive(Debug)]
pub struct Report<'a> {
    /// What was asked.
    pub problem: &'a Problem,
    /// Largest number of fetched stages of a PE.
    pub stages: usize,
    /// The forward pass of all PEs.
    pub forward: Pass,
    /// The backward pass of all PEs.
    pub backward: Option<Pass>,
    /// Each PE's part.
    pub per_pe: &'a [PerPe],
    /// Symmetric and scratch memory of the PE that takes most.
    pub need: &'a Need,
    /// Errors, where they were asked for.
    pub check: Option<&'a [Row]>,
}

impl Report<'_> {
    fn passed(&self) -> Option<bool> {
        self.check.map(|rows| rows.iter().all(Row::passed))
    }

    /// The tables.
    pub fn text(&self) -> String {
        let sizes = &self.problem.sizes;
        let mut text = format!(
            "{} PEs ({}, {}), batch {}, {} queries x {} keys, heads {}/{}, dim {}/{}, {}\n\
             mask {}, layout {}, {} fetched stages\n\
             need beyond inputs and outputs: {}\n\n",
            self.problem.pes,
            self.problem.transport.name(),
            self.problem.device.kind(),
            sizes.batch,
            sizes.q_len,
            sizes.kv_len,
            sizes.q_heads,
            sizes.kv_heads,
            sizes.head_dim,
            sizes.value_dim,
            sizes.dtype,
            self.problem.mask,
            self.problem.layout,
            self.stages,
            self.need,
        );
        if let Some(rate) = self.problem.get_bandwidth {
            text.push_str(&format!("emulated link: gets at {:.1} GB/s\n\n", rate * 1e-9));
        }
        text.push_str(&self.pass_table("forward", &self.forward, |pe| Some(&pe.forward)));
        if let Some(backward) = &self.backward {
            text.push('\n');
            text.push_str(&self.pass_table("backward", backward, |pe| pe.backward.as_ref()));
        }
        if let Some(rows) = self.check {
            text.push('\n');
            text.push_str(&check_table(rows));
        }
        text
    }

    fn pass_table(&self, name: &str, total: &Pass, of: impl Fn(&PerPe) -> Option<&Pass>) -> String {
        let mut table = Table::default();
        table.line([
            name,
            "tokens",
            "rows fetched",
            "fetched",
            "ring",
            "returned",
            "time",
            "compute",
            "comm",
            "exposed",
            "GFLOP/s",
        ]);
        let line = |label: String, tokens: u64, rows: u64, pass: &Pass| {
            [
                label,
                tokens.to_string(),
                rows.to_string(),
                bytes(pass.bytes_fetched),
                bytes(pass.bytes_ring),
                bytes(pass.bytes_returned),
                milliseconds(pass.seconds),
                milliseconds(pass.compute_seconds),
                milliseconds(pass.comm_seconds),
                milliseconds(pass.exposed_seconds),
                format!("{:.1}", pass.gflops()),
            ]
        };
        for (number, pe) in self.per_pe.iter().enumerate() {
            if let Some(pass) = of(pe) {
                table.line(line(format!("PE {number}"), pe.tokens, pe.rows_fetched, pass));
            }
        }
        let sum = |of: fn(&PerPe) -> u64| self.per_pe.iter().map(of).sum();
        table.line(line("all".to_owned(), sum(|pe| pe.tokens), sum(|pe| pe.rows_fetched), total));
        table.text()
    }

    /// The JSON object.
    pub fn json(&self) -> Value {
        let sizes = &self.problem.sizes;
        let per_pe: Vec<Value> = self
            .per_pe
            .iter()
            .map(|pe| {
                json!({
                    "tokens": pe.tokens,
                    "rows_fetched": pe.rows_fetched,
                    "forward": pass_json(&pe.forward, false),
                    "backward": pe.backward.as_ref().map(|pass| pass_json(pass, true)),
                })
            })
            .collect();
        json!({
            "pes": self.problem.pes,
            "transport": self.problem.transport.name(),
            "device": self.problem.device.kind(),
            "dtype": sizes.dtype.name(),
            "batch": sizes.batch,
            "q_len": sizes.q_len,
            "kv_len": sizes.kv_len,
            "q_heads": sizes.q_heads,
            "kv_heads": sizes.kv_heads,
            "head_dim": sizes.head_dim,
            "value_dim": sizes.value_dim,
            "mask": self.problem.mask.to_string(),
            "layout": self.problem.layout.to_string(),
            "stages": self.stages,
            "emulated_link_bytes_per_second": self.problem.get_bandwidth,
            "serialized": self.problem.serialize,
            "forward": pass_json(&self.forward, false),
            "backward": self.backward.as_ref().map(|pass| pass_json(pass, true)),
            "per_pe": per_pe,
            "peak_bytes": self.need.total,
            "check": self.check_json(),
        })
    }

    fn check_json(&self) -> Option<Value> {
        // Tensors that were not asked for are null, as passes are.
        let mut check: Map<String, Value> =
            ["out", "lse", "dq", "dk", "dv"].map(|name| (name.to_owned(), Value::Null)).into_iter().collect();
        for row in self.check? {
            let errors = json!({
                "max_abs": number(row.errors.max_abs),
                "relative": number(row.errors.relative),
                "one_device_relative": number(row.one_device),
            });
            check.insert(row.name.to_owned(), errors);
        }
        check.insert("passed".to_owned(), json!(self.passed()));
        Some(Value::Object(check))
    }
}

fn check_table(rows: &[Row]) -> String {
    let mut table = Table::default();
    table.line(["against float64", "max abs", "relative", "one device", ""]);
    for row in rows {
        let verdict = if row.passed() { "passed" } else { "FAILED" };
        table.line([
            row.name.to_owned(),
            format!("{:.2e}", row.errors.max_abs),
            format!("{:.2e}", row.errors.relative),
            format!("{:.2e}", row.one_device),
            verdict.to_owned(),
        ]);
    }
    table.text()
}

fn pass_json(pass: &Pass, backward: bool) -> Value {
    let mut value = json!({
        "seconds": number(pass.seconds),
        "compute_seconds": number(pass.compute_seconds),
        "comm_seconds": number(pass.comm_seconds),
        "exposed_seconds": number(pass.exposed_seconds),
        "bytes_fetched": pass.bytes_fetched,
        "bytes_ring": pass.bytes_ring,
        "gflops": number(pass.gflops()),
    });
    if backward {
        value["bytes_returned"] = json!(pass.bytes_returned);
    }
    value
}

/// JSON has no infinity and no NaN: an error that is not finite is null.
fn number(x: f64) -> Option<f64> {
    x.is_finite().then_some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longreach::reference::Errors;
    use longreach::reference::accuracy::Rule;

    #[test]
    fn an_error_that_is_not_finite_is_null_and_fails() {
        let errors = Errors { max_abs: f64::INFINITY, relative: f64::INFINITY };
        let row = Row { name: "out", errors, one_device: 1e-7, rule: Rule::CPU };
        assert!(!row.passed());
        assert_eq!(number(row.errors.relative), None);
        assert!(check_table(&[row]).contains("FAILED"));
    }

    #[test]
    fn a_pass_has_the_keys_of_its_direction() {
        let has = |backward, key| pass_json(&Pass::default(), backward).get(key).is_some();
        for key in [
            "seconds",
            "compute_seconds",
            "comm_seconds",
            "exposed_seconds",
            "bytes_fetched",
            "bytes_ring",
            "gflops",
        ] {
            assert!(has(false, key) && has(true, key), "{key}");
        }
        assert!(!has(false, "bytes_returned") && has(true, "bytes_returned"));
    }
}
