//! Bringing bytes of all PEs of a team to one of them.

use crate::error::Error;
use crate::team::Team;

/// Bytes of symmetric memory that a PE's part passes through, piece by piece.
const WINDOW: usize = 16 << 20;

impl Team {
    /// Brings the `bytes` of all members, of any lengths, to team rank `root`, which gets them in rank order; the
    /// others get nothing. Collective over the team; all give the same root.
    pub fn collect(&self, root: usize, bytes: &[u8]) -> Result<Option<Vec<Vec<u8>>>, Error> {
        self.world_rank(root)?;
        let lengths = self.gather("collect", bytes.len() as u64, None)?;
        let lengths: Vec<usize> = lengths.iter().map(|given| given.value as usize).collect();
        let largest = lengths.iter().copied().max().unwrap_or(0);
        let window = self.allocate(largest.min(WINDOW))?;
        let mut collected = vec![Vec::new(); if self.rank() == root { self.size() } else { 0 }];
        for from in (0..largest).step_by(WINDOW) {
            let piece = |len: usize| from.min(len)..(from + WINDOW).min(len);
            window.write(self.rank(), 0, &bytes[piece(bytes.len())])?;
            self.barrier()?;
            for (rank, part) in collected.iter_mut().enumerate() {
                let piece = piece(lengths[rank]);
                part.resize(piece.end, 0);
                window.read(rank, 0, &mut part[piece])?;
            }
            // The next piece may not overwrite this one before it has been read.
            self.barrier()?;
        }
        window.free()?;
        Ok((self.rank() == root).then_some(collected))
    }
}
