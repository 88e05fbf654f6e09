mod accuracy;

use super::accuracy::{Errors, Rule};
use super::*;
use longreach_kernels::Data;
use longreach_plan::{Band, Edge};

fn band(q: std::ops::Range<i64>, lo: Edge, hi: Edge) -> Band {
    Band { q, lo, hi }
}

fn one_row(q_len: usize, kv_len: usize, bands: Vec<Band>) -> Bands {
    Bands { q_len, kv_len, rows: vec![bands] }
}

fn full(n: usize) -> Bands {
    one_row(n, n, vec![band(0..n as i64, Edge::Fixed(0), Edge::Fixed(n as i64))])
}

fn causal(n: usize) -> Bands {
    one_row(n, n, vec![band(0..n as i64, Edge::Fixed(0), Edge::Diagonal(1))])
}

fn view(data: &[f32], shape: [usize; 4]) -> View<'_> {
    View::contiguous(Data::F32(data), shape).unwrap()
}

/// A fixed sequence in [-2, 2), enough for shapes; not for statistics.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 22) as f32 - 2.0
    };
    (0..len).map(|_| next()).collect()
}

#[track_caller]
fn near(x: f64, expected: f64, tolerance: f64) {
    assert!((x - expected).abs() <= tolerance, "{x} is not {expected} within {tolerance}");
}

fn to_f32(x: &[f64]) -> Vec<f32> {
    x.iter().map(|&x| x as f32).collect()
}

#[test]
fn uniform_softmax_is_the_mean_of_the_visible_values() {
    let (q, k) = (vec![0.0; 7 * 8], noise(1, 7 * 8));
    let v: Vec<f32> = [1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0].iter().flat_map(|&x| [x; 8]).collect();
    let shape = [1, 7, 1, 8];
    let (q, k, v) = (view(&q, shape), view(&k, shape), view(&v, shape));
    let all = forward(&q, &k, &v, &full(7), 0.3).unwrap();
    for row in 0..7 {
        near(all.out.values[row * 8 + 3], 10.0 / 7.0, 1e-15);
        near(all.lse.values[row], 7f64.ln(), 1e-15);
    }
    let past = forward(&q, &k, &v, &causal(7), 0.3).unwrap();
    for (row, sum) in [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0].into_iter().enumerate() {
        near(past.out.values[row * 8], sum / (row + 1) as f64, 1e-15);
        near(past.lse.values[row], ((row + 1) as f64).ln(), 1e-15);
    }
    // dV_j = sum over the rows that see j of dout_i / (keys that i sees); dout = 1.
    let ones = vec![1.0; 7 * 8];
    let grad = backward(&q, &k, &v, &view(&ones, shape), &causal(7), 0.3).unwrap();
    for j in 0..7 {
        let expected: f64 = (j..7).map(|i| 1.0 / (i + 1) as f64).sum();
        near(grad.dv.values[j * 8 + 5], expected, 1e-14);
        // q = 0, so no key can change a score.
        assert_eq!(grad.dk.values[j * 8 + 5], 0.0);
    }
}

#[test]
fn a_window_over_several_tiles_counts_its_keys() {
    let n = 512;
    let (q, k) = (vec![0.0; n * 4], noise(2, n * 4));
    let v: Vec<f32> = (0..n).flat_map(|j| [j as f32; 4]).collect();
    let shape = [1, n, 1, 4];
    let bands = one_row(n, n, vec![band(0..n as i64, Edge::Diagonal(-100), Edge::Diagonal(1))]);
    let (q, k, v) = (view(&q, shape), view(&k, shape), view(&v, shape));
    let f = forward(&q, &k, &v, &bands, 1.0).unwrap();
    for (row, expected) in [(0, 0.0), (63, 31.5), (64, 32.0), (128, 78.0), (511, 461.0)] {
        near(f.out.values[row * 4], expected, 1e-11);
    }
    near(f.lse.values[511], 101f64.ln(), 1e-14);
    let ones = vec![1.0; n * 4];
    let g = backward(&q, &k, &v, &view(&ones, shape), &bands, 1.0).unwrap();
    near(g.dv.values[100 * 4], 1.0, 1e-13);
    near(g.dv.values[411 * 4], 1.0, 1e-13);
    near(g.dv.values[511 * 4], 1.0 / 101.0, 1e-15);
}

