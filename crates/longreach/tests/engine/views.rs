//! Inputs with strides: bit-equal to contiguous ones, and not modified.

use crate::harness::{Problem, Setting, Sizes, call, normal, run};
use crate::transports::on_all;
use longreach::{
    ContextParallel, DType, Data, Elements, Error, Layout, Mask, Options, Precision, Tensor, View,
};

/// A view of the elements of `tensor`.
fn view<'a>(tensor: &'a Tensor, shape: [usize; 4], strides: [usize; 4], offset: usize) -> View<'a> {
    let data = match tensor.elements() {
        Elements::F32(x) => Data::F32(&x[offset..]),
        Elements::F16(x) => Data::F16(&x[offset..]),
        Elements::Bf16(x) => Data::Bf16(&x[offset..]),
        _ => panic!("a type that the tests do not know"),
    };
    View::strided(data, shape, strides).unwrap()
}

/// Runs on views as they are: every PE holds a part of the sequence axis, contiguous layout, 64 tokens on 2 PEs.
fn run_views(q: &View, k: &View, v: &View, dout: &View, problem: &Problem) -> Vec<Vec<Tensor>> {
    let setting = Setting::new(2, Layout::Contiguous, 1);
    let options = setting.options_for(&[problem]).unwrap();
    let half = |view: &View<'_>, pe: usize| -> (usize, [usize; 4]) {
        let [b, s, h, d] = view.shape();
        (pe * s / 2 * view.strides()[1], [b, s / 2, h, d])
    };
    let part = |whole: &View<'_>, pe: usize| {
        let (offset, shape) = half(whole, pe);
        let strides = whole.strides();
        match whole.data() {
            Data::F32(x) => Tensor::copy_of(&View::strided(Data::F32(&x[offset..]), shape, strides).unwrap()),
            Data::F16(x) => Tensor::copy_of(&View::strided(Data::F16(&x[offset..]), shape, strides).unwrap()),
            Data::Bf16(x) => {
                Tensor::copy_of(&View::strided(Data::Bf16(&x[offset..]), shape, strides).unwrap())
            }
        }
    };
    // The engine itself is given the strided part, not a copy: the copy only shows what it should equal.
    let strided = |whole: &View<'_>, pe: usize| {
        let (offset, shape) = half(whole, pe);
        (offset, shape, whole.strides())
    };
    on_all(2, |pe| {
        let cp = ContextParallel::new(&pe.team()?, &options)?;
        let me = pe.number();
        fn cut<'a>(whole: &View<'a>, (offset, shape, strides): (usize, [usize; 4], [usize; 4])) -> View<'a> {
            let data = match whole.data() {
                Data::F32(x) => Data::F32(&x[offset..]),
                Data::F16(x) => Data::F16(&x[offset..]),
                Data::Bf16(x) => Data::Bf16(&x[offset..]),
            };
            View::strided(data, shape, strides).unwrap()
        }
        let [q_cut, k_cut, v_cut, dout_cut] = [q, k, v, dout].map(|whole| cut(whole, strided(whole, me)));
        assert_eq!(Tensor::copy_of(&q_cut)?, part(q, me)?);
        let forward = cp.forward(&q_cut, &k_cut, &v_cut, &problem.attention)?;
        let out = forward.out.wait()?.clone();
        let grads = forward.saved.backward(&dout_cut)?;
        Ok::<_, Error>(vec![
            out,
            grads.dq.wait()?.clone(),
            grads.dk.wait()?.clone(),
            grads.dv.wait()?.clone(),
        ])
    })
    .unwrap()
}

