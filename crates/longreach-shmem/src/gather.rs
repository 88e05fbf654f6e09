//! Gathering a value from each PE of a group: what every collective call is made of.

use crate::blame::Node;
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
    given: Vec<Option<Given>>,
    taken: usize,
}

/// What a member gave, and in which collective call.
#[derive(Clone)]
struct Given {
    call: &'static str,
    value: Arc<dyn Any + Send + Sync>,
}

/// A collective call of one member of a group.
pub(crate) struct Collective<'a> {
    /// Tells gatherings apart: the same on all members, and not used twice at a time.
    pub(crate) key: &'a str,
    /// The world's numbers of the members.
    pub(crate) members: &'a [usize],
    /// Which of them this PE is.
    pub(crate) rank: usize,
    /// The stream that waits for the others, of the same name on all members.
    pub(crate) stream: &'a str,
    /// The call in words.
    pub(crate) name: &'static str,
}

impl Shared {
    /// Gives `value` and returns all members' values in rank order. Fails on every member when they are not in
    /// the same collective call.
    pub(crate) fn gather<T: Send + Sync + 'static>(
        &self,
        collective: &Collective,
        value: T,
    ) -> Result<Vec<Arc<T>>, Error> {
        let Collective { key, members, rank, stream, name } = *collective;
        self.check()?;
        let gathering = lock(&self.gatherings)
            .entry(key.to_owned())
            .or_insert_with(|| {
                let given = vec![None; members.len()];
                Arc::new(Gathering { values: Mutex::new(Values { given, taken: 0 }) })
            })
            .clone();
        lock(&gathering.values).given[rank] = Some(Given { call: name, value: Arc::new(value) });
        for &member in members {
            self.bells[member].ring();
        }
        for (other, &member) in members.iter().enumerate() {
            let target = Node { pe: member, stream: stream.to_owned() };
            self.wait(members[rank], stream, &target, Operation::outside(name), || {
                lock(&gathering.values).given[other].is_some()
            })?;
        }
        let mut values = lock(&gathering.values);
        values.taken += 1;
        if values.taken == members.len() {
            lock(&self.gatherings).remove(key);
        }
        let given: Vec<Given> = values.given.iter().flatten().cloned().collect();
        // The same pair on every member: the first one, and the first that is in another call.
        if let Some(second) = given.iter().position(|other| other.call != given[0].call) {
            return Err(Error::OutOfStep {
                first: 0,
                first_call: given[0].call,
                second,
                second_call: given[second].call,
            });
        }
        Ok(given.into_iter().map(|given| given.value.downcast::<T>().expect("a call has one type")).collect())
    }
}
