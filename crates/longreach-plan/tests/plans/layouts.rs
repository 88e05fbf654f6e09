//! Who holds what.

use longreach_plan::{Documents, Layout};
use std::ops::Range;

fn documents(bounds: &[u64]) -> Vec<Range<u64>> {
    Documents::cu_seqlens(bounds).resolve("documents", bounds[bounds.len() - 1]).unwrap()
}

#[test]
fn b15_ownership_and_positions_within_documents() {
    let docs = documents(&[0, 4, 8]);
    let shards = Layout::Zigzag.shard(8, 2, &docs).unwrap();
    let positions = |pe| shards.positions(pe).collect::<Vec<_>>();
    let within = |pe| shards.positions_in_documents(pe, &docs).collect::<Vec<_>>();
    assert_eq!((positions(0), within(0)), (vec![0, 3, 4, 7], vec![0, 3, 0, 3]));
    assert_eq!((positions(1), within(1)), (vec![1, 2, 5, 6], vec![1, 2, 1, 2]));
}

#[test]
fn b15_every_token_of_any_documents_is_held_once_and_knows_its_place() {
    for lengths in [&[4u64, 4][..], &[5, 11, 0, 48]] {
        let mut bounds = vec![0];
        bounds.extend(lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        }));
        let docs = documents(&bounds);
        let total = *bounds.last().unwrap();
        for pes in [2, 3] {
            let shards = Layout::Zigzag.shard(total as usize, pes, &docs).unwrap();
            let mut held = Vec::new();
            for pe in 0..pes {
                let places: Vec<_> = shards.positions_in_documents(pe, &docs).collect();
                held.extend(shards.positions(pe).zip(places));
            }
            held.sort_unstable();
            let expected: Vec<_> = docs
                .iter()
                .flat_map(|doc| doc.clone().map(move |token| (token as usize, (token - doc.start) as usize)))
                .collect();
            assert_eq!(held, expected, "{lengths:?} on {pes}");
        }
    }
}

#[test]
fn b31_no_token_is_lost_whatever_the_length() {
    for pes in [1, 2, 3, 4, 5, 7, 8, 30] {
        for len in [0, 1, 2, 7, 10, 64, 2999] {
            for layout in [
                Layout::Zigzag,
                Layout::Contiguous,
                Layout::Striped { block: 1 },
                Layout::Striped { block: 5 },
            ] {
                let shards = layout.shard(len, pes, &[]).unwrap();
                let mut all: Vec<usize> = (0..pes).flat_map(|pe| shards.positions(pe)).collect();
                all.sort_unstable();
                assert_eq!(all, (0..len).collect::<Vec<_>>(), "{layout} {pes} {len}");
                for token in (0..len).step_by(13) {
                    let (pe, place) = shards.owner(token).unwrap();
                    assert_eq!(shards.positions(pe).nth(place), Some(token));
                }
                assert_eq!(shards.owner(len), None);
            }
        }
    }
    let contiguous = Layout::Contiguous.shard(2999, 4, &[]).unwrap();
    assert_eq!((0..4).map(|pe| contiguous.len(pe)).collect::<Vec<_>>(), [750, 750, 750, 749]);
}

#[test]
fn many_short_documents_still_balance() {
    for lengths in [&[1u64; 40][..], &[3; 21], &[1, 5, 2, 9, 1, 1, 30, 2, 2]] {
        let mut bounds = vec![0];
        for len in lengths {
            bounds.push(bounds[bounds.len() - 1] + len);
        }
        let total = bounds[bounds.len() - 1] as usize;
        for pes in [2, 3, 4, 7] {
            let shards = Layout::Zigzag.shard(total, pes, &documents(&bounds)).unwrap();
            let sizes: Vec<usize> = (0..pes).map(|pe| shards.len(pe)).collect();
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 2, "{sizes:?}");
        }
    }
}

#[test]
fn layouts_are_read_as_they_are_printed() {
    for text in ["zigzag", "contiguous", "striped", "striped:64"] {
        assert_eq!(text.parse::<Layout>().unwrap().to_string(), text);
    }
    assert_eq!("striped:1".parse::<Layout>().unwrap(), Layout::Striped { block: 1 });
    for text in ["", "zigzag:2", "striped:0", "striped:", "striped:x", "ring", "Zigzag"] {
        let error = text.parse::<Layout>().unwrap_err().to_string();
        assert!(error.contains("is not a layout") && error.contains("zigzag, contiguous"), "{error}");
    }
}
