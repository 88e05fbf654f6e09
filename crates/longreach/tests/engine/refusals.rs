//! What is refused, and that every PE learns it.

use crate::harness::{Problem, Setting, Sizes, call, shard};
use crate::transports::errors_on_all;
use longreach::{
    Attention, ContextParallel, DType, Error, HeapSize, Hook, Layout, Mask, Options, StageHook, Stages, World,
};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

fn sizes() -> Sizes {
    Sizes {
        batch: 1,
        q_len: 60,
        kv_len: 60,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 16,
        value_dim: 16,
        dtype: DType::F32,
    }
}

/// The text that each PE's call fails with.
fn errors(
    pes: usize,
    options: &Options,
    program: impl Fn(&ContextParallel, usize) -> Result<(), Error> + Send + Sync,
) -> Vec<String> {
    errors_on_all(pes, |pe| {
        // A PE may learn of another's refusal while it still makes its ContextParallel.
        let team = pe.team()?;
        program(&ContextParallel::new(&team, options)?, pe.number())
    })
}

fn all_name(texts: &[String], words: &[&str]) {
    for (pe, text) in texts.iter().enumerate() {
        for word in words {
            assert!(text.contains(word), "PE {pe} says {text:?}, without {word:?}");
        }
    }
}

#[test]
fn b29_dropout_is_refused_by_name() {
    // No call takes it: who asks what there is learns that it is missing, and what to do.
    let row = longreach::supports("dropout").expect("a row of the support table");
    assert!(!row.supported() && !row.instead.is_empty());
    assert!(longreach::support_table().contains("| dropout | no |"));
}

#[test]
fn one_pe_with_another_call_is_an_error_on_all_that_names_the_field_and_both_values() {
    let problem = Problem::random(1, sizes(), Mask::causal());
    let causal = || Attention::new(Mask::causal(), 60);
    let cases: [(Attention, &[&str]); 3] = [
        (Attention::new(Mask::full(), 60), &["`mask`", "causal", "full"]),
        (Attention::new(Mask::causal().window(Some(7), None), 60), &["`mask`", "causal", "window=7"]),
        (causal().scale(0.125), &["`scale`", "0.125", "0.25"]),
    ];
    for (other, words) in &cases {
        for layout in [Layout::Zigzag, Layout::Contiguous] {
            // Contiguous and causal, PE 0 fetches nothing: it must learn it all the same.
            for odd in 0..3 {
                let setting = Setting::new(3, layout.clone(), 2);
                let full = Problem { attention: Attention::new(Mask::full(), 60), ..problem.clone() };
                let options = setting.options_for(&[&problem, &full]).unwrap();
                let texts = errors(3, &options, |cp, me| {
                    let attention = if me == odd { other.clone() } else { causal() };
                    call(cp, &Problem { attention, ..problem.clone() }).map(drop)
                });
                all_name(&texts, words);
            }
        }
    }
}

#[test]
fn another_type_or_batch_on_one_pe_is_an_error_on_all() {
    let problem = Problem::random(2, sizes(), Mask::causal());
    let half = Problem::random(2, Sizes { dtype: DType::Bf16, ..sizes() }, Mask::causal());
    let batch = Problem::random(2, Sizes { batch: 2, ..sizes() }, Mask::causal());
    let options = Setting::new(4, Layout::Zigzag, 1).options_for(&[&problem, &half, &batch]).unwrap();
    for (other, words) in [(&half, ["`dtype`", "f32", "bf16"]), (&batch, ["`batch`", "1", "2"])] {
        let texts = errors(4, &options, |cp, me| call(cp, if me == 2 { other } else { &problem }).map(drop));
        all_name(&texts, &words);
    }
}

#[test]
fn other_lengths_on_one_pe_are_an_error_on_all() {
    let problem = Problem::random(3, sizes(), Mask::causal());
    let longer = Problem::random(3, Sizes { q_len: 62, kv_len: 62, ..sizes() }, Mask::causal());
    let options = Setting::new(3, Layout::Zigzag, 1).options_for(&[&problem, &longer]).unwrap();
    let texts = errors(3, &options, |cp, me| call(cp, if me == 1 { &longer } else { &problem }).map(drop));
    all_name(&texts, &["length", "60", "62"]);
}

#[test]
fn a_heap_that_is_too_small_is_named_with_both_sizes_on_all() {
    let problem = Problem::random(4, sizes(), Mask::causal());
    let mut options = Setting::new(3, Layout::Zigzag, 1).options_for(&[&problem]).unwrap();
    let needed = options.heap.publish;
    options.heap = HeapSize { publish: 64, ..options.heap };
    let texts = errors(3, &options, |cp, _| call(cp, &problem).map(drop));
    all_name(&texts, &[&needed.to_string(), "64", "publish slot", "HeapSize"]);
}

