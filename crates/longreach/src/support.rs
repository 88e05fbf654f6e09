//! What is supported, as data: the one table that the documentation prints and [`supports`] answers from.

/// A row of the support table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// What is asked for, as a word to look up.
    pub feature: &'static str,
    /// What of it works.
    pub works: &'static str,
    /// What to use instead of the rest; empty where nothing is missing.
    pub instead: &'static str,
}

impl Support {
    /// Whether the feature works at all.
    pub fn supported(&self) -> bool {
        self.works != NO
    }
}

const NO: &str = "no";

/// The support table of this version.
pub const SUPPORT: &[Support] = &[
    row(
        "device",
        "cpu; cuda: NVIDIA GPUs with bf16 and f16, head dimensions of multiples of 8 up to 256 (Linux, cuDNN 9)",
        "cast float32 inputs, pad heads with zeros",
    ),
    row(
        "transport",
        "threads: PEs of one process; processes: PEs of one machine (Linux)",
        "start all PEs on one machine: a world that spans several is refused",
    ),
    row("PEs", "from 1 to 1024, odd numbers too; teams of any of them in any order", ""),
    row(
        "dtype",
        "f32, f16, bf16; results are float32, accumulated in float32",
        "convert fp8 and float64 inputs",
    ),
    row(
        "mask",
        "full, causal, window, packed documents with gaps, prefix-LM, sink + window, any disjoint bands",
        "",
    ),
    row("lengths", "any, with Sq != Skv (aligned bottom-right); empty shards and documents", ""),
    row("heads", "query heads a multiple of key heads (GQA, MQA)", "repeat or pad heads otherwise"),
    row(
        "head_dim",
        "any; that of values may differ; with 1 element gradients that nearly cancel may miss the accuracy rule",
        "pad such heads with zeros to 8",
    ),
    row(
        "NaN and infinity",
        "padding may hold anything; in a token they may reach rows that do not see it",
        "keep tokens finite",
    ),
    row("layout", "zigzag, contiguous, striped, explicit ranges", ""),
    row("backward", "dq, dk, dv", ""),
    row(
        "deterministic",
        "on a CPU always, for any number of threads; on a GPU where it is asked for, which takes the backward longer",
        "",
    ),
    row("dropout", NO, "apply it outside attention, or train without"),
    row("bias", NO, "express additive 0/-inf masks as bands"),
    row("sinks", NO, "keep the first tokens visible with a sink + window mask"),
    row("softcap", NO, "use a model without it"),
    row("graph capture", NO, "run without capturing"),
];

const fn row(feature: &'static str, works: &'static str, instead: &'static str) -> Support {
    Support { feature, works, instead }
}

/// The row of the support table for `feature`; none where the table does not speak of it.
pub fn supports(feature: &str) -> Option<&'static Support> {
    SUPPORT.iter().find(|row| row.feature.eq_ignore_ascii_case(feature))
}

/// The table as Markdown.
pub fn support_table() -> String {
    let mut table = String::from("| | works | instead |\n|---|---|---|\n");
    for Support { feature, works, instead } in SUPPORT {
        table.push_str(&format!("| {feature} | {works} | {instead} |\n"));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_work_says_what_to_use_instead() {
        for row in SUPPORT {
            assert!(row.supported() || !row.instead.is_empty(), "{row:?}");
        }
        assert!(supports("Backward").is_some_and(Support::supported));
        assert!(supports("dropout").is_some_and(|row| !row.supported()));
        assert_eq!(supports("teleportation"), None);
    }
}
