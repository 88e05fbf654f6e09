//! Gathering a value from each PE of a group: what every collective call is made of.

use crate::blame::{HOST, Node};
use crate::failure::{Error, Operation};
use crate::world::Shared;
use longreach_device::sync::{Mutex, lock};
use std::any::Any;
use std::sync::Arc;

/// The values of one collective call while they come in.
pub(crate) struct Gathering {
    values: Mutex<Values>,
}

struct Values {
    given: Vec<Option<Arc<dyn Any + Send + Sync>>>,
    taken: usize,
}

impl Shared {
    /// Gives `value` as member `rank` of `members` and returns all members' values in rank order. Every member
    /// calls it with the same `key`, and no key is used twice at a time.
    pub(crate) fn gather<T: Send + Sync + 'static>(
        &self,
        key: &str,
        members: &[usize],
        rank: usize,
        name: &'static str,
        value: T,
    ) -> Result<Vec<Arc<T>>, Error> {
        self.check()?;
        let gathering = lock(&self.gatherings)
            .entry(key.to_owned())
            .or_insert_with(|| {
                let given = vec![None; members.len()];
                Arc::new(Gathering {
                    values: Mutex::new(Values { given, taken: 0 }),
                })
            })
            .clone();
        lock(&gathering.values).given[rank] = Some(Arc::new(value));
        for &member in members {
            self.bells[member].ring();
        }
        for (other, &member) in members.iter().enumerate() {
            let target = Node {
                pe: member,
                stream: HOST.to_owned(),
            };
            self.wait(
                members[rank],
                HOST,
                &target,
                Operation::outside(name),
                || lock(&gathering.values).given[other].is_some(),
            )?;
        }
        let mut values = lock(&gathering.values);
        values.taken += 1;
        if values.taken == members.len() {
            lock(&self.gatherings).remove(key);
        }
        Ok(values
            .given
            .iter()
            .flatten()
            .map(|value| value.clone().downcast::<T>().expect("one key has one type"))
            .collect())
    }
}