#[test]
fn b19_views_of_any_strides_give_the_bits_of_contiguous_ones() {
    let (b, s, hq, hk, d) = (2, 64, 4, 2, 64);
    for dtype in [DType::F32, DType::Bf16] {
        let sizes = Sizes {
            batch: b,
            q_len: s,
            kv_len: s,
            q_heads: hq,
            kv_heads: hk,
            head_dim: d,
            value_dim: d,
            dtype,
        };
        let problem = Problem::random(9, sizes, Mask::causal());
        // (a) one fused buffer of q, k and v heads, (b) [B, H, S, D] seen as [B, S, H, D], (c) every second element.
        let fused = normal(20, dtype, [b, s, hq + 2 * hk, d]);
        let of_fused =
            |first: usize, heads| view(&fused, [b, s, heads, d], fused.view().strides(), first * d);
        let heads_first = normal(21, dtype, [b, hq, s, d]);
        let transposed = view(&heads_first, [b, s, hq, d], [hq * s * d, d, s * d, 1], 0);
        let wide = normal(22, dtype, [b, s + 3, hk, 2 * d]);
        let every_second =
            view(&wide, [b, s, hk, d], [(s + 3) * hk * 2 * d, hk * 2 * d, 2 * d, 2], 3 * hk * 2 * d);
        let scalar = normal(23, dtype, [1, 1, 1, 1]);
        let expanded = view(&scalar, [b, s, hq, d], [0; 4], 0);
        let cases = [
            (of_fused(0, hq), of_fused(hq, hk), of_fused(hq + hk, hk), expanded),
            (transposed, every_second, of_fused(hq, hk), transposed),
            (of_fused(0, hq), every_second, every_second, of_fused(0, hq)),
        ];
        for (case, (q, k, v, dout)) in cases.iter().enumerate() {
            let copies = [q, k, v, dout].map(|x| Tensor::copy_of(x).unwrap());
            let contiguous = run_views(
                &copies[0].view(),
                &copies[1].view(),
                &copies[2].view(),
                &copies[3].view(),
                &problem,
            );
            assert_eq!(run_views(q, k, v, dout, &problem), contiguous, "case {case} {dtype}");
            let [q, k, v, dout] = copies;
            let whole = Problem { q, k, v, dout, ..problem.clone() };
            let failures = crate::harness::Oracle::new(&whole)
                .failures(&run(&whole, &Setting::new(3, Layout::Zigzag, 2)).unwrap());
            assert!(failures.is_empty(), "case {case} {dtype}: {failures:#?}");
        }
    }
}

#[test]
fn outputs_in_the_inputs_type_are_the_float32_ones_rounded_once() {
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let sizes = Sizes {
            batch: 2,
            q_len: 61,
            kv_len: 61,
            q_heads: 4,
            kv_heads: 2,
            head_dim: 16,
            value_dim: 8,
            dtype,
        };
        let problem = Problem::random(31, sizes, Mask::causal());
        let setting = Setting::new(3, Layout::Zigzag, 2);
        let parts = |precision| {
            let options = Options { precision, ..setting.options_for(&[&problem]).unwrap() };
            on_all(3, |pe| call(&ContextParallel::new(&pe.team()?, &options)?, &problem)).unwrap()
        };
        let (exact, rounded) = (parts(Precision::Float32), parts(Precision::AsInputs));
        for (exact, rounded) in exact.iter().zip(&rounded) {
            assert_eq!(exact.lse, rounded.lse);
            let exact = [&exact.out, &exact.grads[0], &exact.grads[1], &exact.grads[2]];
            let rounded = [&rounded.out, &rounded.grads[0], &rounded.grads[1], &rounded.grads[2]];
            for (exact, rounded) in exact.into_iter().zip(rounded) {
                assert_eq!((exact.dtype(), rounded.dtype()), (DType::F32, dtype));
                let exact = exact.as_f32().unwrap().iter();
                let expected = match dtype {
                    DType::F32 => Elements::F32(exact.copied().collect()),
                    DType::F16 => Elements::F16(exact.map(|&x| half::f16::from_f32(x)).collect()),
                    DType::Bf16 => Elements::Bf16(exact.map(|&x| half::bf16::from_f32(x)).collect()),
                };
                assert_eq!(*rounded.elements(), expected);
            }
        }
    }
}
