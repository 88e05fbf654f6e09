//! Packed documents: exact lengths, empty ones, padding.

use crate::harness::{
    Oracle, Problem, Results, Setting, Sizes, documents, everywhere, exact_everywhere, lengths, run, tensor,
};
use longreach::{DType, Documents, Elements, Layout, Mask, Tensor};

fn sizes(len: usize, dtype: DType) -> Sizes {
    Sizes { batch: 1, q_len: len, kv_len: len, q_heads: 1, kv_heads: 1, head_dim: 8, value_dim: 8, dtype }
}

/// A problem with q = 0, so that every visible key weighs the same, and these values of every element of a v row.
fn uniform(len: usize, mask: Mask, value: impl Fn(usize) -> f32) -> Problem {
    let problem = Problem::random(11, sizes(len, DType::F32), mask);
    let shape = [1, len, 1, 8];
    let of = |row: &dyn Fn(usize) -> f32| tensor((0..len * 8).map(|i| row(i / 8)), DType::F32, shape);
    Problem { q: of(&|_| 0.0), v: of(&value), dout: of(&|_| 1.0), ..problem }
}

fn close(name: &str, setting: &Setting, got: f32, expected: f64) {
    assert!(
        (f64::from(got) - expected).abs() <= 2e-6 * expected.abs().max(1.0),
        "{name} {got}, expected {expected}, {setting:?}"
    );
}

#[test]
fn b01_seven_tokens_in_a_buffer_of_eight() {
    let values = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 200.0];
    let only = || vec![Documents::ranges(std::iter::once(0..7).collect::<Vec<_>>())];
    for causal in [false, true] {
        let mask = if causal { Mask::causal() } else { Mask::full() };
        let problem = uniform(8, mask.documents(only()), |row| values[row]);
        everywhere(&problem, &[1, 2, 3, 5], |setting, results| {
            for row in 0..7 {
                let seen = if causal { row + 1 } else { 7 };
                let mean = values[..seen].iter().map(|&x| f64::from(x)).sum::<f64>() / seen as f64;
                close("out", setting, results.out[row * 8], mean);
                close("lse", setting, results.lse[row], (seen as f64).ln());
            }
            assert_eq!((results.out[7 * 8], results.lse[7]), (0.0, f32::NEG_INFINITY), "{setting:?}");
            assert_eq!(
                (results.dq[7 * 8], results.dk[7 * 8], results.dv[7 * 8]),
                (0.0, 0.0, 0.0),
                "{setting:?}"
            );
        });
    }
}

#[test]
fn b01_lengths_that_divide_nothing_are_exact_and_repeat_bit_by_bit() {
    for (total, mask) in [
        (704, Mask::causal().documents(vec![Documents::ranges(std::iter::once(0..698).collect::<Vec<_>>())])),
        (1049, Mask::causal().documents(lengths(&[698, 1, 17, 333]))),
    ] {
        let sizes =
            Sizes { q_heads: 8, kv_heads: 2, head_dim: 64, value_dim: 64, ..sizes(total, DType::Bf16) };
        let problem = Problem::random(21, sizes, mask);
        let oracle = Oracle::new(&problem);
        let setting = Setting::new(4, Layout::Zigzag, 2);
        let first = run(&problem, &setting).unwrap();
        assert!(oracle.failures(&first).is_empty(), "{:#?}", oracle.failures(&first));
        for _ in 0..9 {
            assert_eq!(run(&problem, &setting).unwrap(), first);
        }
    }
}

/// `tensor` with `value` in every element of the rows outside `kept`.
fn with_padding(tensor: &Tensor, kept: &[std::ops::Range<usize>], value: f32) -> Tensor {
    let [_, rows, heads, dim] = tensor.shape();
    let width = heads * dim;
    let values = tensor.view().to_f32();
    let real = |i: usize| kept.iter().any(|range| range.contains(&(i / width % rows)));
    let values = values.into_iter().enumerate().map(|(i, x)| if real(i) { x } else { value });
    crate::harness::tensor(values, tensor.dtype(), tensor.shape())
}

