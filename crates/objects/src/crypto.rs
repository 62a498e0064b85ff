//! Keys, and encryption of one piece of data: XChaCha20-Poly1305.
//!
//! A sealed piece is `nonce (24 bytes) | ciphertext | tag (16 bytes)`. The nonce is random: of 192
//! bits, so that one key serves for more pieces than anybody can write.

use std::fmt;

use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{AeadInOut as _, KeyInit as _, XChaCha20Poly1305};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroizing;

/// Bytes of a key.
pub(crate) const KEY_LEN: usize = 32;
/// Bytes of a nonce.
pub(crate) const NONCE_LEN: usize = 24;
/// Bytes of a tag.
const TAG_LEN: usize = 16;
/// Bytes that a sealed piece has in addition to the plain one.
pub(crate) const OVERHEAD: usize = NONCE_LEN + TAG_LEN;

/// The bytes of a key: in one place on the heap, cleared when they are dropped.
pub(crate) type KeyBytes = Box<Zeroizing<[u8; KEY_LEN]>>;

/// The key that a volume's data is encrypted with.
#[derive(Clone)]
pub struct DataKey(pub(crate) KeyBytes);

impl DataKey {
    /// A new key, from the kernel's random numbers.
    #[must_use]
    pub fn random() -> Self {
        let mut key = KeyBytes::default();
        random(key.as_mut_slice());
        Self(key)
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey")
    }
}

/// The key of the user, which encrypts data keys and nothing else.
#[derive(Clone)]
pub struct UserKey(pub(crate) KeyBytes);

impl fmt::Debug for UserKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserKey")
    }
}

/// A sealed piece is not what this key sealed for this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forged;

/// Encrypts and decrypts with one key, which it clears from memory when it is dropped.
pub(crate) struct Cipher(XChaCha20Poly1305);

impl Cipher {
    pub(crate) fn new(key: &[u8; KEY_LEN]) -> Self {
        Self(XChaCha20Poly1305::new(key.into()))
    }

    /// Encrypts `body`, which begins at `start` in `piece` behind its nonce, and appends the tag.
    pub(crate) fn seal(&self, bound_to: &[u8], piece: &mut Vec<u8>, start: usize) {
        let (nonce, body) = piece[start..].split_at_mut(NONCE_LEN);
        let nonce: &[u8; NONCE_LEN] = nonce.first_chunk().expect("split there");
        let sealed = self.0.encrypt_inout_detached(nonce.into(), bound_to, body.into());
        // 256 GiB is where the cipher ends, and no piece comes near.
        let tag = sealed.expect("a piece fits the cipher");
        piece.extend_from_slice(tag.as_slice());
    }

    /// Decrypts `piece` into `out`, which has the plain length. The tag is checked first: what is
    /// forged is not decrypted.
    pub(crate) fn open(&self, bound_to: &[u8], piece: &[u8], out: &mut [u8]) -> Result<(), Forged> {
        let (nonce, rest) = piece.split_first_chunk::<NONCE_LEN>().ok_or(Forged)?;
        let (body, tag) = rest.split_last_chunk::<TAG_LEN>().ok_or(Forged)?;
        let buffer = InOutBuf::new(body, out).map_err(|_| Forged)?;
        let opened = self.0.decrypt_inout_detached(nonce.into(), bound_to, buffer, tag.into());
        opened.map_err(|_| Forged)
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cipher")
    }
}

/// Fills `bytes` from the kernel's random numbers.
///
/// # Panics
/// When the kernel has none to give, which Linux has since 3.17: nothing is encrypted with a nonce
/// that can be guessed.
pub(crate) fn random(bytes: &mut [u8]) {
    // The kernel gives this many at once, whatever signals come.
    for part in bytes.chunks_mut(256) {
        loop {
            match getrandom(&mut *part, GetRandomFlags::empty()) {
                Ok(len) if len == part.len() => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => panic!("the kernel gives no random numbers: {error}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test vector of the draft that defines XChaCha20-Poly1305 (draft-irtf-cfrg-xchacha, A.3.1).
    #[test]
    fn the_cipher_is_the_one_of_the_draft() {
        let key: [u8; KEY_LEN] = std::array::from_fn(|i| 0x80 + u8::try_from(i).unwrap());
        let nonce: [u8; NONCE_LEN] = std::array::from_fn(|i| 0x40 + u8::try_from(i).unwrap());
        let bound_to = [0x50, 0x51, 0x52, 0x53, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7];
        let plain = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the \
            future, sunscreen would be it.";
        let cipher = Cipher::new(&key);
        let mut piece = [nonce.as_slice(), plain].concat();
        cipher.seal(&bound_to, &mut piece, 0);
        assert_eq!(piece[NONCE_LEN..][..8], [0xbd, 0x6d, 0x17, 0x9d, 0x3e, 0x83, 0xd4, 0x3b]);
        let tag = "c0875924c1c7987947deafd8780acf49";
        let found: String = piece[piece.len() - TAG_LEN..].iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, tag);
        let mut out = vec![0; plain.len()];
        assert_eq!(cipher.open(&bound_to, &piece, &mut out), Ok(()));
        assert_eq!(out, plain);
    }

    #[test]
    fn a_piece_that_is_too_short_or_bound_elsewhere_is_forged() {
        let cipher = Cipher::new(&DataKey::random().0);
        let mut piece = vec![0; NONCE_LEN + 1];
        cipher.seal(b"here", &mut piece, 0);
        for len in 0..piece.len() {
            let mut out = vec![0; len.saturating_sub(OVERHEAD)];
            assert_eq!(cipher.open(b"here", &piece[..len], &mut out), Err(Forged));
        }
        assert_eq!(cipher.open(b"there", &piece, &mut [0]), Err(Forged));
        assert_eq!(cipher.open(b"here", &piece, &mut [0, 0]), Err(Forged));
        assert_eq!(cipher.open(b"here", &piece, &mut [0]), Ok(()));
    }

    #[test]
    fn a_key_is_not_shown() {
        let shown = format!("{:?} {:?}", DataKey::random(), UserKey(DataKey::random().0));
        assert_eq!(shown, "DataKey UserKey");
    }

    #[test]
    fn random_bytes_fill_all_of_it() {
        let mut bytes = [0; 1000];
        random(&mut bytes);
        // A run of 16 zeros is as likely as a guessed key.
        assert!(bytes.windows(16).all(|run| run != [0; 16]));
    }
}
