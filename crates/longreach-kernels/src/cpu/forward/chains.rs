//! Blocks of query rows that must run one after another.

use std::ops::Range;

use crate::cpu::ROWS;
use crate::tile::Tile;

/// Some rows of a tile, counted from the tile's first.
#[derive(Debug)]
pub(crate) struct Block {
    /// Index of the tile.
    pub tile: usize,
    pub rows: Range<usize>,
}

/// Cuts each tile into blocks of [`ROWS`] rows from its own first row, and chains blocks that share query
/// rows, in tile order: a chain owns its rows.
///
/// Blocks depend on their tile only, so that cutting a sequence of tiles into calls changes no bit.
pub(crate) fn chains(tiles: &[Tile]) -> Vec<Vec<Block>> {
    let mut blocks: Vec<(Range<usize>, Block)> = Vec::new();
    for (index, tile) in tiles.iter().enumerate() {
        for first in (0..tile.q.len()).step_by(ROWS) {
            let rows = first..tile.q.len().min(first + ROWS);
            let global = tile.q.start + rows.start..tile.q.start + rows.end;
            blocks.push((global, Block { tile: index, rows }));
        }
    }
    blocks.sort_by_key(|(global, block)| (global.start, block.tile));
    let mut chains: Vec<Vec<Block>> = Vec::new();
    let mut end = 0;
    for (global, block) in blocks {
        match chains.last_mut() {
            Some(chain) if global.start < end => chain.push(block),
            _ => chains.push(vec![block]),
        }
        end = end.max(global.end);
    }
    for chain in &mut chains {
        chain.sort_by_key(|block| (block.tile, block.rows.start));
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;
    use longreach_plan::{Band, Edge};

    #[test]
    fn chains_own_their_rows_and_keep_tile_order() {
        let band = Band { q: 0..1000, lo: Edge::Fixed(0), hi: Edge::Fixed(1) };
        let tile = |q| Tile { batch: 0..1, q, kv: &[], band: &band };
        let tiles = [tile(0..300), tile(100..130), tile(0..300), tile(300..301), tile(5..5)];
        let chains = chains(&tiles);
        let rows = |chain: &[Block]| -> Vec<(usize, Range<usize>)> {
            chain.iter().map(|block| (block.tile, block.rows.clone())).collect()
        };
        assert_eq!(chains.len(), 3);
        assert_eq!(rows(&chains[0]), [(0, 0..128), (0, 128..256), (1, 0..30), (2, 0..128), (2, 128..256)]);
        assert_eq!(rows(&chains[1]), [(0, 256..300), (2, 256..300)]);
        assert_eq!(rows(&chains[2]), [(3, 0..1)]);
    }
}