#[test]
fn b33_content_of_padding_reaches_no_real_row_not_by_one_bit() {
    let kept = [0..3, 4..9];
    let mask = Mask::causal().documents(vec![Documents::ranges([0..3, 4..9])]);
    for dtype in [DType::F32, DType::Bf16] {
        let sizes = Sizes { q_heads: 2, kv_heads: 2, head_dim: 32, value_dim: 32, ..sizes(16, dtype) };
        let problem = Problem::random(31, sizes, mask.clone());
        let filled = |value| {
            let pad = |x: &Tensor| with_padding(x, &kept, value);
            Problem {
                q: pad(&problem.q),
                k: pad(&problem.k),
                v: pad(&problem.v),
                dout: pad(&problem.dout),
                ..problem.clone()
            }
        };
        let zeros = filled(0.0);
        let oracle = Oracle::new(&zeros);
        for pes in [1, 2, 3, 4, 7] {
            for layout in crate::harness::layouts(16, pes) {
                let setting = Setting::new(pes, layout, 2);
                let expected = run(&zeros, &setting).unwrap();
                assert!(
                    oracle.failures(&expected).is_empty(),
                    "{setting:?} {:#?}",
                    oracle.failures(&expected)
                );
                for value in [f32::NAN, 1e4] {
                    assert_eq!(run(&filled(value), &setting).unwrap(), expected, "{value} {setting:?}");
                }
                padding_is_zero(&expected, &kept);
            }
        }
    }
}

fn padding_is_zero(results: &Results, kept: &[std::ops::Range<usize>]) {
    for row in (0..16).filter(|row| !kept.iter().any(|range| range.contains(row))) {
        for head in 0..2 {
            assert_eq!(results.lse[head * 16 + row], f32::NEG_INFINITY);
        }
        for data in [&results.out, &results.dq, &results.dk, &results.dv] {
            assert!(data[row * 64..(row + 1) * 64].iter().all(|&x| x == 0.0));
        }
    }
}

#[test]
fn b09_empty_documents_change_no_bit() {
    for head_dim in [64, 128, 256] {
        let sizes =
            Sizes { q_heads: 4, kv_heads: 1, head_dim, value_dim: head_dim, ..sizes(128, DType::Bf16) };
        let with =
            Problem::random(41, sizes, Mask::causal().documents(documents(&[0, 0, 37, 37, 100, 128, 128])));
        let without = Problem::random(41, sizes, Mask::causal().documents(documents(&[0, 37, 100, 128])));
        for pes in [2, 4, 5] {
            for layout in crate::harness::layouts(128, pes) {
                let setting = Setting::new(pes, layout, 2);
                assert_eq!(run(&with, &setting).unwrap(), run(&without, &setting).unwrap(), "{setting:?}");
            }
        }
    }
}

#[test]
fn b09_documents_of_other_lengths_in_keys() {
    // A quarter of the case's lengths.
    let mask = Mask::full()
        .documents(documents(&[0, 0, 302, 512, 512]))
        .kv_documents(documents(&[0, 634, 1070, 1280, 2048]));
    let sizes = Sizes {
        q_len: 512,
        kv_len: 2048,
        q_heads: 4,
        head_dim: 128,
        value_dim: 128,
        ..sizes(0, DType::Bf16)
    };
    let problem = Problem::random(51, sizes, mask);
    let oracle = Oracle::new(&problem);
    for pes in [1, 3, 4] {
        let results = run(&problem, &Setting::new(pes, Layout::Zigzag, 2)).unwrap();
        assert!(oracle.failures(&results).is_empty(), "{:#?}", oracle.failures(&results));
        for data in [&results.dk, &results.dv] {
            assert!(data[..634 * 128].iter().chain(&data[1280 * 128..]).all(|&x| x == 0.0));
        }
    }
}

#[test]
fn b09_only_the_last_row_of_each_document_sees_its_one_key() {
    let mask = Mask::causal().documents(lengths(&[76, 34, 146])).kv_documents(lengths(&[1, 1, 1]));
    let sizes = Sizes { q_len: 256, kv_len: 3, q_heads: 2, ..sizes(0, DType::F32) };
    let problem = Problem::random(61, sizes, mask);
    let v = problem.v.as_f32().unwrap().to_vec();
    everywhere(&problem, &[1, 2, 3, 4, 8], |setting, results| {
        for row in 0..256 {
            let key = [75, 109, 255].iter().position(|&last| last == row);
            for head in 0..2 {
                let out = &results.out[(row * 2 + head) * 8..][..8];
                let seen = results.lse[head * 256 + row] != f32::NEG_INFINITY;
                assert_eq!(seen, key.is_some(), "row {row} {setting:?}");
                let expected = key.map_or(vec![0.0; 8], |key| v[key * 8..(key + 1) * 8].to_vec());
                assert_eq!(out, expected, "row {row} {setting:?}");
            }
            assert!(results.dq[row * 16..(row + 1) * 16].iter().all(|x| if key.is_some() {
                x.is_finite()
            } else {
                *x == 0.0
            }));
        }
    });
    exact_everywhere(&problem, &[3]);
}

