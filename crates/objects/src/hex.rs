//! Bytes as hexadecimal digits.

/// The digits of `bytes`.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fills `bytes` from `digits`; whether these are digits, and as many as it takes.
#[must_use]
pub(crate) fn decode(digits: &[u8], bytes: &mut [u8]) -> bool {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, odd) = digits.as_chunks::<2>();
    odd.is_empty()
        && pairs.len() == bytes.len()
        && pairs.iter().zip(bytes).all(|([high, low], byte)| match (digit(*high), digit(*low)) {
            (Some(high), Some(low)) => {
                *byte = high << 4 | low;
                true
            }
            _ => false,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_bytes_and_nothing_else_is() {
        let mut bytes = [0; 3];
        assert!(decode(b"00fFa7", &mut bytes));
        assert_eq!((bytes, encode(&bytes).as_str()), ([0, 0xff, 0xa7], "00ffa7"));
        for wrong in
            [b"00ff".as_slice(), b"00ffa", b"00ffa7a", b"00ffa7a7", b"00ffg7", b"+0ff00", b"00f\xc3\xa47"]
        {
            assert!(!decode(wrong, &mut bytes), "{wrong:?}");
        }
    }
}
