//! Pages that chosen blocks lie in.

use brigade_kernels::NO_BLOCK;
use brigade_kernels::inner::{SeenPage, seen_pages};

fn pages(positions: usize, blocks: &[u32], end: usize) -> Vec<(usize, u64)> {
    let mut pages = vec![SeenPage::whole(9)];
    seen_pages(positions, blocks, end, &mut pages);
    assert_eq!(pages.remove(0), SeenPage::whole(9));
    pages.into_iter().map(|seen| (seen.page, seen.positions)).collect()
}

#[test]
fn pages_hold_the_positions_of_their_blocks() {
    let all = u64::MAX;
    assert_eq!(pages(64, &[0, 2], 1000), [(0, all), (2, all)]);
    assert_eq!(pages(128, &[1, 3], 1000), [(2, all), (3, all), (6, all), (7, all)]);
    assert_eq!(pages(8, &[0, 1, 7, 9], 1000), [(0, 0xff00_0000_0000_ffff), (1, 0xff00)]);
    // Blocks over the ends of pages, two of them in one page.
    assert_eq!(pages(48, &[1, 2], 1000), [(0, all << 48), (1, all), (2, 0xffff)]);
}

#[test]
fn nothing_is_read_behind_the_last_block() {
    assert_eq!(pages(8, &[1, NO_BLOCK, NO_BLOCK], 1000), [(0, 0xff00)]);
}

#[test]
fn the_last_block_ends_with_its_row() {
    assert_eq!(pages(128, &[0, 1], 130), [(0, u64::MAX), (1, u64::MAX), (2, 3)]);
    assert_eq!(pages(128, &[1], 192), [(2, u64::MAX)]);
    assert_eq!(pages(8, &[3], 25), [(0, 1 << 24)]);
}
