//! What plans need, and how many stages are chosen.

use longreach_plan::{Buffers, Error, Layout, Mask, Model, Plan, Request, Shape, choose_stages, simulate};

const SHAPE: Shape = Shape { q_heads: 8, kv_heads: 2, head_dim: 64, value_dim: 64, element_bytes: 2 };

fn request(stages: usize) -> Request {
    Request {
        batch: 1,
        q_len: 4096,
        kv_len: 4096,
        pes: 8,
        mask: Mask::causal(),
        layout: Layout::Zigzag,
        stages,
    }
}

#[test]
fn the_need_is_what_the_buffers_hold() {
    let plan = Plan::new(&request(7)).unwrap();
    let need = plan.need(&SHAPE, &Buffers::default()).unwrap();
    let row = 2 * 128;
    assert_eq!(need.publish_slot, 512 * row * 2 + 64);
    assert_eq!(need.fetch_slots, 2 * 512 * row * 2);
    assert_eq!(need.contribution, 512 * row * 4);
    assert_eq!(need.symmetric, 2 * need.publish_slot + 2 * need.contribution);
    assert_eq!(need.total, need.symmetric + need.fetch_slots + need.contribution_slots + need.state);
    let more = plan.need(&SHAPE, &Buffers { return_slots: 3, ..Buffers::default() }).unwrap();
    assert_eq!(more.total - need.total, need.contribution);
    let more = plan.need(&SHAPE, &Buffers { header: 100, scratch: 7000, ..Buffers::default() }).unwrap();
    assert_eq!((more.symmetric - need.symmetric, more.total - need.total), (200, 7200));
}

#[test]
fn nothing_is_published_where_nobody_reads() {
    let need = |pes, mask| {
        let plan = Plan::new(&Request { pes, mask, ..request(1) }).unwrap();
        plan.need(&SHAPE, &Buffers::default()).unwrap()
    };
    assert_eq!(need(1, Mask::causal()).symmetric, 0);
    assert!(need(2, Mask::causal()).symmetric > 0);
}

#[test]
fn more_stages_need_less_memory() {
    let need = |stages| Plan::new(&request(stages)).unwrap().need(&SHAPE, &Buffers::default()).unwrap().total;
    let needs: Vec<u64> = [1, 2, 4, 7, 14, 28].map(need).to_vec();
    // One stage takes one slot, more take two.
    assert!(needs[1..].windows(2).all(|pair| pair[1] < pair[0]), "{needs:?}");
    assert!(needs[5] < needs[0] / 2, "{needs:?}");
}

#[test]
fn stages_are_chosen_within_the_memory() {
    let choose = |memory| choose_stages(&request(1), &SHAPE, memory, &Buffers::default(), &Model::default());
    let (free, need) = choose(None).unwrap();
    assert_eq!(choose(Some(need.total)).unwrap().0.stages(), free.stages());
    let (tight, tight_need) = choose(Some(need.total * 2 / 3)).unwrap();
    assert!(tight.stages() > free.stages() && tight_need.total <= need.total * 2 / 3);
    match choose(Some(1000)) {
        Err(Error::Memory { smallest, stages, bound: 1000 }) => assert!(smallest > 1000 && stages > 7),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sizes_beyond_64_bits_are_an_error() {
    let huge = Shape { q_heads: 1 << 40, kv_heads: 1 << 40, head_dim: 1 << 40, ..SHAPE };
    let error = Plan::new(&request(1)).unwrap().need(&huge, &Buffers::default()).unwrap_err();
    assert!(error.to_string().contains("64 bits"), "{error}");
}

#[test]
fn the_simulation_adds_up() {
    let model = Model::default();
    let one = simulate(&Plan::new(&Request { pes: 1, ..request(1) }).unwrap(), &SHAPE, &model);
    assert_eq!((one.comm, one.exposed), (0.0, 0.0));
    assert_eq!(one.makespan, one.compute);
    let eight = simulate(&Plan::new(&request(7)).unwrap(), &SHAPE, &model);
    assert!(eight.makespan < one.makespan / 4.0 && eight.makespan >= eight.compute);
    // A link so slow that nothing hides it.
    let slow = simulate(&Plan::new(&request(7)).unwrap(), &SHAPE, &Model { bytes: 1e6, ..model });
    assert!(slow.exposed > 0.9 * slow.comm && slow.makespan >= slow.comm);
}
