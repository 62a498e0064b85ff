//! The change of a volume's key, without a change of its data.
//!
//! The data key stays; its record in the object `format` is replaced by one that another user's key
//! opens, with one conditional request: a crash leaves the old record or the new one, and of two
//! changes at once the second finds that its old key does not fit any more. A host that has the
//! volume mounted notices nothing, for it read the record when it opened the volume.

use std::path::Path;

use object_store::PutPayload;
use serde::Serialize;
use store::{Error, ErrorKind, Result};

use crate::bucket::{Bucket, Condition};
use crate::crypto::UserKey;
use crate::format::{self, Format};
use crate::key_file;
use crate::open::open_shared;
use crate::url::Url;
use crate::wait::wait;
use crate::wrapped_key::WrappedKey;

/// Changes by others that a call follows.
const ROUNDS: u32 = 8;

/// What [`change_key`] did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyChange {
    /// The volume's canonical name.
    pub url: String,
    /// Its identity.
    pub uuid: String,
    /// Whether the key was changed; if not, the volume had the new one already.
    pub changed: bool,
}

/// Gives a volume another key. It may be mounted.
///
/// # Errors
/// `AccessDenied`: neither key fits the volume; `Invalid`: it is not encrypted, or a key file or
/// the URL is wrong.
pub fn change_key(url: &str, old: &Path, new: &Path) -> Result<KeyChange> {
    let url: Url = url.parse()?;
    let (old, new) = (key_file::read(old)?, key_file::read(new)?);
    let bucket = open_shared(&url)?;
    let runtime = crate::runtime::handle()?;
    let (format, changed) = wait(&runtime, change(&bucket, &old, &new))?;
    Ok(KeyChange { url: url.to_string(), uuid: format.uuid.to_string(), changed })
}

async fn change(bucket: &Bucket, old: &UserKey, new: &UserKey) -> Result<(Format, bool)> {
    for _ in 0..ROUNDS {
        let (mut format, tag) = format::read_with_tag(bucket).await?;
        let Some(record) = &format.encryption else {
            let why = "the volume is not encrypted, and cannot be any more: `format --encrypt-key-file` makes one that is";
            return Err(Error::with(ErrorKind::Invalid, "change key", why));
        };
        let record = WrappedKey::from_json(record)?;
        let uuid = format.family().to_bytes();
        let record = match record.rewrap(&uuid, old, new) {
            Ok(record) => record,
            // A call that was cut short has changed it.
            Err(_) if record.unwrap(&uuid, new).is_ok() => return Ok((format, false)),
            Err(error) => return Err(error),
        };
        format.encryption = Some(record.to_json()?);
        let json = PutPayload::from(format.to_json(bucket)?);
        match bucket.replace(format::NAME, json, &tag).await? {
            Condition::Met(_) => return Ok((format, true)),
            Condition::Failed { after_unknown } => {
                let (found, _) = format::read_with_tag(bucket).await?;
                if after_unknown && found == format {
                    return Ok((found, true));
                }
            }
        }
    }
    Err(Error::with(ErrorKind::Busy, "change key", "the object `format` changes without end: try again"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::DataKey;
    use crate::format::{Options, create};
    use crate::open::open_bucket;
    use crate::scripted::{Fault, Scripted};

    fn user() -> UserKey {
        UserKey(DataKey::random().0)
    }

    async fn encrypted(bucket: &Bucket, user: &UserKey) -> (Format, DataKey) {
        let data = DataKey::random();
        let options = Options::default();
        let record = WrappedKey::wrap(&options.uuid.to_bytes(), user, &data);
        let options = Options { encryption: Some(record.to_json().unwrap()), ..options };
        (create(bucket, options).await.unwrap(), data)
    }

    async fn data_key(bucket: &Bucket, user: &UserKey) -> Result<DataKey> {
        let (format, _) = format::read_with_tag(bucket).await?;
        WrappedKey::from_json(&format.encryption.unwrap())?.unwrap(&format.uuid.to_bytes(), user)
    }

    fn bucket(name: &str) -> Bucket {
        open_bucket(&format!("memory://change-key-{name}/v").parse().unwrap()).unwrap()
    }

    #[tokio::test]
    async fn the_new_key_opens_the_same_data_and_the_old_one_nothing() {
        let bucket = bucket("once");
        let (old, new) = (user(), user());
        let (made, data) = encrypted(&bucket, &old).await;
        let (mut format, changed) = change(&bucket, &old, &new).await.unwrap();
        assert!(changed);
        format.encryption.clone_from(&made.encryption);
        assert_eq!(format, made, "nothing else");
        assert_eq!(data_key(&bucket, &new).await.unwrap().0, data.0);
        assert_eq!(data_key(&bucket, &old).await.err().unwrap().kind(), ErrorKind::AccessDenied);
        // Again: it is done. With other keys: it is refused.
        assert!(!change(&bucket, &old, &new).await.unwrap().1);
        let refused = change(&bucket, &user(), &user()).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AccessDenied);
        assert_eq!(data_key(&bucket, &new).await.unwrap().0, data.0);
    }

    #[tokio::test]
    async fn of_changes_at_once_one_counts() {
        let bucket = bucket("race");
        let old = user();
        let (_, data) = encrypted(&bucket, &old).await;
        let keys: Vec<_> = (0..8).map(|_| user()).collect();
        let changes = keys.iter().map(|new| change(&bucket, &old, new));
        let ended = futures_util::future::join_all(changes).await;
        let mut winners = 0;
        for (key, ended) in keys.iter().zip(ended) {
            let opens = data_key(&bucket, key).await;
            assert_eq!(opens.is_ok(), ended.is_ok());
            if let Ok(opened) = opens {
                assert_eq!(opened.0, data.0);
                winners += 1;
            }
        }
        assert_eq!(winners, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_is_found_out() {
        for seed in 0..50 {
            let bucket = Scripted::new(seed).with(Fault::LostAnswer, 20).with(Fault::SlowDown, 20).bucket();
            let bucket = bucket.with_patience(crate::bucket::Patience::UntilStopped);
            let (old, new) = (user(), user());
            let (_, data) = encrypted(&bucket, &old).await;
            assert!(change(&bucket, &old, &new).await.is_ok(), "seed {seed}");
            assert_eq!(data_key(&bucket, &new).await.unwrap().0, data.0, "seed {seed}");
        }
    }

    #[tokio::test]
    async fn a_volume_without_a_key_gets_none() {
        let bucket = bucket("plain");
        let made = create(&bucket, Options::default()).await.unwrap();
        assert_eq!(change(&bucket, &user(), &user()).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(format::read(&bucket).await.unwrap(), made);
    }
}
