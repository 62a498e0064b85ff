//! The record of a volume's data key, encrypted with the user's key.
//!
//! It stands in the format object. With another user's key it is written anew, and the data stays
//! as it is. The record is bound to the volume, so that none fits another one.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use store::{Error, ErrorKind, Result};

use crate::crypto::{self, Cipher, DataKey, KEY_LEN, KeyBytes, NONCE_LEN, UserKey};
use crate::hex;

/// The version of the record.
const VERSION: u32 = 1;
const ALGORITHM: &str = "xchacha20-poly1305";
/// Bytes of an encrypted key with its tag.
const SEALED_LEN: usize = KEY_LEN + crypto::OVERHEAD - NONCE_LEN;

/// A data key, encrypted with the user's key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey {
    version: u32,
    algorithm: String,
    nonce: Hex<NONCE_LEN>,
    /// The encrypted key and its tag.
    key: Hex<SEALED_LEN>,
    /// A checksum, which tells a damaged record from a key that does not fit.
    check: Hex<4>,
}

impl WrappedKey {
    /// Encrypts `data` with `user`, for the volume `uuid`.
    #[must_use]
    pub fn wrap(uuid: &[u8; 16], user: &UserKey, data: &DataKey) -> Self {
        let mut nonce = [0; NONCE_LEN];
        crypto::random(&mut nonce);
        // Not a byte of the key is left in a vector that grew.
        let mut piece = zeroize::Zeroizing::new(Vec::with_capacity(KEY_LEN + crypto::OVERHEAD));
        piece.extend_from_slice(&nonce);
        piece.extend_from_slice(data.0.as_slice());
        Cipher::new(&user.0).seal(&bind(uuid, VERSION, ALGORITHM), &mut piece, 0);
        let key = piece.last_chunk().expect("a key and its tag");
        let mut record = Self {
            version: VERSION,
            algorithm: ALGORITHM.to_owned(),
            nonce: Hex(nonce),
            key: Hex(*key),
            check: Hex([0; 4]),
        };
        record.check = record.checksum(uuid);
        record
    }

    /// The data key of the volume `uuid`.
    ///
    /// # Errors
    /// [`ErrorKind::AccessDenied`]: it was encrypted with another user's key.
    /// [`ErrorKind::Unsupported`]: a newer program wrote it. [`ErrorKind::Io`]: it is damaged.
    pub fn unwrap(&self, uuid: &[u8; 16], user: &UserKey) -> Result<DataKey> {
        if self.version != VERSION {
            let what = format!(
                "the record of the volume's key has version {}, and {VERSION} is known",
                self.version
            );
            return Err(Error::with(ErrorKind::Unsupported, "open", what));
        }
        if self.checksum(uuid) != self.check {
            let what = "the record of the volume's key is damaged, or another volume's";
            return Err(Error::with(ErrorKind::Io, "open", what));
        }
        if self.algorithm != ALGORITHM {
            let what =
                format!("the volume's key is encrypted with {:?}, and {ALGORITHM} is known", self.algorithm);
            return Err(Error::with(ErrorKind::Unsupported, "open", what));
        }
        let piece = [self.nonce.0.as_slice(), &self.key.0].concat();
        let mut key = KeyBytes::default();
        Cipher::new(&user.0)
            .open(&bind(uuid, self.version, &self.algorithm), &piece, key.as_mut_slice())
            .map_err(|crypto::Forged| {
                Error::with(ErrorKind::AccessDenied, "open", "the key file does not fit this volume")
            })?;
        Ok(DataKey(key))
    }

    /// The record for another user's key. The data key stays the same: who has the old record and
    /// the old key can read the volume still.
    ///
    /// # Errors
    /// As [`unwrap`](Self::unwrap).
    pub fn rewrap(&self, uuid: &[u8; 16], old: &UserKey, new: &UserKey) -> Result<Self> {
        Ok(Self::wrap(uuid, new, &self.unwrap(uuid, old)?))
    }

    /// The record as it stands in the format.
    ///
    /// # Errors
    /// [`ErrorKind::Io`]: it is damaged.
    pub fn from_json(record: &serde_json::Value) -> Result<Self> {
        Self::deserialize(record).map_err(|_| {
            Error::with(
                ErrorKind::Io,
                "open",
                "the record of the volume's key (object `format`) is damaged: put it back as it was",
            )
        })
    }

