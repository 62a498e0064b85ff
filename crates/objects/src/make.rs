//! How a volume is made: the object `format`, then the lease. Without the lease it cannot be mounted.
//!
//! A `format` that ended in between is finished by the next one with the same options. Where there is
//! a volume nothing is overwritten; only a lease that is missing is made.

use std::time::Duration;

use store::{Error, ErrorKind, Result};

use crate::bucket::Bucket;
use crate::crypto::UserKey;
use crate::format::{self, Format, Options};
use crate::lease::{Created, Lease};
use crate::wrapped_key::WrappedKey;

/// Names that are looked at, to find one of a volume that was mounted.
const LOOKED_AT: usize = 1_000;

/// How often a lease that is missing is looked for before the format counts as ended.
const LOOKS: u32 = 8;
const PAUSE: Duration = Duration::from_millis(500);

/// Makes a volume; `key` is the user's that `options` are encrypted with.
///
/// # Errors
/// As [`format::create`].
pub(crate) async fn make(bucket: &Bucket, options: Options, key: Option<&UserKey>) -> Result<Format> {
    match format::create(bucket, options.clone()).await {
        Ok(made) => match Lease::create_free(bucket).await? {
            Created::New => Ok(made),
            Created::Exists => Err(Error::with(
                ErrorKind::Exists,
                "format",
                format!("{}: another `format` has finished the volume ({})", bucket.url(), made.uuid),
            )),
        },
        Err(error) if error.kind() == ErrorKind::Exists => finish(bucket, &options, key, error).await,
        Err(error) => Err(error),
    }
}

/// Finishes what an earlier format began; `exists` is the refusal where there is nothing to finish.
async fn finish(bucket: &Bucket, options: &Options, key: Option<&UserKey>, exists: Error) -> Result<Format> {
    // One that is at work makes the lease in a moment.
    for _ in 0..LOOKS {
        if Lease::is_there(bucket).await? {
            return Err(exists);
        }
        tokio::time::sleep(PAUSE).await;
    }
    let format = format::read(bucket).await?;
    let refused = |why: String| Err(Error::with(ErrorKind::Exists, "format", why));
    let (url, uuid) = (bucket.url(), format.uuid);
    let names = bucket.some_names("", LOOKED_AT).await?;
    if names.iter().any(|name| name != format::NAME && name != "lease" && !name.starts_with("probe/")) {
        return match Lease::create_free(bucket).await? {
            Created::New => refused(format!(
                "{url}: there is a volume already ({uuid}), with data; its lease was missing and has been made \
                 anew: mount it"
            )),
            Created::Exists => Err(exists),
        };
    }
    if !is_same(&format, options, key) {
        return refused(format!(
            "{url}: an earlier format ({uuid}) has not ended, and had other options: repeat it with the same \
             ones, or delete the object `format` there, beside which no data is"
        ));
    }
    match Lease::create_free(bucket).await? {
        Created::New => Ok(format),
        Created::Exists => Err(exists),
    }
}

/// Whether a volume is what these options would make.
fn is_same(format: &Format, options: &Options, key: Option<&UserKey>) -> bool {
    let is_key_same = match (&format.encryption, key) {
        (None, None) => true,
        (Some(record), Some(user)) => {
            let key = WrappedKey::from_json(record);
            key.and_then(|record| record.unwrap(&format.uuid.to_bytes(), user)).is_ok()
        }
        _ => false,
    };
    is_key_same && format.compression == options.compression && format.size_max == options.size_max
}

#[cfg(test)]
mod tests {
    use object_store::PutPayload;

    use super::*;
    use crate::Compression;
    use crate::crypto::DataKey;
    use crate::open::open_bucket;
    use crate::uuid::Uuid;

    fn bucket(name: &str) -> Bucket {
        open_bucket(&format!("memory://make-{name}/v").parse().unwrap()).unwrap()
    }

    fn encrypted(user: &UserKey) -> Options {
        let uuid = Uuid::random().unwrap();
        let record = WrappedKey::wrap(&uuid.to_bytes(), user, &DataKey::random());
        let encryption = Some(record.to_json().unwrap());
        Options { uuid, encryption, ..Options::default() }
    }

    async fn refusal(bucket: &Bucket, options: Options, key: Option<&UserKey>) -> String {
        let error = make(bucket, options, key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists);
        error.detail().unwrap().to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_format_that_ended_early_is_finished_by_the_next() {
        let bucket = bucket("early");
        let options = Options { uuid: Uuid::random().unwrap(), ..Options::default() };
        let begun = format::create(&bucket, options).await.unwrap();
        // With other options it says what to do, and changes nothing.
        let other = Options { compression: Compression::Lz4, ..Options::default() };
        let why = refusal(&bucket, other, None).await;
        assert!(
            why.contains("repeat it with the same") && why.contains("delete the object `format`"),
            "{why}"
        );
        assert!(Lease::read(&bucket).await.unwrap().is_none());
        let options = Options { uuid: Uuid::random().unwrap(), ..Options::default() };
        let made = make(&bucket, options.clone(), None).await.unwrap();
        assert_eq!(made, begun);
        assert!(Lease::read(&bucket).await.unwrap().is_some());
        let why = refusal(&bucket, options, None).await;
        assert!(why.contains("there is a volume already"), "{why}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_encrypted_one_is_finished_with_its_key_only() {
        let bucket = bucket("encrypted");
        let (user, other) = (UserKey(DataKey::random().0), UserKey(DataKey::random().0));
        let begun = format::create(&bucket, encrypted(&user)).await.unwrap();
        for (options, key) in [(Options::default(), None), (encrypted(&other), Some(&other))] {
            let why = refusal(&bucket, options, key).await;
            assert!(why.contains("had other options"), "{why}");
        }
        assert_eq!(make(&bucket, encrypted(&user), Some(&user)).await.unwrap(), begun);
    }

    #[tokio::test(start_paused = true)]
    async fn where_data_is_only_a_missing_lease_is_made() {
        let bucket = bucket("data");
        let made = make(&bucket, Options::default(), None).await.unwrap();
        let _ = bucket.create("log/1", PutPayload::from_static(b"x")).await.unwrap();
        bucket.delete("lease").await.unwrap();
        let other = Options { compression: Compression::Lz4, ..Options::default() };
        let why = refusal(&bucket, other.clone(), None).await;
        assert!(why.contains("with data") && why.contains("mount it"), "{why}");
        assert!(Lease::read(&bucket).await.unwrap().is_some());
        assert_eq!(format::read(&bucket).await.unwrap(), made);
        // A lease that is there is not touched, also where it is damaged.
        bucket.delete("lease").await.unwrap();
        let _ = bucket.create("lease", PutPayload::from_static(b"garbage")).await.unwrap();
        let why = refusal(&bucket, other, None).await;
        assert!(why.contains("there is a volume already"), "{why}");
        assert_eq!(bucket.get("lease").await.unwrap().unwrap().0, "garbage");
    }
}
