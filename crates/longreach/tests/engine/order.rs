//! Several calls: whose results are whose, in what order, and that they repeat bit by bit.

use crate::harness::{Oracle, Part, Problem, Results, Setting, Sizes, assemble, call, run, shard};
use crate::transports::on_all;
use longreach::{ContextParallel, DType, Error, Layout, Mask, World};

fn sizes(q_heads: usize, kv_heads: usize) -> Sizes {
    Sizes {
        batch: 2,
        q_len: 130,
        kv_len: 130,
        q_heads,
        kv_heads,
        head_dim: 32,
        value_dim: 32,
        dtype: DType::F32,
    }
}

#[test]
fn b05_two_forwards_then_their_backwards_in_reverse_order() {
    let problems = [
        Problem::random(1, sizes(4, 4), Mask::causal()),
        Problem::random(2, sizes(4, 4), Mask::full()),
        Problem::random(3, sizes(4, 2), Mask::causal().window(Some(9), None)),
    ];
    let oracles = problems.each_ref().map(Oracle::new);
    for (pes, layout) in [(2, Layout::Zigzag), (4, Layout::Contiguous), (5, Layout::Striped { block: 1 })] {
        let setting = Setting::new(pes, layout, 2);
        let options = setting.options_for(&problems.each_ref()).unwrap();
        let parts = on_all(pes, |pe| {
            let cp = ContextParallel::new(&pe.team()?, &options)?;
            let me = pe.number();
            let mut forwards = Vec::new();
            // Nothing waits between these calls.
            for problem in &problems {
                let (q, kv) = cp.shards(problem.batch(), &problem.attention)?;
                let [q_rows, dout] = [&problem.q, &problem.dout].map(|x| shard(x, &q, me));
                let [k, v] = [&problem.k, &problem.v].map(|x| shard(x, &kv, me));
                forwards.push((cp.forward(&q_rows.view(), &k.view(), &v.view(), &problem.attention)?, dout));
            }
            let mut grads = Vec::new();
            for (forward, dout) in forwards.into_iter().rev() {
                let (out, lse, saved) = (forward.out, forward.lse, forward.saved);
                grads.push((out, lse, saved.backward(&dout.view())?));
            }
            let parts = grads.into_iter().rev().map(|(out, lse, grads)| {
                Ok(Part {
                    out: out.wait()?.clone(),
                    lse: lse.wait()?.clone(),
                    grads: [grads.dq.wait()?.clone(), grads.dk.wait()?.clone(), grads.dv.wait()?.clone()],
                })
            });
            parts.collect::<Result<Vec<_>, Error>>()
        });
        let mut parts: Vec<_> = parts.unwrap().into_iter().map(Vec::into_iter).collect();
        for (problem, oracle) in problems.iter().zip(&oracles) {
            let parts: Vec<Part> = parts.iter_mut().map(|parts| parts.next().unwrap()).collect();
            let failures = oracle.failures(&assemble(problem, &setting, &parts));
            assert!(failures.is_empty(), "{setting:?} {failures:#?}");
        }
    }
}

