//! Gathering a value from each PE of a group: what every collective call is made of.

use crate::blame::Node;
use crate::error::Error;
use crate::failure::Operation;
use crate::region::Part;
use crate::world::Shared;

/// What a member gives in a collective call.
#[derive(Clone)]
pub(crate) struct Given {
    /// The call in words.
    pub(crate) call: &'static str,
    pub(crate) value: u64,
    pub(crate) part: Option<Part>,
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
    /// Gives `value` and `part` and returns what all members gave, in rank order. Fails on every member when they are
    /// not in the same collective call.
    pub(crate) fn gather(
        &self,
        collective: &Collective,
        value: u64,
        part: Option<Part>,
    ) -> Result<Vec<Given>, Error> {
        let Collective { members, rank, stream, name, .. } = *collective;
        self.check()?;
        self.transport.give(collective, Given { call: name, value, part });
        for (other, &member) in members.iter().enumerate() {
            let target = Node { pe: member, stream: stream.to_owned() };
            let given = |rank| self.transport.has_given(collective, rank);
            let waited = self.wait(members[rank], stream, &target, Operation::outside(name), || given(other));
            // A member that fails because of what was given here may do so before the others have looked: they find
            // it out themselves, in the same words.
            if waited.is_err() && !(0..members.len()).all(given) {
                return waited.map(|()| Vec::new());
            }
        }
        let given = self.transport.take(collective);
        // The same pair on every member: the first one, and the first that is in another call.
        match given.iter().position(|other| other.call != given[0].call) {
            None => Ok(given),
            Some(second) => Err(Error::OutOfStep {
                first: 0,
                first_call: given[0].call,
                second,
                second_call: given[second].call,
            }),
        }
    }
}
