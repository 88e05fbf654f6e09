//! The peer suite's configurations: every one that the masks cover, lengths and heads scaled down, under the
//! accuracy rule. A subset by default, all of it with LONGREACH_FULL=1.

use crate::harness::{
    Oracle, Problem, Results, Setting, Sizes, TENSORS, assemble, call, documents, layouts, lengths,
};
use crate::transports::on_all;
use longreach::{Attention, ContextParallel, DType, Documents, Layout, Mask};

/// (name, query heads, key heads, head_dim, value_dim, mask), heads a quarter of the peer suite's.
type Configuration = (&'static str, usize, usize, usize, usize, Mask);

fn window(left: u64, right: u64) -> Mask {
    Mask::full().window(Some(left), Some(right))
}

fn configurations() -> Vec<Configuration> {
    vec![
        ("1_0", 3, 3, 128, 128, Mask::causal()),
        ("1_1", 3, 3, 128, 128, Mask::full()),
        ("1_2f", 3, 3, 128, 128, Mask::causal().window(Some(32), Some(0))),
        ("1_3f", 3, 3, 128, 128, window(32, 32)),
        ("1_5", 3, 3, 128, 128, Mask::causal().window(Some(32), Some(32))),
        ("2_0", 8, 1, 128, 128, Mask::causal()),
        ("2_1f", 6, 1, 128, 128, Mask::full()),
        ("2_1", 8, 8, 128, 128, Mask::causal().window(Some(8), Some(0))),
        ("2_3f", 6, 1, 128, 128, window(32, 32)),
        ("2_6", 6, 1, 128, 128, Mask::causal().window(Some(32), Some(32))),
        ("3_1", 32, 32, 192, 128, Mask::causal()),
        ("3_1f", 3, 3, 192, 128, Mask::full()),
        ("3_2f", 3, 3, 192, 128, Mask::causal().window(Some(32), Some(0))),
        ("3_3f", 3, 3, 192, 128, window(32, 32)),
        ("3_0", 3, 3, 128, 64, Mask::causal()),
        ("4_0", 16, 2, 64, 64, Mask::causal()),
        ("4_3", 16, 16, 64, 64, Mask::causal().window(Some(8), Some(0))),
        ("5_0", 4, 4, 256, 256, Mask::causal()),
        ("5_1", 4, 4, 256, 256, Mask::causal().window(Some(8), Some(0))),
        ("packed", 4, 2, 64, 64, Mask::causal().documents(lengths(&[9, 7, 8, 0, 12, 8, 1, 100, 108]))),
        (
            "packed, padded",
            4,
            2,
            64,
            64,
            Mask::causal().documents(vec![Documents::ranges([0..9, 16..23, 31..32, 40..249])]),
        ),
        ("packed, full", 7, 7, 64, 64, Mask::full().documents(lengths(&[3, 9, 20, 1, 13, 12, 6, 189]))),
        (
            "packed, window",
            4,
            4,
            64,
            64,
            Mask::causal().window(Some(20), None).documents(lengths(&[100, 1, 152])),
        ),
        ("prefix", 6, 3, 64, 64, Mask::prefix_lm(70)),
        ("sink + window", 6, 3, 64, 64, Mask::sink_window(4, 30)),
    ]
}

fn problems() -> Vec<(String, Problem)> {
    let mut problems = Vec::new();
    for (i, (name, q_heads, kv_heads, head_dim, value_dim, mask)) in configurations().into_iter().enumerate()
    {
        for dtype in [DType::F32, DType::Bf16] {
            let len = if name.starts_with("packed") { 253 } else { 256 - i % 4 };
            // Many heads or many batch rows, not both.
            let batch = if q_heads > 16 { 1 } else { 2 };
            let sizes =
                Sizes { batch, q_len: len, kv_len: len, q_heads, kv_heads, head_dim, value_dim, dtype };
            problems.push((format!("{name} {dtype}"), Problem::random(i as u64 * 10, sizes, mask.clone())));
        }
    }
    // Lengths that differ, bottom-right; half of it float16.
    for (i, mask) in
        [Mask::causal(), Mask::full(), Mask::causal().window(Some(20), Some(0))].into_iter().enumerate()
    {
        for (q_len, kv_len) in [(101, 230), (230, 101)] {
            let sizes = Sizes {
                batch: 1,
                q_len,
                kv_len,
                q_heads: 4,
                kv_heads: 2,
                head_dim: 64,
                value_dim: 32,
                dtype: DType::F16,
            };
            problems.push((
                format!("{mask} {q_len} x {kv_len}"),
                Problem::random(500 + i as u64, sizes, mask.clone()),
            ));
        }
    }
    let cross = Mask::causal()
        .documents(documents(&[0, 0, 50, 90, 101]))
        .kv_documents(documents(&[0, 30, 130, 131, 230]));
    let sizes = Sizes {
        batch: 1,
        q_len: 101,
        kv_len: 230,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 64,
        value_dim: 64,
        dtype: DType::F32,
    };
    problems.push(("packed cross".to_owned(), Problem::random(600, sizes, cross)));
    let rows = vec![Documents::cu_seqlens([0, 100, 230]), Documents::ranges([0..7, 9..200])];
    let sizes = Sizes { batch: 2, q_len: 230, kv_len: 230, ..sizes };
    problems.push((
        "documents by batch row".to_owned(),
        Problem::random(601, sizes, Mask::causal().documents(rows)),
    ));
    problems
}

fn settings(problem: &Problem, pes: usize) -> Vec<Setting> {
    let attention: &Attention = &problem.attention;
    layouts(attention.q_len(), pes)
        .into_iter()
        .filter(|layout| attention.q_len() == attention.kv_len() || !matches!(layout, Layout::Ranges(_)))
        .flat_map(|layout| {
            let mut stages = vec![1, 2, pes.max(2) - 1];
            stages.sort_unstable();
            stages.dedup();
            stages.into_iter().map(move |stages| Setting::new(pes, layout.clone(), stages))
        })
        .collect()
}

/// Settings of this problem that are run: all, or a few that change with the problem and the PEs, so that over the
/// whole list each pair of values meets.
fn chosen(problem: usize, pes: usize, settings: Vec<Setting>) -> Vec<Setting> {
    let full = std::env::var("LONGREACH_FULL").is_ok_and(|value| value == "1");
    let every = if full { 1 } else { 5 };
    settings
        .into_iter()
        .enumerate()
        .filter(|(i, _)| (i + problem + pes).is_multiple_of(every))
        .map(|(_, setting)| setting)
        .collect()
}

#[test]
fn the_peer_suite_is_within_the_accuracy_rule_on_any_number_of_pes() {
    let problems = problems();
    let oracles: Vec<Oracle> = problems.iter().map(|(_, problem)| Oracle::new(problem)).collect();
    let mut ratios: Vec<f64> = Vec::new();
    let mut failures = Vec::new();
    for pes in [1, 2, 3, 4, 5, 7, 8] {
        let plan: Vec<(usize, Setting)> = (0..problems.len())
            .flat_map(|i| {
                chosen(i, pes, settings(&problems[i].1, pes)).into_iter().map(move |setting| (i, setting))
            })
            .collect();
        // A world runs many calls, and not all: their results are kept until it ends.
        for plan in plan.chunks(64) {
            let parts = on_all(pes, |pe| {
                let team = pe.team()?;
                plan.iter()
                    .map(|(i, setting)| {
                        let problem = &problems[*i].1;
                        let cp = ContextParallel::new(&team, &setting.options_for(&[problem])?)?;
                        let part = call(&cp, problem)?;
                        cp.free()?;
                        Ok::<_, longreach::Error>(part)
                    })
                    .collect::<Result<Vec<_>, _>>()
            });
            let mut parts: Vec<_> = parts.unwrap().into_iter().map(Vec::into_iter).collect();
            for (i, setting) in plan {
                let part: Vec<_> =
                    parts.iter_mut().map(|parts| parts.next().expect("a part a call")).collect();
                let results: Results = assemble(&problems[*i].1, setting, &part);
                // One PE is one device, but for the layout.
                if pes > 1 {
                    ratios.extend(oracles[*i].ratios(&results));
                }
                let broken = oracles[*i].failures(&results);
                if !broken.is_empty() {
                    failures.push(format!("{} on {setting:?}: {broken:?}", problems[*i].0));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of them: {failures:#?}", failures.len());
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    println!("{} ratios of {TENSORS:?} to one device, median {median:.4}", ratios.len());
    assert!(ratios.len() > 1000 && median <= 1.1, "{} ratios, median {median}", ratios.len());
}