#[test]
fn b05_gradients_follow_remote_keys() {
    let problem = Problem::random(4, sizes(4, 4), Mask::full());
    let setting = Setting::new(4, Layout::Contiguous, 3);
    let shards = longreach::shards(4, 2, &problem.attention, &setting.options()).unwrap().1;
    let mut k = problem.k.as_f32().unwrap().to_vec();
    let own: Vec<usize> = shards.positions(0).collect();
    for (i, x) in k.iter_mut().enumerate() {
        if !own.contains(&(i / 128 % 130)) {
            *x = -*x;
        }
    }
    let other = Problem {
        k: crate::harness::tensor(k.into_iter(), DType::F32, problem.k.shape()),
        ..problem.clone()
    };
    let (a, b) = (run(&problem, &setting).unwrap(), run(&other, &setting).unwrap());
    let changed = (0..own.len() * 128).filter(|&i| a.dq[i] != b.dq[i]).count();
    assert!(changed > own.len() * 120, "{changed} elements of PE 0's dq changed");
    let failures = Oracle::new(&other).failures(&b);
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn b17_head_counts_leave_no_state_behind() {
    let problems =
        [(12, 12), (12, 3), (12, 12)].map(|(q, kv)| Problem::random(5, sizes(q, kv), Mask::causal()));
    let setting = Setting::new(3, Layout::Zigzag, 2);
    let options = setting.options_for(&problems.each_ref()).unwrap();
    let parts = on_all(3, |pe| {
        let cp = ContextParallel::new(&pe.team()?, &options)?;
        problems.iter().map(|problem| call(&cp, problem)).collect::<Result<Vec<_>, Error>>()
    });
    let mut parts: Vec<_> = parts.unwrap().into_iter().map(Vec::into_iter).collect();
    let results: Vec<Results> = problems
        .iter()
        .map(|problem| {
            let parts: Vec<Part> = parts.iter_mut().map(|parts| parts.next().unwrap()).collect();
            assemble(problem, &setting, &parts)
        })
        .collect();
    assert_eq!(results[0], results[2]);
    for (problem, results) in problems.iter().zip(&results) {
        assert!(Oracle::new(problem).failures(results).is_empty());
    }
}

#[test]
fn b17_query_heads_read_their_own_key_head() {
    for (q_heads, kv_heads) in [(28, 7), (8, 1), (6, 3), (12, 12), (40, 8)] {
        let group = q_heads / kv_heads;
        let sizes = Sizes { batch: 1, q_len: 33, kv_len: 33, ..sizes(q_heads, kv_heads) };
        let mut problem = Problem::random(6, sizes, Mask::causal());
        let zeros = |shape: [usize; 4]| {
            crate::harness::tensor((0..shape.iter().product()).map(|_| 0.0), DType::F32, shape)
        };
        (problem.q, problem.k) = (zeros(problem.q.shape()), zeros(problem.k.shape()));
        let v = problem.v.shape();
        let heads = (0..v.iter().product::<usize>()).map(|i| (i / v[3] % v[2]) as f32);
        problem.v = crate::harness::tensor(heads, DType::F32, v);
        let only = 1;
        let d = problem.dout.shape();
        let dout = (0..d.iter().product::<usize>()).map(|i| if i / d[3] % d[2] == only { 1.0 } else { 0.0 });
        problem.dout = crate::harness::tensor(dout, DType::F32, d);
        for pes in [2, 8] {
            let results = run(&problem, &Setting::new(pes, Layout::Zigzag, 2)).unwrap();
            for (i, &out) in results.out.iter().enumerate() {
                let head = (i / 32 % q_heads) / group;
                assert!((out - head as f32).abs() <= 2e-6 * head as f32, "head {head}: {out}");
            }
            for (i, &dv) in results.dv.iter().enumerate() {
                assert_eq!(dv != 0.0, i / 32 % kv_heads == only / group, "{q_heads}/{kv_heads} on {pes}");
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let problem = Problem::random(8, sizes(4, 2), Mask::causal());
    for (pes, layout) in [(1, Layout::Contiguous), (3, Layout::Zigzag)] {
        let one = Setting::new(pes, layout, 2);
        let expected = run(&problem, &one).unwrap();
        for threads in [2, 3] {
            assert_eq!(
                run(&problem, &Setting { threads, ..one.clone() }).unwrap(),
                expected,
                "{threads} threads"
            );
        }
    }
}

/// Symmetric memory that this process has mapped, and its descriptors; of use where a PE is a process.
fn symmetric_things() -> [usize; 2] {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let descriptors = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    [maps.matches("memfd:longreach").count(), descriptors]
}

#[test]
fn calls_after_the_first_allocate_no_symmetric_memory_and_start_nothing() {
    let problem = Problem::random(9, sizes(4, 2), Mask::causal());
    let options = Setting::new(3, Layout::Zigzag, 2).options_for(&[&problem]).unwrap();
    let tests = std::process::id();
    let results = on_all(3, |pe| {
        let cp = ContextParallel::new(&pe.team()?, &options)?;
        let mut counts = Vec::new();
        for _ in 0..6 {
            call(&cp, &problem)?;
            counts.push(symmetric_things());
        }
        // On threads other PEs count at the same time, with descriptors of the same process.
        if std::process::id() != tests {
            let [mappings, _] = counts[0];
            assert!(mappings > 3 && counts.iter().all(|count| *count == counts[0]), "{counts:?}");
        }
        assert_eq!(cp.heap_bytes() % 64, 0);
        Ok(())
    });
    assert_eq!(results.unwrap().len(), 3);
}

/// PE 0 is done early and waits for gradients of PE 1, whose one tile takes several deadlines: a PE that computes is not
/// one that stalls.
#[test]
fn a_tile_may_take_longer_than_the_deadline() {
    let len = 6144;
    let sizes = Sizes {
        batch: 1,
        q_len: len,
        kv_len: len,
        q_heads: 4,
        kv_heads: 4,
        head_dim: 64,
        value_dim: 64,
        dtype: DType::F32,
    };
    let problem = Problem::random(21, sizes, Mask::causal());
    let setting = Setting::new(2, Layout::Contiguous, 1);
    let options = setting.options_for(&[&problem]).unwrap();
    let timed = |deadline| {
        let times = World::threads(2).unwrap().with_deadline(deadline).run(|pe| {
            let cp = ContextParallel::new(&pe.team()?, &options)?;
            let begin = std::time::Instant::now();
            call(&cp, &problem)?;
            Ok::<_, longreach::Error>(begin.elapsed())
        });
        times.map(|times| times.into_iter().max().unwrap())
    };
    let usual = timed(std::time::Duration::from_secs(60)).unwrap();
    // Blocks of rows and keys, after which a kernel tells that it gets on, take milliseconds.
    let deadline = (usual / 8).max(std::time::Duration::from_millis(100));
    if usual < 3 * deadline {
        eprintln!("SKIPPED a_tile_may_take_longer_than_the_deadline: {usual:?} is over too soon");
        return;
    }
    timed(deadline).unwrap();
}