#[test]
fn large_scores_neither_overflow_nor_vanish() {
    let (n, d) = (64, 64);
    let mut q = vec![0.0; n * d];
    let mut k = vec![0.0; n * d];
    let mut v = vec![1.0; n * d];
    for s in 0..n {
        q[s * d] = 10.0;
        if s >= n / 2 {
            k[s * d] = 10.0;
            v[s * d..(s + 1) * d].fill(2.0);
        }
    }
    let shape = [1, n, 1, d];
    let f = forward(&view(&q, shape), &view(&k, shape), &view(&v, shape), &full(n), 1.0).unwrap();
    near(f.out.values[9], 2.0, 1e-13);
    near(f.lse.values[3], 100.0 + 32f64.ln(), 1e-12);
    let ones = vec![1.0; n * d];
    let g =
        backward(&view(&q, shape), &view(&k, shape), &view(&v, shape), &view(&ones, shape), &full(n), 1.0)
            .unwrap();
    assert!(g.dv.values[0].abs() < 1e-30);
    near(g.dv.values[40 * d], 2.0, 1e-13);
}

/// Two heads a kv head, two batch rows with masks of their own, several bands a row, and a row without keys.
fn mixed() -> (Bands, [usize; 4], [usize; 4], [usize; 4]) {
    let first = vec![
        band(0..70, Edge::Fixed(0), Edge::Diagonal(3)),
        band(2..70, Edge::Fixed(80), Edge::Fixed(90)),
        band(71..75, Edge::Diagonal(-40), Edge::Fixed(90)),
    ];
    let second =
        vec![band(0..75, Edge::Fixed(5), Edge::Fixed(7)), band(10..75, Edge::Fixed(7), Edge::Fixed(72))];
    let bands = Bands { q_len: 75, kv_len: 90, rows: vec![first, second] };
    (bands, [2, 75, 4, 5], [2, 90, 2, 5], [2, 90, 2, 3])
}

