//! Planted faults: what the checks of the other tests must catch, shown to be caught.

use crate::harness::{Oracle, Problem, Results, Setting, Sizes, run};
use longreach::{Attention, Band, DType, Edge, Layout, Mask};

const LEN: usize = 96;

fn problem() -> Problem {
    let sizes = Sizes {
        batch: 1,
        q_len: LEN,
        kv_len: LEN,
        q_heads: 2,
        kv_heads: 2,
        head_dim: 32,
        value_dim: 32,
        dtype: DType::F32,
    };
    Problem::random(77, sizes, Mask::causal())
}

fn results(problem: &Problem) -> Results {
    run(problem, &Setting::new(3, Layout::Zigzag, 2)).unwrap()
}

/// The names of the tensors that break the rule.
fn broken(oracle: &Oracle, results: &Results) -> Vec<String> {
    oracle
        .failures(results)
        .iter()
        .map(|text| text.split(' ').next().unwrap_or_default().to_owned())
        .collect()
}

/// Results under `bands` instead of the causal mask, against the oracle of the causal mask.
fn broken_under(bands: Vec<Band>) -> Vec<String> {
    let right = problem();
    let wrong = Problem { attention: Attention::new(Mask::bands(bands), LEN), ..right.clone() };
    broken(&Oracle::new(&right), &results(&wrong))
}

fn causal(q: std::ops::Range<i64>) -> Band {
    Band { q, lo: Edge::Fixed(0), hi: Edge::Diagonal(1) }
}

#[test]
fn without_a_fault_nothing_is_broken() {
    assert!(broken(&Oracle::new(&problem()), &results(&problem())).is_empty());
    assert!(broken_under(vec![causal(0..96)]).is_empty());
}

#[test]
fn one_dropped_tile_is_caught() {
    // Rows 80..96 miss the keys 0..16.
    let rest = Band { q: 80..96, lo: Edge::Fixed(16), hi: Edge::Diagonal(1) };
    assert_eq!(broken_under(vec![causal(0..80), rest]), ["out", "lse", "dq", "dk", "dv"]);
}

#[test]
fn one_dropped_key_of_one_row_is_caught() {
    let rest = Band { q: 95..96, lo: Edge::Fixed(1), hi: Edge::Diagonal(1) };
    assert_eq!(broken_under(vec![causal(0..95), rest]), ["out", "lse", "dq", "dk", "dv"]);
}

#[test]
fn one_doubled_key_is_caught() {
    // A doubled key is one whose weight is twice what it is: a 97th key that equals key 0.
    let right = problem();
    let double = |tensor: &longreach::Tensor| {
        let mut data = tensor.as_f32().unwrap().to_vec();
        let first = data[..64].to_vec();
        data.extend(first);
        longreach::Tensor::new(longreach::Elements::F32(data), [1, LEN + 1, 2, 32]).unwrap()
    };
    let doubled = Band { q: 95..96, lo: Edge::Fixed(96), hi: Edge::Fixed(97) };
    let wrong = Problem {
        k: double(&right.k),
        v: double(&right.v),
        attention: Attention::cross(Mask::bands(vec![causal(0..96), doubled]), LEN, LEN + 1),
        ..right.clone()
    };
    let mut found = results(&wrong);
    for data in [&mut found.dk, &mut found.dv] {
        let extra = data.split_off(LEN * 64);
        data.iter_mut().zip(extra).for_each(|(sum, term)| *sum += term);
    }
    assert_eq!(broken(&Oracle::new(&right), &found), ["out", "lse", "dq", "dk", "dv"]);
}

#[test]
fn a_log_sum_exp_of_a_chunk_in_backward_is_caught() {
    // The second half of the keys alone, each row normalised within it, as a chunk-local lse would.
    let low = Band { q: 48..96, lo: Edge::Fixed(0), hi: Edge::Fixed(48) };
    let high = Band { q: 48..96, lo: Edge::Fixed(48), hi: Edge::Diagonal(1) };
    let right = problem();
    let part =
        |bands| results(&Problem { attention: Attention::new(Mask::bands(bands), LEN), ..right.clone() });
    let (a, b) = (part(vec![causal(0..48), low]), part(vec![high]));
    let sum = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
    let exact = results(&right);
    let local = Results { dq: sum(&a.dq, &b.dq), dk: sum(&a.dk, &b.dk), dv: sum(&a.dv, &b.dv), ..exact };
    assert_eq!(broken(&Oracle::new(&right), &local), ["dq", "dk", "dv"]);
}

