//! Plans as text and as data.

use longreach_plan::{Documents, Layout, Mask, Plan, Request};

fn plan(pes: usize, len: usize, mask: Mask, layout: Layout, stages: usize) -> Plan {
    Plan::new(&Request { batch: 1, q_len: len, kv_len: len, pes, mask, layout, stages }).unwrap()
}

#[test]
fn zigzag_causal() {
    insta::assert_snapshot!(plan(2, 16, Mask::causal(), Layout::Zigzag, 1).to_string());
}

#[test]
fn contiguous_window() {
    insta::assert_snapshot!(
        plan(3, 18, Mask::causal().window(Some(7), None), Layout::Contiguous, 2).to_string()
    );
}

#[test]
fn striped_causal() {
    insta::assert_snapshot!(plan(2, 12, Mask::causal(), Layout::Striped { block: 1 }, 1).to_string());
}

#[test]
fn packed_zigzag() {
    let documents = vec![Documents::ranges([0..9, 11..20])];
    insta::assert_snapshot!(plan(2, 20, Mask::causal().documents(documents), Layout::Zigzag, 1).to_string());
}

#[test]
fn a_plan_survives_its_serialisation() {
    let plan = plan(3, 50, Mask::sink_window(2, 9), Layout::Zigzag, 2);
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
}
