//! Which mutants a campaign is about.

use super::proofs::{Mutant, Proofs};

/// Those that a name means, itself or as the beginning of others; all, if none is given. Of these
/// `sample`, evenly over the list: `seed` says where the first one is.
///
/// # Errors
/// If a name means none, in words.
pub(super) fn chosen<'p>(
    proofs: &'p Proofs,
    names: &[String],
    sample: Option<u16>,
    seed: u64,
) -> Result<Vec<&'p Mutant>, String> {
    for name in names {
        if !proofs.mutants.iter().any(|mutant| mutant.name.starts_with(name)) {
            return Err(format!("no mutant is named `{name}`, or begins so; `lab mutants` lists them"));
        }
    }
    let is_chosen =
        |mutant: &&Mutant| names.is_empty() || names.iter().any(|name| mutant.name.starts_with(name));
    let all: Vec<&Mutant> = proofs.mutants.iter().filter(is_chosen).collect();
    Ok(match sample {
        Some(sample) if usize::from(sample) < all.len() => evenly(&all, usize::from(sample), seed),
        _ => all,
    })
}

/// One of each of `sample` parts that are as long as each other, all at the same place in theirs.
fn evenly<T: Copy>(all: &[T], sample: usize, seed: u64) -> Vec<T> {
    // So that neighbouring seeds choose places far apart.
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let at = |part: usize| {
        let place = ((part as u128) << 32) + u128::from(mixed);
        usize::try_from((place * all.len() as u128 / sample as u128) >> 32).unwrap_or_default()
    };
    (0..sample).filter_map(|part| all.get(at(part)).copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_even_and_its_seed_decides() {
        let all: Vec<usize> = (0..166).collect();
        let sample = evenly(&all, 5, 1);
        assert_eq!(sample, evenly(&all, 5, 1));
        assert_ne!(sample, evenly(&all, 5, 2));
        assert!(sample.windows(2).all(|pair| (33..=34).contains(&(pair[1] - pair[0]))), "{sample:?}");
        let mut seen: Vec<usize> = (0..500).flat_map(|seed| evenly(&all, 5, seed)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, all, "some are never chosen");
    }
}
