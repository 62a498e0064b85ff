//! What files are made of: units of 504 bytes, each of which says by which write it was made, and
//! is otherwise determined by that and by its place. So a unit of another file, of another place, of
//! an older write, or torn, is seen as what it is. Units are on no boundary of pages or blocks.

use crate::random::Random;

/// Bytes of a unit.
pub(super) const UNIT: usize = 504;

/// Which write made a unit; 0 is a hole. Stamps of a worker grow.
pub(super) type Stamp = u64;

/// The bytes of units from `place` on.
pub(super) fn bytes_of(stamps: &[Stamp], place: usize) -> Vec<u8> {
    let mut bytes = vec![0; stamps.len() * UNIT];
    for ((unit, stamp), place) in bytes.chunks_exact_mut(UNIT).zip(stamps).zip(place..) {
        fill(unit, *stamp, place);
    }
    bytes
}

/// Fills the unit, or the beginning of it.
fn fill(unit: &mut [u8], stamp: Stamp, place: usize) {
    if stamp == 0 {
        return unit.fill(0);
    }
    let mut whole = [0; UNIT];
    whole[..8].copy_from_slice(&stamp.to_le_bytes());
    Random::new(stamp.rotate_left(24) ^ place as u64).fill(&mut whole[8..]);
    unit.copy_from_slice(&whole[..unit.len()]);
}

/// The stamp that a whole unit has, if it is as that write made it.
pub(super) fn stamp_of(unit: &[u8], place: usize) -> Option<Stamp> {
    let stamp = Stamp::from_le_bytes(unit.get(..8)?.try_into().ok()?);
    is_of(unit, stamp, place).then_some(stamp)
}

/// Whether the unit, or the beginning of it, is as that write made it.
pub(super) fn is_of(unit: &[u8], stamp: Stamp, place: usize) -> bool {
    let mut expected = [0; UNIT];
    let expected = &mut expected[..unit.len()];
    fill(expected, stamp, place);
    unit == expected
}

/// Whether each byte of the unit is one that some of these writes put there.
pub(super) fn is_torn_of(unit: &[u8], stamps: &[Stamp], place: usize) -> bool {
    let mut explained = vec![false; unit.len()];
    let mut made = [0; UNIT];
    for stamp in stamps {
        let made = &mut made[..unit.len()];
        fill(made, *stamp, place);
        for ((explained, made), found) in explained.iter_mut().zip(&*made).zip(unit) {
            *explained |= made == found;
        }
    }
    explained.iter().all(|explained| *explained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_of_one_write_and_one_place() {
        let bytes = bytes_of(&[5, 0, 6], 10);
        let unit = |at: usize| &bytes[at * UNIT..(at + 1) * UNIT];
        assert_eq!(
            (stamp_of(unit(0), 10), stamp_of(unit(1), 11), stamp_of(unit(2), 12)),
            (Some(5), Some(0), Some(6))
        );
        assert_eq!((stamp_of(unit(0), 11), stamp_of(unit(2), 10)), (None, None));
        let mut torn = unit(0)[..100].to_vec();
        torn.extend_from_slice(&bytes_of(&[9], 10)[100..]);
        assert_eq!(stamp_of(&torn, 10), None);
        assert!(is_torn_of(&torn, &[5, 9], 10) && !is_torn_of(&torn, &[5, 8], 10));
        assert!(is_of(&torn[..100], 5, 10) && !is_of(&torn[..101], 5, 10));
    }
}
