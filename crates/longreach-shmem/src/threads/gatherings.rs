//! The values of collective calls while they come in.

use crate::gather::{Collective, Given};
use longreach_device::sync::{Mutex, lock};
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Gatherings(Mutex<HashMap<String, Gathering>>);

struct Gathering {
    given: Vec<Option<Given>>,
    taken: usize,
}

impl Gatherings {
    pub(super) fn give(&self, collective: &Collective, given: Given) {
        let mut gatherings = lock(&self.0);
        let gathering = gatherings
            .entry(collective.key.to_owned())
            .or_insert_with(|| Gathering { given: vec![None; collective.members.len()], taken: 0 });
        gathering.given[collective.rank] = Some(given);
    }

    pub(super) fn has_given(&self, collective: &Collective, rank: usize) -> bool {
        lock(&self.0).get(collective.key).is_some_and(|gathering| gathering.given[rank].is_some())
    }

    pub(super) fn take(&self, collective: &Collective) -> Vec<Given> {
        let mut gatherings = lock(&self.0);
        let Some(gathering) = gatherings.get_mut(collective.key) else {
            return Vec::new();
        };
        let given = gathering.given.iter().flatten().cloned().collect();
        gathering.taken += 1;
        if gathering.taken == collective.members.len() {
            gatherings.remove(collective.key);
        }
        given
    }
}
