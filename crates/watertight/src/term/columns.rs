//! How many columns of a terminal a text takes: some letters take two, some none.

use unicode_width::UnicodeWidthChar as _;

fn of(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// How many columns it takes.
#[must_use]
pub fn width(text: &str) -> usize {
    text.chars().map(of).sum()
}

/// Its beginning, of so many columns at most.
#[must_use]
pub fn beginning(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let too_much = |c| {
        taken += of(c);
        taken > columns
    };
    let end = text.find(too_much).unwrap_or(text.len());
    &text[..end]
}

/// Its end, of so many columns at most.
#[must_use]
pub fn end(text: &str, columns: usize) -> &str {
    let mut taken = 0;
    let mut too_much = |c| {
        taken += of(c);
        taken > columns
    };
    let before = text.char_indices().rev().find(|(_, c)| too_much(*c));
    let from = before.map_or(0, |(at, c)| at + c.len_utf8());
    // Marks whose letter is left out go with it.
    if from == 0 { text } else { text[from..].trim_start_matches(|c| of(c) == 0) }
}

/// The text, with spaces behind it up to so many columns.
#[must_use]
pub fn padded(text: &str, columns: usize) -> String {
    format!("{text}{:1$}", "", columns.saturating_sub(width(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_letters_take_two_columns_and_marks_none() {
        assert_eq!(["", "a-é", "e\u{301}", "\u{6f22}\u{5b57}"].map(width), [0, 3, 1, 4]);
        let path = "/a/\u{6f22}\u{5b57}b";
        assert_eq!([2, 3, 4, 5, 6, 7, 8, 9].map(|n| width(beginning(path, n))), [2, 3, 3, 5, 5, 7, 8, 8]);
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 9].map(|n| width(end(path, n))), [0, 1, 1, 3, 3, 5, 6, 8]);
        assert_eq!((beginning(path, 9), end(path, 9)), (path, path));
        assert_eq!((padded("\u{6f22}", 4), padded("abc", 2)), ("\u{6f22}  ".to_owned(), "abc".to_owned()));
    }
}