#[test]
fn rows_heads_and_scales_that_do_not_fit_are_named() {
    let problem = Problem::random(5, sizes(), Mask::causal());
    let options = Setting::new(2, Layout::Contiguous, 1).options_for(&[&problem]).unwrap();
    let rows = errors(2, &options, |cp, me| {
        let (q, kv) = cp.shards(1, &problem.attention)?;
        let (k, v) = (shard(&problem.k, &kv, me), shard(&problem.v, &kv, me));
        // All rows, where half of them are due.
        let _ = q;
        cp.forward(&problem.q.view(), &k.view(), &v.view(), &problem.attention).map(drop)
    });
    all_name(&rows, &["q has 60 rows", "holds 30"]);
    let odd = Problem::random(5, Sizes { q_heads: 10, kv_heads: 4, ..sizes() }, Mask::causal());
    let heads = errors(2, &options, |cp, me| {
        let (q, kv) = cp.shards(1, &odd.attention)?;
        let [k, v] = [&odd.k, &odd.v].map(|x| shard(x, &kv, me));
        cp.forward(&shard(&odd.q, &q, me).view(), &k.view(), &v.view(), &odd.attention).map(drop)
    });
    all_name(&heads, &["10", "4", "multiple"]);
    let scale = errors(2, &options, |cp, _| {
        let attention = problem.attention.clone().scale(f32::INFINITY);
        call(cp, &Problem { attention, ..problem.clone() }).map(drop)
    });
    all_name(&scale, &["scale", "inf", "finite"]);
}

#[test]
fn no_stages_and_too_little_memory_are_refused_when_planning() {
    let problem = Problem::random(6, sizes(), Mask::causal());
    let options = Setting::new(2, Layout::Zigzag, 0).options();
    let error = longreach::plan(2, &problem.attention, &problem.dims(), &options).unwrap_err().to_string();
    assert!(error.contains("stages is 0") && error.contains("at least 1"), "{error}");
    for stages in [Stages::Auto, Stages::Exactly(1)] {
        let options = Options { memory: Some(100), stages, ..Options::default() };
        let error =
            longreach::plan(2, &problem.attention, &problem.dims(), &options).unwrap_err().to_string();
        assert!(error.contains("100") && error.contains("are needed"), "{error}");
    }
}

#[test]
fn a_failed_world_stays_failed() {
    let world = World::threads(3).unwrap();
    let first =
        world.run(|pe| if pe.number() == 1 { Err(Error::Input("no more".to_owned())) } else { Ok(()) });
    assert_eq!(first.unwrap_err().to_string(), "no more");
    let second = world.run(|_| Ok::<_, Error>(())).unwrap_err().to_string();
    assert!(second.contains("PE 1 failed") && second.contains("no more"), "{second}");
}

#[test]
fn layouts_that_differ_far_behind_are_an_error_on_all() {
    let problem = Problem::random(8, Sizes { q_len: 256, kv_len: 256, ..sizes() }, Mask::causal());
    // Rows go to the two PEs in turn, 64 ranges each; the other layout swaps the last two of PE 1.
    let ranges = |pe: u64| (0..64u64).map(|i| i * 4 + 2 * pe..i * 4 + 2 * pe + 2).collect::<Vec<_>>();
    let straight = vec![ranges(0), ranges(1)];
    let mut swapped = straight.clone();
    swapped[1].swap(62, 63);
    let setting = |layout| Setting::new(2, Layout::Ranges(layout), 1);
    let texts = errors_on_all(2, |pe| {
        let layout = if pe.number() == 0 { &straight } else { &swapped };
        let options = setting(layout.clone()).options_for(&[&problem])?;
        call(&ContextParallel::new(&pe.team()?, &options)?, &problem).map(drop)
    });
    all_name(&texts, &["`layout`", "call differs"]);
}

#[test]
fn an_error_or_panic_with_queued_work_is_told_in_its_own_words() {
    let problem = Problem::random(9, sizes(), Mask::causal());
    let options = Setting::new(2, Layout::Zigzag, 1).options_for(&[&problem]).unwrap();
    for panics in [false, true] {
        let began = Instant::now();
        let texts = errors_on_all(2, |pe| {
            let cp = ContextParallel::new(&pe.team()?, &options)?;
            let (q, kv) = cp.shards(1, &problem.attention)?;
            let [k, v] = [&problem.k, &problem.v].map(|x| shard(x, &kv, pe.number()));
            let q = shard(&problem.q, &q, pe.number());
            if pe.number() == 0 {
                sleep(Duration::from_millis(300));
            }
            // PE 1 has queued work that waits for PE 0 when it gives up.
            let forward = cp.forward(&q.view(), &k.view(), &v.view(), &problem.attention)?;
            if pe.number() == 1 {
                assert!(!panics, "the disk is full");
                return Err(Error::Input("the disk is full".to_owned()));
            }
            forward.out.wait().map(drop)?;
            Ok(cp.team().barrier()?)
        });
        // A PE that panics has no error of its own to compare.
        let heard: Vec<&String> = texts.iter().filter(|text| !text.is_empty()).collect();
        assert!(!heard.is_empty() && heard.iter().all(|text| text.contains("the disk is full")), "{texts:?}");
        assert!(began.elapsed() < Duration::from_secs(10), "not at once: {:?}", began.elapsed());
    }
}

#[test]
fn a_panic_on_a_stream_is_the_failure_of_all_at_once() {
    let problem = Problem::random(10, sizes(), Mask::causal());
    let hook: Arc<Hook> = Arc::new(|_, stage| {
        assert!(stage != 1, "index 7 is out of range");
        Ok(())
    });
    let options = Setting::new(3, Layout::Contiguous, 1).options_for(&[&problem]).unwrap();
    let texts = errors_on_all(3, |pe| {
        let before_stage = (pe.number() == 2).then(|| StageHook(hook.clone()));
        let cp = ContextParallel::new(&pe.team()?, &Options { before_stage, ..options.clone() })?;
        call(&cp, &problem)?;
        Ok(cp.team().barrier()?)
    });
    all_name(&texts, &["index 7 is out of range"]);
}