    /// The record as it stands in the format.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_json(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self)
            .map_err(|error| Error::with(ErrorKind::Invalid, "format", error.to_string()))
    }

    fn checksum(&self, uuid: &[u8; 16]) -> Hex<4> {
        let Self { version, algorithm, nonce, key, check: _ } = self;
        let covered = [bind(uuid, *version, algorithm).as_slice(), &nonce.0, &key.0].concat();
        Hex(crc_fast::crc32_iscsi(&covered).to_le_bytes())
    }
}

/// What the encrypted key is bound to.
fn bind(uuid: &[u8; 16], version: u32, algorithm: &str) -> Vec<u8> {
    [b"k".as_slice(), uuid, &version.to_le_bytes(), algorithm.as_bytes()].concat()
}

/// Bytes that are text in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hex<const N: usize>([u8; N]);

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(&self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = [0; N];
        if hex::decode(text.as_bytes(), &mut bytes) {
            Ok(Self(bytes))
        } else {
            Err(serde::de::Error::custom(format_args!("not {} hexadecimal digits", 2 * N)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = *b"0123456789abcdef";

    fn user() -> UserKey {
        UserKey(DataKey::random().0)
    }

    fn unwrap_error(record: &WrappedKey, uuid: &[u8; 16], user: &UserKey) -> (ErrorKind, String) {
        let error = record.unwrap(uuid, user).unwrap_err();
        (error.kind(), error.detail().unwrap().to_owned())
    }

    #[test]
    fn the_right_key_opens_the_record_and_another_is_named_as_such() {
        let (user_key, data) = (user(), DataKey::random());
        let record = WrappedKey::wrap(&UUID, &user_key, &data);
        assert_eq!(record.unwrap(&UUID, &user_key).unwrap().0, data.0);
        let refused = (ErrorKind::AccessDenied, "the key file does not fit this volume".to_owned());
        assert_eq!(unwrap_error(&record, &UUID, &user()), refused);
        assert_eq!(unwrap_error(&record, b"another volume's", &user_key).0, ErrorKind::Io);
    }

    #[test]
    fn a_change_of_the_key_keeps_the_data_key_and_shuts_the_old_one_out() {
        let (old, new, data) = (user(), user(), DataKey::random());
        let record = WrappedKey::wrap(&UUID, &old, &data);
        assert!(record.rewrap(&UUID, &new, &old).is_err());
        let changed = record.rewrap(&UUID, &old, &new).unwrap();
        assert_eq!(changed.unwrap(&UUID, &new).unwrap().0, data.0);
        assert_eq!(unwrap_error(&changed, &UUID, &old).0, ErrorKind::AccessDenied);
    }

    #[test]
    fn the_record_is_text_and_comes_back() {
        let record = WrappedKey::wrap(&UUID, &user(), &DataKey::random());
        let text = serde_json::to_string(&record).unwrap();
        assert!(text.starts_with(r#"{"version":1,"algorithm":"xchacha20-poly1305","nonce":""#), "{text}");
        assert_eq!(serde_json::from_str::<WrappedKey>(&text).unwrap(), record);
        for wrong in
            [text.replace(r#""nonce":""#, r#""nonce":"0"#), text.replace(r#""check":""#, r#""check":"x"#)]
        {
            assert!(serde_json::from_str::<WrappedKey>(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_damaged_record_and_a_newer_one_are_not_blamed_on_the_key() {
        let user = user();
        let record = WrappedKey::wrap(&UUID, &user, &DataKey::random());
        for bit in 0..8 * SEALED_LEN {
            let mut damaged = record.clone();
            damaged.key.0[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unwrap_error(&damaged, &UUID, &user).0, ErrorKind::Io);
        }
        let mut newer = record.clone();
        newer.version = 2;
        assert_eq!(unwrap_error(&newer, &UUID, &user).0, ErrorKind::Unsupported);
        let mut other = record;
        other.algorithm = "aes".to_owned();
        other.check = other.checksum(&UUID);
        assert_eq!(unwrap_error(&other, &UUID, &user).0, ErrorKind::Unsupported);
    }
}
