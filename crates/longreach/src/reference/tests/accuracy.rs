use super::super::accuracy::{Errors, Rule};

const ONE_DEVICE_LIMIT: f64 = Rule::CPU.one_device;

fn passes(errors: Errors, one_device: f64) -> bool {
    Rule::CPU.passes(errors, one_device)
}
use super::super::{Backward, Forward, backward_of, forward};
use super::{band, causal, near, noise, to_f32, view};
use longreach_plan::Edge;

/// One causal head of random inputs and its exact results.
struct Case {
    exact: Forward,
    grad: Backward,
}

fn case() -> Case {
    let n = 256;
    let shape = [1, n, 1, 32];
    let (q, k, v) = (noise(7, n * 32), noise(8, n * 32), noise(9, n * 32));
    let dout = noise(10, n * 32);
    let (q, k, v) = (view(&q, shape), view(&k, shape), view(&v, shape));
    let exact = forward(&q, &k, &v, &causal(n), 32f64.powf(-0.5)).unwrap();
    let grad = backward_of(&exact, &q, &k, &v, &view(&dout, shape), &causal(n), 32f64.powf(-0.5)).unwrap();
    Case { exact, grad }
}

#[test]
fn rounding_passes_and_zeros_fail() {
    let Case { exact, grad } = case();
    let out = exact.out_errors(&to_f32(&exact.out.values)).unwrap();
    assert!(out.relative > 0.0 && passes(out, out.relative), "{out:?}");
    let zeros = vec![0.0; 256 * 32];
    // The honest one-device error, against which all of these must fail.
    for wrong in [
        exact.out_errors(&zeros).unwrap(),
        exact.lse_errors(&zeros[..256]).unwrap(),
        exact.dq_errors(&zeros, &grad).unwrap(),
        grad.dk_errors(&zeros).unwrap(),
        grad.dv_errors(&zeros).unwrap(),
    ] {
        near(wrong.relative, 1.0, 1e-12);
        assert!(!passes(wrong, ONE_DEVICE_LIMIT), "{wrong:?}");
        // A one-device run that is as wrong does not make it right.
        assert!(!passes(wrong, wrong.relative), "{wrong:?}");
    }
}

#[test]
fn a_lost_and_a_doubled_key_fail() {
    let Case { exact, grad } = case();
    let n = 256;
    let (q, k, v, dout) = (noise(7, n * 32), noise(8, n * 32), noise(9, n * 32), noise(10, n * 32));
    let shape = [1, n, 1, 32];
    // One key of the last row only: as small a loss as there is.
    let mut lost = causal(n);
    lost.rows[0] = vec![
        band(0..255, Edge::Fixed(0), Edge::Diagonal(1)),
        band(255..256, Edge::Fixed(0), Edge::Fixed(100)),
        band(255..256, Edge::Fixed(101), Edge::Fixed(256)),
    ];
    let mut doubled = causal(n);
    doubled.rows[0].push(band(255..256, Edge::Fixed(100), Edge::Fixed(101)));
    for wrong in [lost, doubled] {
        let (q, k, v) = (view(&q, shape), view(&k, shape), view(&v, shape));
        let f = forward(&q, &k, &v, &wrong, 32f64.powf(-0.5)).unwrap();
        let g = backward_of(&f, &q, &k, &v, &view(&dout, shape), &wrong, 32f64.powf(-0.5)).unwrap();
        for errors in [
            exact.out_errors(&to_f32(&f.out.values)).unwrap(),
            exact.lse_errors(&to_f32(&f.lse.values)).unwrap(),
            exact.dq_errors(&to_f32(&g.dq.values), &grad).unwrap(),
            grad.dk_errors(&to_f32(&g.dk.values)).unwrap(),
            grad.dv_errors(&to_f32(&g.dv.values)).unwrap(),
        ] {
            assert!(!passes(errors, ONE_DEVICE_LIMIT), "{errors:?}");
        }
    }
}

#[test]
fn what_is_not_finite_fails() {
    let Case { exact, grad } = case();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut out = to_f32(&exact.out.values);
        out[17] = bad;
        let mut lse = to_f32(&exact.lse.values);
        lse[17] = bad;
        let mut dk = to_f32(&grad.dk.values);
        dk[17] = bad;
        for errors in
            [exact.out_errors(&out).unwrap(), exact.lse_errors(&lse).unwrap(), grad.dk_errors(&dk).unwrap()]
        {
            assert_eq!(errors, Errors { max_abs: f64::INFINITY, relative: f64::INFINITY });
            assert!(!passes(errors, 1e-7));
            assert!(!passes(errors, f64::INFINITY));
        }
    }
    let fine = Errors { max_abs: 1e-7, relative: 1e-7 };
    assert!(passes(fine, 1e-7));
    assert!(!passes(fine, f64::NAN));
    assert!(!passes(Errors { max_abs: 0.0, relative: f64::NAN }, 1e-7));
}

#[test]
fn the_rule_is_the_ratio_and_the_slack() {
    let errors = |relative| Errors { max_abs: 0.0, relative };
    assert!(passes(errors(1.1e-6 + 1.9e-7), 1e-6));
    assert!(!passes(errors(1.1e-6 + 2.1e-7), 1e-6));
    assert!(!passes(errors(0.0), 5.1e-6));
}
