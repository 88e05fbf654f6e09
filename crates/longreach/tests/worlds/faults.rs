//! Each wait of the protocol, taken out: the model must notice.

use crate::explore::{fails, right};
use crate::model::{Model, Order};
use longreach::{Layout, Mask};

/// Many more than it takes to find any of these.
const SCHEDULES: usize = 1000;

/// What is found when a wait is left out of a model that is right with it.
fn found(model: Model, wait: &'static [&'static str]) -> String {
    assert_eq!(right(SCHEDULES / 10, model.clone(), &[]), Ok(()));
    right(SCHEDULES, model, wait).expect_err("the wait is missing")
}

#[test]
fn without_the_wait_for_published_an_empty_publication_is_read() {
    let found = found(Model::new(3, 2, Order::Once), &["get on comm"]);
    // Its description too may be half there.
    let noticed = [": its call differs", "publication has epoch 0"];
    assert!(noticed.iter().any(|words| found.contains(words)), "{found}");
}

/// PEs that compare every call with all others know from the call before that a slot has been read. A PE that does
/// not has nothing but `consumed`: here PE 0, which fetches from nobody and is read by all.
#[test]
fn without_the_wait_for_consumed_a_publication_is_overwritten() {
    let model = Model {
        mask: Mask::causal(),
        layout: Layout::Contiguous,
        slow: vec![2],
        ..Model::new(3, 2, Order::BackToBack)
    };
    assert_eq!(right(SCHEDULES, model.clone(), &["agreement with all"]), Ok(()));
    let found = found(model, &["agreement with all", "publish on comm"]);
    // The next call's rows come first, its description behind them.
    let noticed = ["of call 0 differs", ": its call differs"];
    assert!(noticed.iter().any(|words| found.contains(words)), "{found}");
}

#[test]
fn without_the_wait_for_a_grant_contributions_overwrite_each_other() {
    let found = found(Model::new(3, 1, Order::Once), &["gradient return on return"]);
    assert!(found.contains("dk of call 0 differs"), "{found}");
}

#[test]
fn without_the_wait_for_arrival_a_contribution_is_missing() {
    let found = found(Model::new(3, 2, Order::Once), &["gradient return on add"]);
    assert!(found.contains("dk of call 0 differs"), "{found}");
}

#[test]
fn without_the_producers_event_rows_are_read_before_they_are_there() {
    let found = found(Model::new(3, 2, Order::Once), &["arrival"]);
    assert!(found.contains("of call 0 differs"), "{found}");
}

#[test]
fn without_the_readers_events_a_slot_is_refilled_under_them() {
    // Two slots for three fetched stages: one of them is filled twice.
    let found = found(Model::new(4, 2, Order::Once), &["readers"]);
    assert!(found.contains("of call 0 differs"), "{found}");
}

#[test]
fn without_the_agreement_another_scale_goes_unnoticed() {
    let model = Model { differs: Some(2), ..Model::new(3, 2, Order::Once) };
    let found = fails(SCHEDULES, model, "`scale`", &["agreement"]);
    assert_eq!(found, Err("no PE failed".to_owned()));
}
