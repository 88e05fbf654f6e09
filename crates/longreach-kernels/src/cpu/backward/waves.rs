//! Which tiles of a backward run side by side, and in which pieces.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cpu::{KEYS, ROWS};
use crate::shapes::Shapes;
use crate::tile::{Gather, Tile, seeing_rows};

/// A block of keys of a tile, for one batch entry and key head.
#[derive(Clone, Debug)]
pub(crate) struct Item<'a> {
    pub tile: &'a Tile<'a>,
    pub gather: &'a Gather<'a>,
    pub batch: usize,
    pub kv_head: usize,
    /// Index of the block of keys, from the tile's first gathered key.
    pub block: usize,
    /// Where the turns of this tile, batch entry and key head begin; one for each block of rows.
    pub turns: usize,
}

/// The items of a wave in the order in which they are claimed, and the first block of keys of each turn.
#[derive(Debug)]
pub(crate) struct Wave<'a> {
    pub items: Vec<Item<'a>>,
    pub turns: Vec<usize>,
}

/// Consecutive tiles that share neither query rows nor key rows.
#[derive(Debug)]
pub(crate) struct Tiles<'a> {
    tiles: Vec<(&'a Tile<'a>, Gather<'a>)>,
}

/// Cuts the tiles, in order, into waves that run one after another.
pub(crate) fn waves<'a>(tiles: &'a [Tile<'a>]) -> Vec<Tiles<'a>> {
    let mut waves: Vec<Tiles> = Vec::new();
    let (mut q_rows, mut kv_rows) = (Intervals::default(), Intervals::default());
    for tile in tiles {
        let clash = q_rows.touches(&tile.q) || tile.kv.iter().any(|range| kv_rows.touches(range));
        if clash || waves.is_empty() {
            waves.push(Tiles { tiles: Vec::new() });
            (q_rows, kv_rows) = Default::default();
        }
        q_rows.add(&tile.q);
        tile.kv.iter().for_each(|range| kv_rows.add(range));
        let wave = waves.last_mut().expect("a wave was pushed when there was none");
        wave.tiles.push((tile, Gather::new(tile.kv)));
    }
    waves
}

impl<'a> Tiles<'a> {
    /// The wave's items: ascending blocks of keys, so that an item waits for claimed ones only.
    pub(crate) fn items(&'a self, shapes: &Shapes) -> Wave<'a> {
        let mut wave = Wave { items: Vec::new(), turns: Vec::new() };
        for (tile, gather) in &self.tiles {
            let (rows, keys) = (tile.q.len() as i64, gather.keys() as i64);
            let blocks = gather.keys().div_ceil(KEYS);
            // The first block of keys that each block of rows sees; blocks that see none are never asked.
            let first: Vec<usize> = (0..tile.q.len())
                .step_by(ROWS)
                .map(|from| {
                    let block = from as i64..rows.min((from + ROWS) as i64);
                    let seeing = seeing_rows(tile.band, block, 0..keys);
                    if seeing.is_empty() {
                        return 0;
                    }
                    tile.band.lo.at(seeing.start).max(0) as usize / KEYS
                })
                .collect();
            let starts = wave.turns.len();
            for _ in 0..tile.batch.len() * shapes.kv_heads {
                wave.turns.extend_from_slice(&first);
            }
            for block in 0..blocks {
                let keys = (block * KEYS) as i64..keys.min(((block + 1) * KEYS) as i64);
                if seeing_rows(tile.band, 0..rows, keys).is_empty() {
                    continue;
                }
                for (entry, batch) in tile.batch.clone().enumerate() {
                    for kv_head in 0..shapes.kv_heads {
                        let turns = starts + (entry * shapes.kv_heads + kv_head) * first.len();
                        wave.items.push(Item { tile, gather, batch, kv_head, block, turns });
                    }
                }
            }
        }
        wave
    }
}

/// Disjoint intervals, by their starts.
#[derive(Default)]
struct Intervals(BTreeMap<usize, usize>);

impl Intervals {
    fn touches(&self, range: &Range<usize>) -> bool {
        !range.is_empty() && self.0.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    fn add(&mut self, range: &Range<usize>) {
        if !range.is_empty() {
            self.0.insert(range.start, range.end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longreach_plan::{Band, Edge};

    #[test]
    #[allow(clippy::single_range_in_vec_init)] // A list of key ranges often has one.
    fn only_disjoint_tiles_share_a_wave() {
        let band = Band { q: 0..10, lo: Edge::Fixed(0), hi: Edge::Fixed(10) };
        let tile = |q, kv| Tile { batch: 0..1, q, kv, band: &band };
        let tiles = [
            tile(0..4, &[0..4]),
            tile(4..6, &[4..6, 8..9]),
            tile(6..7, &[6..8, 9..10]),
            tile(7..8, &[8..9]), // Shares a key row with the second.
            tile(7..9, &[0..1]), // Shares a query row with the one before.
        ];
        let sizes: Vec<usize> = waves(&tiles).iter().map(|wave| wave.tiles.len()).collect();
        assert_eq!(sizes, [3, 1, 1]);
    }
}