fn len(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

#[test]
fn gradients_are_the_differences_of_the_forward_pass() {
    let (bands, q_shape, k_shape, v_shape) = mixed();
    let out_shape = [q_shape[0], q_shape[1], q_shape[2], v_shape[3]];
    let scale = 0.4;
    let q = noise(3, len(q_shape));
    let k = noise(4, len(k_shape));
    let v = noise(5, len(v_shape));
    let dout = noise(6, len(out_shape));
    let loss = |q: &[f32], k: &[f32], v: &[f32]| -> f64 {
        let f = forward(&view(q, q_shape), &view(k, k_shape), &view(v, v_shape), &bands, scale).unwrap();
        f.out.values.iter().zip(&dout).map(|(o, &g)| o * f64::from(g)).sum()
    };
    let grad = backward(
        &view(&q, q_shape),
        &view(&k, k_shape),
        &view(&v, v_shape),
        &view(&dout, out_shape),
        &bands,
        scale,
    )
    .unwrap();
    // A power of two, so that the inputs move by exactly this much wherever they are below 4.
    let step = (2f32).powi(-10);
    let check = |name: &str, x: &[f32], grad: &Exact, loss: &dyn Fn(&[f32]) -> f64| {
        for at in (0..x.len()).step_by(x.len() / 40) {
            let (mut up, mut down) = (x.to_vec(), x.to_vec());
            up[at] += step;
            down[at] -= step;
            let slope = (loss(&up) - loss(&down)) / (f64::from(up[at]) - f64::from(down[at]));
            let exact = grad.values[at];
            assert!((slope - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{name}[{at}]: {slope}, not {exact}");
            assert!(grad.bounds[at] >= exact.abs() * (1.0 - 1e-12), "{name}[{at}] exceeds its bound");
        }
    };
    check("q", &q, &grad.dq, &|x| loss(x, &k, &v));
    check("k", &k, &grad.dk, &|x| loss(&q, x, &v));
    check("v", &v, &grad.dv, &|x| loss(&q, &k, x));
}

#[test]
fn rows_without_keys_are_empty_and_their_content_is_not_read() {
    let (bands, q_shape, k_shape, v_shape) = mixed();
    let out_shape = [q_shape[0], q_shape[1], q_shape[2], v_shape[3]];
    let run = |fill: f32| {
        let mut q = noise(3, len(q_shape));
        let (mut k, mut v) = (noise(4, len(k_shape)), noise(5, len(v_shape)));
        let mut dout = noise(6, len(out_shape));
        // Query 70 of batch row 0 sees nothing; keys 0..5 and 72..90 of batch row 1 are seen by nothing.
        q[70 * 20..71 * 20].fill(fill);
        dout[70 * 12..71 * 12].fill(fill);
        for key in (0..5).chain(72..90) {
            k[(90 + key) * 10..(91 + key) * 10].fill(fill);
            v[(90 + key) * 6..(91 + key) * 6].fill(fill);
        }
        let (q, k, v) = (view(&q, q_shape), view(&k, k_shape), view(&v, v_shape));
        let f = forward(&q, &k, &v, &bands, 0.4).unwrap();
        let g = backward_of(&f, &q, &k, &v, &view(&dout, out_shape), &bands, 0.4).unwrap();
        (f, g)
    };
    let (f, g) = run(0.0);
    assert_eq!(run(f32::NAN), (f.clone(), g.clone()));
    for head in 0..4 {
        assert_eq!(f.lse.values[head * 75 + 70], f64::NEG_INFINITY);
    }
    assert!(f.out.values[70 * 12..71 * 12].iter().all(|&x| x == 0.0));
    assert!(g.dq.values[70 * 20..71 * 20].iter().all(|&x| x == 0.0));
    assert!(g.dk.values[90 * 10..95 * 10].iter().all(|&x| x == 0.0));
    assert!(f.out.values.iter().chain(&g.dk.values).chain(&g.dv.values).all(|x| x.is_finite()));

    let mut out = to_f32(&f.out.values);
    let mut lse = to_f32(&f.lse.values);
    assert!(f.out_errors(&out).unwrap().relative < 1e-7);
    assert!(f.lse_errors(&lse).unwrap().relative < 1e-7);
    out[70 * 12] = 1e-30;
    assert_eq!(f.out_errors(&out).unwrap().relative, f64::INFINITY);
    lse[70] = -1e30;
    assert_eq!(f.lse_errors(&lse).unwrap().relative, f64::INFINITY);
    let mut dq = to_f32(&g.dq.values);
    assert!(f.dq_errors(&dq, &g).unwrap().relative < 1e-7);
    dq[70 * 20 + 3] = -1e-30;
    assert_eq!(f.dq_errors(&dq, &g).unwrap().relative, f64::INFINITY);
}

#[test]
fn the_result_is_the_same_on_any_number_of_threads() {
    let (bands, q_shape, k_shape, v_shape) = mixed();
    let (q, k, v) = (noise(3, len(q_shape)), noise(4, len(k_shape)), noise(5, len(v_shape)));
    let dout = noise(6, 2 * 75 * 4 * 3);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let (q, k, v) = (view(&q, q_shape), view(&k, k_shape), view(&v, v_shape));
        pool.install(|| backward(&q, &k, &v, &view(&dout, [2, 75, 4, 3]), &bands, 0.4).unwrap())
    };
    assert_eq!(run(1), run(3));
}

#[test]
fn empty_tensors_have_no_errors() {
    let bands = Bands { q_len: 0, kv_len: 0, rows: vec![vec![]] };
    let none = view(&[], [1, 0, 2, 8]);
    let f = forward(&none, &none, &none, &bands, 1.0).unwrap();
    let g = backward_of(&f, &none, &none, &none, &none, &bands, 1.0).unwrap();
    let nothing = Errors { max_abs: 0.0, relative: 0.0 };
    assert_eq!(f.out_errors(&[]).unwrap(), nothing);
    assert_eq!(g.dk_errors(&[]).unwrap(), nothing);
    assert!(Rule::CPU.passes(nothing, 0.0));
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let (x, y) = (noise(1, 48), noise(2, 32));
    let text =
        |q: View, k: View, v: View, bands: &Bands| forward(&q, &k, &v, bands, 1.0).unwrap_err().to_string();
    let q = view(&x, [1, 4, 3, 4]);
    let k = view(&y, [1, 4, 2, 4]);
    assert_eq!(
        text(q, k, k, &full(4)),
        "the number of heads of q is 3, expected a multiple of the 2 heads of k"
    );
    assert_eq!(text(k, k, q, &full(4)), "the shape of v is [1, 4, 3, 4], expected [1, 4, 2, 4]");
    assert_eq!(text(k, k, k, &full(5)), "the length of the bands is [5, 5], expected [4, 4]");
    let f = forward(&k, &k, &k, &full(4), 1.0).unwrap();
    let error = backward_of(&f, &k, &k, &k, &q, &full(4), 1.0).unwrap_err();
    assert_eq!(error.to_string(), "the shape of dout is [1, 4, 3, 4], expected [1, 4, 2, 4]");
    let error = f.out_errors(&[0.0; 31]).unwrap_err();
    assert_eq!(error.to_string(), "the number of elements of out is 31, expected 32");
}