#[test]
fn gradients_that_accumulate_in_sixteen_bits_are_caught() {
    // Eight blocks of queries, each with all its keys: their gradients of keys and values add up to the whole ones.
    let right = problem();
    let (oracle, exact) = (Oracle::new(&right), results(&right));
    let add = |sum: &mut [f32], terms: &[f32], round: fn(f32) -> f32| {
        sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum = round(*sum + term));
    };
    let summed = |round: fn(f32) -> f32| {
        let (mut dk, mut dv) = (vec![0f32; exact.dk.len()], vec![0f32; exact.dv.len()]);
        for block in 0..8 {
            let bands = vec![causal(block * 12..block * 12 + 12)];
            let attention = Attention::new(Mask::bands(bands), LEN);
            let part = results(&Problem { attention, ..right.clone() });
            add(&mut dk, &part.dk, round);
            add(&mut dv, &part.dv, round);
        }
        broken(&oracle, &Results { dk, dv, ..exact.clone() })
    };
    assert!(summed(|x| x).is_empty());
    assert_eq!(summed(|x| half::bf16::from_f32(x).to_f32()), ["dk", "dv"]);
    assert_eq!(summed(|x| half::f16::from_f32(x).to_f32()), ["dk", "dv"]);
}

#[test]
fn one_rounding_to_sixteen_bits_is_caught_in_every_tensor() {
    let right = problem();
    let (oracle, exact) = (Oracle::new(&right), results(&right));
    let rounded = |data: &[f32]| data.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect::<Vec<_>>();
    let once = Results {
        out: rounded(&exact.out),
        lse: rounded(&exact.lse),
        dq: rounded(&exact.dq),
        dk: rounded(&exact.dk),
        dv: rounded(&exact.dv),
    };
    assert_eq!(broken(&oracle, &once), ["out", "lse", "dq", "dk", "dv"]);
}

#[test]
fn merging_rounded_parts_stage_by_stage_is_caught_by_its_ratio() {
    // Normalised (out, lse) pairs in float32, eight of them a row, as a kernel that cannot carry would be merged
    // without the carried state.
    let right = Problem { attention: Attention::new(Mask::full(), LEN), ..problem() };
    let oracle = Oracle::new(&right);
    let exact = results(&right);
    let (mut out, mut lse) = (vec![0f32; exact.out.len()], vec![f32::NEG_INFINITY; exact.lse.len()]);
    for part in 0..24 {
        let keys = Band { q: 0..96, lo: Edge::Fixed(part * 4), hi: Edge::Fixed(part * 4 + 4) };
        let found =
            results(&Problem { attention: Attention::new(Mask::bands(vec![keys]), LEN), ..right.clone() });
        for head in 0..2 {
            for row in 0..LEN {
                let (old, new) = (lse[head * LEN + row], found.lse[head * LEN + row]);
                let sum = old.max(new) + (-(old - new).abs()).exp().ln_1p();
                for d in 0..32 {
                    let i = (row * 2 + head) * 32 + d;
                    out[i] = out[i] * (old - sum).exp() + found.out[i] * (new - sum).exp();
                }
                lse[head * LEN + row] = sum;
            }
        }
    }
    let ratios = oracle.ratios(&Results { out, lse, ..exact.clone() });
    assert!(ratios[0] > 1.1, "out at {} times one device's error", ratios[0]);
    assert!(oracle.ratios(&exact)[0] < 1.1);
}

#[test]
fn zeros_and_swapped_halves_are_caught() {
    let right = problem();
    let (oracle, exact) = (Oracle::new(&right), results(&right));
    let zeros = Results { dk: vec![0.0; exact.dk.len()], ..exact.clone() };
    assert_eq!(broken(&oracle, &zeros), ["dk"]);
    let mut swapped = exact.clone();
    swapped.dv.rotate_left(LEN / 2 * 64);
    assert_eq!(broken(&oracle, &swapped), ["dv"]);
    let mut nan = exact;
    nan.out[5] = f32::NAN;
    assert_eq!(broken(&oracle, &nan), ["out"]);
}

#[test]
fn another_mask_or_scale_is_caught() {
    let right = problem();
    let oracle = Oracle::new(&right);
    for attention in [
        Attention::new(Mask::full(), LEN),
        Attention::new(Mask::causal().window(Some(94), None), LEN),
        right.attention.clone().scale(0.177),
    ] {
        let wrong = results(&Problem { attention: attention.clone(), ..right.clone() });
        assert_eq!(broken(&oracle, &wrong).len(), 5, "{attention:?}");
    }
}