#[test]
fn b09_no_tokens_at_all() {
    let problem = Problem::random(71, sizes(0, DType::F32), Mask::causal());
    for pes in [1, 3] {
        let results = run(&problem, &Setting::new(pes, Layout::Zigzag, 1)).unwrap();
        assert!(results.out.is_empty() && results.lse.is_empty() && results.dk.is_empty());
    }
    let empty = Problem::random(71, sizes(0, DType::F32), Mask::causal().documents(documents(&[0, 0, 0])));
    assert!(run(&empty, &Setting::new(4, Layout::Contiguous, 1)).unwrap().out.is_empty());
}

#[test]
fn b05_documents_of_very_different_lengths() {
    let sizes = Sizes { q_heads: 4, kv_heads: 4, head_dim: 32, value_dim: 32, ..sizes(512, DType::F32) };
    let problem = Problem::random(81, sizes, Mask::causal().documents(lengths(&[8, 120, 64, 320])));
    exact_everywhere(&problem, &[3, 4]);
}

#[test]
fn public_failing_lengths_are_exact() {
    for set in [
        &[9u64, 7, 8, 12, 8, 12][..],
        &[18, 6, 8, 12, 8, 12],
        &[20, 3, 8, 12, 8, 12],
        &[3, 9, 20, 1, 13, 12, 6],
        &[7],
        &[5, 11, 0, 48],
        &[1, 1, 1],
    ] {
        let total = set.iter().sum::<u64>() as usize;
        let sizes = Sizes { q_heads: 2, head_dim: 16, value_dim: 16, ..sizes(total, DType::F32) };
        exact_everywhere(&Problem::random(91, sizes, Mask::causal().documents(lengths(set))), &[2, 4, 7]);
    }
}

#[test]
fn b31_every_token_has_one_owner_whatever_the_length() {
    for (pes, total) in [(3, 10), (3, 2), (8, 2), (2, 7), (4, 2999)] {
        let problem = uniform(total, Mask::full(), |_| 1.0);
        for layout in [Layout::Zigzag, Layout::Contiguous, Layout::Striped { block: 1 }] {
            let setting = Setting::new(pes, layout, 2);
            let results = run(&problem, &setting).unwrap();
            for row in 0..total {
                close("out", &setting, results.out[row * 8], 1.0);
                close("lse", &setting, results.lse[row], (total as f64).ln());
            }
        }
    }
}

#[test]
fn b15_what_is_sharded_comes_back_and_attention_has_the_same_owners() {
    for lens in [&[4u64, 4][..], &[5, 11, 0, 48]] {
        let total = lens.iter().sum::<u64>() as usize;
        let count: Vec<f32> = (0..total * 2 * 8).map(|i| (i / 16) as f32).collect();
        let mask = Mask::causal().window(Some(0), None).documents(lengths(lens));
        let sizes = Sizes {
            batch: 1,
            q_len: total,
            kv_len: total,
            q_heads: 2,
            kv_heads: 2,
            head_dim: 8,
            value_dim: 8,
            dtype: DType::F32,
        };
        let mut problem = Problem::random(3, sizes, mask);
        problem.v = Tensor::new(Elements::F32(count.clone()), [1, total, 2, 8]).unwrap();
        let half: Vec<half::bf16> = count.iter().map(|&x| half::bf16::from_f32(x)).collect();
        let half = Tensor::new(Elements::Bf16(half), [1, total, 2, 8]).unwrap();
        for pes in [2, 3] {
            let setting = Setting::new(pes, Layout::Zigzag, 1);
            let (shards, _) = longreach::shards(pes, 1, &problem.attention, &setting.options()).unwrap();
            for whole in [&problem.v, &half] {
                let parts: Vec<_> =
                    (0..pes).map(|pe| longreach::shard(&whole.view(), &shards, pe).unwrap()).collect();
                assert_eq!(longreach::unshard(&parts, &shards).unwrap(), *whole);
            }
            // Each token sees itself alone.
            assert_eq!(run(&problem, &setting).unwrap().out, count);
        }
    }
}
