//! Suggestions for words that do not exist.

/// How near a word has to be, from 0 to 1.
const NEAR: f64 = 0.75;

/// The word of `known` that is nearest to `word`, if one is near.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, candidate)| {
            let longest = word.chars().count().max(candidate.chars().count()).max(1);
            1.0 - (*distance as f64) / (longest as f64) >= NEAR || (*distance <= 1 && longest > 2)
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_finger_are_seen_through() {
        let known = ["cache", "mode", "dirty_after", "ro"];
        assert_eq!(nearest("cahce", known), Some("cache"));
        assert_eq!(nearest("cach", known), Some("cache"));
        assert_eq!(nearest("dirtyafter", known), Some("dirty_after"));
        assert_eq!(nearest("frobnicate", known), None);
        assert_eq!(nearest("", known), None);
    }
}
